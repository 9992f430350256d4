package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func envoyConfig(t *testing.T, args ...string) (out, warnings string, err error) {
	t.Helper()
	var o, e bytes.Buffer
	root := newRoot()
	root.SetOut(&o)
	root.SetErr(&e)
	root.SetArgs(append([]string{"envoy-config"}, args...))
	err = root.Execute()
	return o.String(), e.String(), err
}

func TestEnvoyConfig(t *testing.T) {
	dir := t.TempDir()
	rules := filepath.Join(dir, "rules")
	if err := os.MkdirAll(rules, 0o755); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(dir, "envoy.yaml")
	for file, text := range map[string]string{
		filepath.Join(rules, "app.yaml"): "domain: app\ndescriptors:\n- {key: api_key, rate_limit: {unit: hour, requests_per_unit: 1}}\n- {key: user, rate_limit: {unit: hour, requests_per_unit: 1}}\n",
		own:                              "rate_limits: [{actions: [{request_headers: {header_name: x-own, descriptor_key: api_key}}]}]",
	} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cases := []struct {
		args, out, warnings []string
	}{
		{[]string{"--rules", rules, "--from", "api_key=header:x-api-key", "--from", "user=query:user", "--key", "user", "--xds", "10.0.0.1:18000", "--listen", "127.0.0.1:1", "--listen", "127.0.0.1:2", "--timeout", "1s", "--failure-mode-deny"},
			[]string{"%QUERY_PARAM(user)%", "port_value: 2}", "timeout: 1s", "max_interval: 0.4s", "failure_mode_deny: true", "DELTA_GRPC", `address: "10.0.0.1", port_value: 18000`},
			[]string{"app.api_key is placed by api_key"}},
		{[]string{"--rules", rules, "--envoy", own, "--member", "pod-a=10.0.0.1:8082", "--connect-timeout", "50ms", "--ads", "sotw", "--envoy-version", "1.40.0"},
			[]string{"%REQ(x-own)%", "hash_key: pod-a", "connect_timeout: 0.05s", "enable_retry_after_header"}, []string{"the source of user is unknown"}},
		{[]string{"--shape", "routes", "--route-header", "x-user", "--xds", "[::1]:18000", "--tls-cert", "/c", "--tls-key", "/k", "--tls-ca", "/a"},
			[]string{"header_name: x-user", "filename: /c", `address: "::1"`}, nil},
		{[]string{"--for", "istio", "--rules", rules, "--from", "api_key=header:x-api-key", "--gateway-namespace", "edge", "--selector", "istio=edge"},
			[]string{"kind: EnvoyFilter", "namespace: edge", "istio: edge", "keyward-xds.keyward.svc", "name: envoy.load_balancing_policies.ring_hash"}, []string{"the source of user is unknown"}},
		{[]string{"--for", "contour", "--rules", rules, "--from", "api_key=header:x-api-key", "--from", "user=header:x-user", "--release", "limits"},
			[]string{"kind: ContourConfiguration", "{name: limits, port: 8081}", "headerName: x-user"}, nil},
		{[]string{"--for", "envoy-gateway", "--from", "user=header:x-user", "--gateway", "eg", "--no-tls"}, []string{"kind: EnvoyPatchPolicy", "%REQ(x-user)%"}, nil},
		{[]string{"--part", "sds-client", "--tls-cert", "/c", "--tls-key", "/k", "--tls-ca", "/a"}, []string{"filename: /k"}, nil},
	}
	for _, c := range cases {
		out, warnings, err := envoyConfig(t, c.args...)
		if err != nil {
			t.Errorf("%q: %v", c.args, err)
			continue
		}
		for _, want := range c.out {
			if !strings.Contains(out, want) {
				t.Errorf("%q: no %s in\n%s", c.args, want, out)
			}
		}
		for _, want := range c.warnings {
			if !strings.Contains(warnings, want) {
				t.Errorf("%q: no %s in the warnings %q", c.args, want, warnings)
			}
		}
		if len(c.warnings) == 0 && warnings != "" {
			t.Errorf("%q: warnings %q", c.args, warnings)
		}
	}

	out, _, err := envoyConfig(t, "--rules", filepath.Join(dir, "none"), "--envoy", filepath.Join(dir, "none"), "--from", "x", "--member", "y", "--module-socket", strings.Repeat("/m", 54))
	if err == nil || out != "" {
		t.Fatalf("printed %q", out)
	}
	for _, want := range []string{"--from x", "--member y", "read --envoy", "read rules", "--module-socket: "} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not said in %v", want, err)
		}
	}
}

// TestEnvoyConfigOfARulesFile requires the same of one file of rules as of its directory, and one fault of an unknown shape.
func TestEnvoyConfigOfARulesFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "app.yaml")
	if err := os.WriteFile(file, []byte("domain: app\ndescriptors:\n- {key: api_key, rate_limit: {unit: minute, requests_per_unit: 3}}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	from := []string{"--from", "api_key=header:x-api-key", "--shape", "plain"}
	whole, _, err := envoyConfig(t, append(from, "--rules", dir)...)
	if one, _, fault := envoyConfig(t, append(from, "--rules", file)...); err != nil || fault != nil || one != whole {
		t.Errorf("%v, %v: the configurations of a file and of its directory differ", err, fault)
	}
	if _, _, err := envoyConfig(t, append(from, "--rules", file, "--shape", "foo")...); err == nil || strings.Contains(err.Error(), "xDS") {
		t.Errorf("an unknown shape: %v", err)
	}
}

func TestEnvoyConfigForFaults(t *testing.T) {
	for want, args := range map[string][]string{
		"want envoy, istio": {"--for", "nginx"},
		"--part is of":      {"--for", "istio", "--part", "filter"},
		"members forward":   {"--for", "kgateway", "--shape", "owner-direct"},
		"one --from KEY":    {"--for", "envoy-gateway"},
		"no calls are left": {"--for", "contour"},
		`"path" is not one`: {"--from", "api_key=path"},
	} {
		if out, _, err := envoyConfig(t, args...); err == nil || !strings.Contains(err.Error(), want) || out != "" {
			t.Errorf("%q: %v, prints %q", args, err, out)
		}
	}
}
