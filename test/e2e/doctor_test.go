package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/lab"
)

// diagnosis is a line of `keyward doctor -o json`.
type diagnosis struct {
	Check, Level, Text, Advice string
}

// tool runs `keyward` and returns its output and exit code.
func tool(ctx context.Context, t testing.TB, args ...string) (string, int) {
	t.Helper()
	cmd := exec.CommandContext(ctx, filepath.Join(bin(t), "keyward"), args...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return stdout.String() + stderr.String(), cmd.ProcessState.ExitCode()
}

// examine runs doctor.
func examine(ctx context.Context, t testing.TB, args ...string) ([]diagnosis, int) {
	t.Helper()
	out, code := tool(ctx, t, append([]string{"doctor", "-o", "json"}, args...)...)
	var all []diagnosis
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("doctor %q: %v\n%s", args, err, out)
	}
	return all, code
}

// plant is a mistake that doctor must find, with what to do about it.
type plant struct {
	name, check, level string
	text, advice       string // parts of what is said
}

func (p *plant) in(all []diagnosis) bool {
	return slices.ContainsFunc(all, func(d diagnosis) bool {
		return d.Check == p.check && d.Level == p.level && strings.Contains(d.Text, p.text) && strings.Contains(d.Advice, p.advice)
	})
}

// await runs doctor until it says what was planted: members need a moment to notice.
func (p *plant) await(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "doctor finds "+p.name, func(ctx context.Context) error {
		all, code := examine(t.Context(), t, args...)
		if !p.in(all) {
			return fmt.Errorf("not among %+v", all)
		}
		if (code != 0) != slices.ContainsFunc(all, func(d diagnosis) bool { return d.Level == "fail" }) {
			t.Errorf("%s: exit code %d", p.name, code)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

const doctorRules = `domain: edge
descriptors:
  - key: api_key
    rate_limit: {name: basic, unit: hour, requests_per_unit: 2}
`

// explainForetellsEnvoy asks, before each request through a real Envoy, what will become of it: the same code and headers.
func explainForetellsEnvoy(t *testing.T, l *lab.Lab, e *lab.Envoy) {
	for i, verdict := range []string{"ok", "ok", "over_limit"} {
		out, code := tool(t.Context(), t, "explain", "edge", "api_key=carol", "-o", "json", "--member", l.Sidecars[i].Metrics)
		var said struct {
			Verdict, Owner string
			Headers        map[string]string
		}
		if err := json.Unmarshal([]byte(out), &said); err != nil || code != 0 {
			t.Fatalf("exit code %d, %v\n%s", code, err, out)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+e.Listener, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("x-api-key", "carol")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if said.Verdict != verdict || (res.StatusCode == http.StatusTooManyRequests) != (verdict == "over_limit") {
			t.Errorf("request %d: foretold %s, got %s", i+1, said.Verdict, res.Status)
		}
		for _, name := range []string{"x-ratelimit-limit", "x-ratelimit-remaining", "x-envoy-ratelimited"} {
			if got := res.Header.Get(name); got != said.Headers[name] {
				t.Errorf("request %d: %s is %q, foretold %q", i+1, name, got, said.Headers[name])
			}
		}
	}
}

// awaitAllReached waits until no member knows an address that does not respond: one that began before the others tries them again later.
func awaitAllReached(t *testing.T, l *lab.Lab) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "members to reach all addresses", func(context.Context) error {
		if n := sum(t, l, "keyward_cluster_missing"); n > 0 {
			return fmt.Errorf("%v do not respond", n)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestDoctor runs doctor on a cluster with TLS, gossip keys, xDS and Envoy as the manual sets them up.
// Then one after the other is planted what people get wrong, each in a real process, and doctor must find it.
func TestDoctor(t *testing.T) {
	l := newLab(t, lab.Options{
		Expect: 3, Rules: map[string]string{"edge.yaml": doctorRules}, Env: []string{"GOMEMLIMIT=512MiB"},
		Args: []string{"--envoy-connect-timeout", "250ms"}, // as the stand-alone xDS server below has it
	})
	start(t, l, names(3)...)
	_, e := ownerDirectWithin(t, l, "250ms", "", "--failure-mode-deny")
	base := []string{"--member", l.Sidecars[0].Metrics, "--envoy", e.Admin, "--rules", filepath.Join(l.Sidecars[0].Runtime, "ratelimit", "config")}
	awaitAllReached(t, l)
	all, code := examine(t.Context(), t, base...)
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, d := range all {
		if d.Level != "ok" {
			t.Errorf("a cluster as it should be: %+v", d)
		}
	}
	for _, m := range l.Sidecars { // no member complains about the doctor's own probes
		if log := m.Tail(1 << 20); strings.Contains(log, "peer connection rejected") {
			t.Errorf("%s complains of the doctor:\n%s", m.Name, log)
		}
	}
	if out, code := tool(t.Context(), t, "xds", "status", "--member", l.Sidecars[0].Metrics); code != 0 || !strings.Contains(out, "in step") || !strings.Contains(out, "all servers serve the same") {
		t.Errorf("xds status: %d\n%s", code, out)
	}
	t.Run("explain", func(t *testing.T) { explainForetellsEnvoy(t, l, e) })
	t.Run("Envoy", func(t *testing.T) { doctorFindsEnvoys(t, l, e) })
	t.Run("members", func(t *testing.T) { doctorFindsMembers(t, l) })
	t.Run("rules", func(t *testing.T) {
		files := map[string]string{"edge.yaml": "domain: edge\ndescriptors:\n- key: api_key\n  ratelimit: {unit: day}\n"}
		if err := l.WriteRules(l.Sidecars[1], files); err != nil {
			t.Fatal(err)
		}
		p := plant{"a file that does not load", "rules", "fail", "pod-b cannot load its rules: ", "keyward check DIR"}
		p.await(t, "--member", l.Sidecars[0].Metrics)
	})
}

// doctorFindsEnvoys starts Envoys with the bootstrap of e, of which one thing is another.
func doctorFindsEnvoys(t *testing.T, l *lab.Lab, e *lab.Envoy) {
	good, err := os.ReadFile(e.Config)
	if err != nil {
		t.Fatal(err)
	}
	_, listen, _ := strings.Cut(e.Listener, ":")
	_, admin, _ := strings.Cut(e.Admin, ":")
	text := strings.NewReplacer("port_value: "+listen, "port_value: @PORT@", "port_value: "+admin, "port_value: @ADMINPORT@").Replace(string(good))
	for i, row := range []struct {
		plant
		change []string
	}{
		{plant{"retries without reset", "envoy", "fail", "an owner runs but does not respond", "reset,connect-failure"}, []string{"reset,connect-failure", "connect-failure"}},
		{plant{"a timeout for one try", "envoy", "warn", "leaves no time for a retry at the successor", "timeout: 0.1s"}, []string{"timeout: 0.1s", "timeout: 0.02s"}},
		{plant{"no time of one try", "envoy", "fail", "the successor is never called", "max_interval 0.04s"}, []string{"max_interval: 0.04s", "max_interval: 4s"}},
		{plant{"requests pass uncounted", "envoy", "warn", "failure_mode_deny is off", "true denies"}, []string{"failure_mode_deny: true", "failure_mode_deny: false"}},
		{plant{"another domain", "envoy", "fail", "there are no rules for this domain; configured domains: edge", "same domain"}, []string{"domain: edge", "domain: egde"}},
		{plant{"no key", "envoy", "warn", "sends no x-keyward-key", "initial_metadata"}, []string{"key: x-keyward-key", "key: x-other"}},
	} {
		changed := strings.Replace(text, row.change[0], row.change[1], 1)
		if changed == text {
			t.Fatalf("%q is not in the bootstrap:\n%s", row.change[0], text)
		}
		bad := addEnvoy(t, l, lab.EnvoyOptions{Name: fmt.Sprintf("envoy-%d", i), Config: changed}, "keyward", 3)
		row.await(t, "--member", l.Sidecars[0].Metrics, "--envoy", bad.Admin, "--rules", filepath.Join(l.Sidecars[0].Runtime, "ratelimit", "config"))
		if err := bad.Stop(5 * time.Second); err != nil {
			t.Error(err)
		}
	}
}

// doctorFindsMembers starts misconfigured members, each in a cluster of three others.
func doctorFindsMembers(t *testing.T, l *lab.Lab) {
	demo := func(o certs.DemoOptions, from string) string {
		dir := t.TempDir()
		if from != "" {
			for _, f := range []string{"ca.crt", "ca.key"} {
				b, err := os.ReadFile(l.CertFile("ca", filepath.Ext(f)))
				if err == nil {
					err = os.WriteFile(filepath.Join(dir, f), b, 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := certs.MakeDemo(dir, o); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	files := func(dir string) []string {
		f := certs.DemoFiles(dir, "sidecar")
		return []string{"--tls-cert", f.Cert, "--tls-key", f.Key, "--tls-ca", f.CA}
	}
	key := filepath.Join(t.TempDir(), "other.key")
	if err := os.WriteFile(key, []byte("MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, row := range []struct {
		plant
		args []string
	}{
		{plant{"another gossip key", "gossip keys", "fail", "cannot read each other's gossip", "--gossip-key-file"}, []string{"--gossip-key-file", key}},
		{plant{"another CA", "certificates", "fail", "trust different CAs", "the same --tls-ca"}, files(demo(certs.DemoOptions{}, ""))},
		{plant{"a certificate that ends", "certificates", "warn", "expires in 1h", "renew it"}, files(demo(certs.DemoOptions{Lifetime: 90 * time.Minute, Renew: true}, "lab"))},
		{plant{"names that no member has", "certificates", "fail", "the accepted names are spiffe://elsewhere/sidecar", "--tls-peer-names"}, []string{"--tls-peer-names", "spiffe://elsewhere/sidecar"}},
		{plant{"no --rls-advertise", "direct", "fail", "Envoys of other pods cannot call bad", "--rls-advertise"}, []string{"--rls-advertise", ""}},
		{plant{"another label", "one cluster", "fail", "the members belong to several clusters", "the same --cluster"}, []string{"--cluster", "other"}},
		{plant{"a wrong --expect", "expected", "warn", "--expect is 9, but there are 4 members", "lower --expect"}, []string{"--expect", "9"}},
		{plant{"too much weight", "capacity", "fail", "the members' weights sum to 1024", "raise --ring-capacity"}, []string{"--weight", "1021"}},
	} {
		s, err := l.AddSidecar(fmt.Sprintf("bad-%d", i), row.args...)
		if err != nil {
			t.Fatal(err)
		}
		l.Sidecars = l.Sidecars[:3] // the next one must not wait for it
		awaitPage(t, s.Metrics)
		row.await(t, "--member", l.Sidecars[0].Metrics+","+s.Metrics)
		if err := s.Stop(15 * time.Second); err != nil {
			t.Error(err)
		}
	}
}

func awaitPage(t *testing.T, at string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "the page at "+at, func(ctx context.Context) error { _, err := lab.Get(ctx, "http://"+at+"/v1/self"); return err }); err != nil {
		t.Fatal(err)
	}
}

// TestDoctorFindsSingles starts two members without --join, as two replicas of one image would be without more being said.
func TestDoctorFindsSingles(t *testing.T) {
	var ports lab.Ports
	var pages []string
	for _, name := range []string{"one", "two"} {
		addr := make([]string, 4)
		for i := range addr {
			a, err := ports.Addr()
			if err != nil {
				t.Fatal(err)
			}
			addr[i] = a
		}
		port := func(i int) string { _, p, _ := strings.Cut(addr[i], ":"); return p }
		p, err := lab.StartProcess(t.TempDir(), lab.Spec{Name: name, Path: filepath.Join(bin(t), "ratelimit"), Args: []string{"--node", name, "--metrics", addr[0], "--admin", ""}, Env: []string{
			"GRPC_PORT=" + port(1), "PORT=" + port(2), "DEBUG_PORT=" + port(3), "USE_STATSD=false", "RUNTIME_ROOT=" + t.TempDir(), "FORCE_START_WITHOUT_INITIAL_CONFIG=true",
		}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Stop(10 * time.Second) })
		awaitPage(t, addr[0])
		pages = append(pages, addr[0])
	}
	p := plant{"two that stand alone", "one cluster", "fail", "one runs standalone next to 1 other member: each admits the complete limit", "--join"}
	p.await(t, "--member", strings.Join(pages, ","))
	if all, code := examine(t.Context(), t, "--member", pages[0]); code != 1 || !slices.ContainsFunc(all, func(d diagnosis) bool { return d.Check == "rules" && strings.Contains(d.Text, "no rules in force") }) {
		t.Errorf("no rules: exit code %d, %+v", code, all)
	}
}

// TestCheckAndExplainFind holds that the mistakes of files are found without any member.
func TestCheckAndExplainFind(t *testing.T) {
	for _, row := range []struct {
		name, rules string
		command     []string
		code        int
		want        []string
	}{
		{"a misspelt key", "domain: d\ndescriptors:\n- key: k\n  ratelimit: {unit: day, requests_per_unit: 5}\n", []string{"check", "DIR"}, 1,
			[]string{"unknown key 'ratelimit'", "    4 |   ratelimit: ", "did you mean 'rate_limit'?"}},
		{"a key of ours at the wrong place", "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day, requests_per_unit: 5, algorithm: token_bucket}\n", []string{"check", "DIR"}, 1,
			[]string{"unknown key 'algorithm'", "write it under metadata.keyward of the descriptor"}},
		{"a rule that nothing reaches", "domain: d\ndescriptors:\n- {key: k, value: '*', rate_limit: {unit: day, requests_per_unit: 5}}\n- {key: k, value: 'gold*', rate_limit: {unit: day, requests_per_unit: 50}}\n", []string{"check", "DIR", "--strict"}, 1,
			[]string{"warning: ", "'d.k_gold*' is never reached: 'k_*' matches all its values"}},
		{"entries in another order", "domain: d\ndescriptors:\n- key: plan\n  descriptors:\n  - {key: user, rate_limit: {unit: day, requests_per_unit: 5}}\n", []string{"explain", "d", "user=bob", "plan=free", "--rules", "DIR"}, 0,
			[]string{"no_rule", "No descriptor under the domain matches user=bob", "the search ends here"}},
		{"a value that hides the rules of other values", "domain: d\ndescriptors:\n- key: plan\n  descriptors:\n  - {key: user, rate_limit: {unit: day, requests_per_unit: 5}}\n- {key: plan, value: gold}\n", []string{"explain", "d", "plan=gold", "user=bob", "--rules", "DIR"}, 0,
			[]string{"no_rule", "'plan_gold' takes precedence", "The match does not backtrack"}},
		{"another domain", "domain: edge\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 5}}\n", []string{"explain", "egde", "k=v", "--rules", "DIR"}, 0,
			[]string{"No rules are configured for the domain 'egde'", "Configured domains: edge"}},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "rules.yaml"), []byte(row.rules), 0o644); err != nil {
			t.Fatal(err)
		}
		for i, a := range row.command {
			row.command[i] = strings.Replace(a, "DIR", dir, 1)
		}
		out, code := tool(t.Context(), t, row.command...)
		for _, want := range row.want {
			if code != row.code || !strings.Contains(out, want) {
				t.Errorf("%s: exit code %d, %q is not in\n%s", row.name, code, want, out)
			}
		}
	}
}
