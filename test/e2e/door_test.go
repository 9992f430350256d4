package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

const doorRules = `
domain: app
descriptors:
  - {key: key, rate_limit: {unit: hour, requests_per_unit: 1000}}
  - {key: three, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: api_key, rate_limit: {unit: hour, requests_per_unit: 3}}
`

// python is an interpreter that has grpcio: KEYWARD_PYTHON names it, scripts/python prepares it.
func python(t *testing.T) string {
	t.Helper()
	path := os.Getenv("KEYWARD_PYTHON")
	required := path != ""
	if !required {
		path = "python3"
	}
	if out, err := exec.Command(path, "-c", "import grpc").CombinedOutput(); err != nil {
		if required {
			t.Fatalf("KEYWARD_PYTHON=%s has no grpcio: %v\n%s", path, err, out)
		}
		t.Skip("no Python with grpcio: KEYWARD_PYTHON names one, scripts/python prepares it")
	}
	return path
}

// TestDoorPython asks the RLS ports with gRPC's C core, in the clear and with mTLS.
func TestDoorPython(t *testing.T) {
	interpreter := python(t)
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": doorRules}, Expect: 1})
	start(t, l, "pod-a")
	s := l.Sidecars[0]
	for name, args := range map[string][]string{
		"in the clear": {s.RLS, "plain"},
		"mTLS":         {s.Direct, "mtls", l.CertFile("ca", ".crt"), l.CertFile("envoy", ".crt"), l.CertFile("envoy", ".key")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			askByPython(t, exec.Command(interpreter, append([]string{"testdata/door.py"}, args...)...))
		})
	}
}

func askByPython(t *testing.T, script *exec.Cmd) {
	var complaints bytes.Buffer
	script.Stderr = &complaints
	out, err := script.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, complaints.Bytes())
	}
	var got map[string]any
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := map[string]any{
		"five":       []any{"OK", "OK", "OK", "OVER_LIMIT", "OVER_LIMIT"},
		"concurrent": map[string]any{"OK": 500.0}, "tight": map[string]any{"OK": 500.0}, "threads": map[string]any{"OK": 400.0},
		"metadata": "OK", "compressed": "OK", "large": "OVER_LIMIT", "too large": "RESOURCE_EXHAUSTED", "garbage": "INTERNAL", "no domain": "UNKNOWN",
		"unknown": "UNIMPLEMENTED", "health": "OK", "canceled": "OK", "pinging": []any{"OK", "idle", "OK"},
	}
	if len(script.Args) > 4 {
		want["health"] = "UNIMPLEMENTED" // that port is for rate limiting alone
	}
	for name := range want {
		if !reflect.DeepEqual(got[name], want[name]) {
			t.Errorf("%s: %v, want %v", name, got[name], want[name])
		}
	}
}

// plainEnvoy starts an Envoy that asks one address, with changes to the bootstrap that the tool prints.
func plainEnvoy(t *testing.T, l *lab.Lab, o lab.EnvoyOptions, addr string, change *strings.Replacer, args ...string) *lab.Envoy {
	t.Helper()
	args = append([]string{
		"envoy-config", "--shape", "plain", "--rules", filepath.Join(l.Sidecars[0].Runtime, "ratelimit", "config"), "--from", "api_key=header:x-api-key",
		"--listen", "127.0.0.1:10000", "--envoy-admin", "127.0.0.1:9901", "--upstream", startUpstream(t).addr, "--sidecar", addr, "--timeout", "5s",
	}, args...)
	out, err := exec.Command(filepath.Join(l.Bin, "keyward"), args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	o.Config = change.Replace(strings.NewReplacer(`"127.0.0.1", port_value: 10000`, "@HOST@, port_value: @PORT@", `"127.0.0.1", port_value: 9901`, "@ADMINHOST@, port_value: @ADMINPORT@").Replace(string(out)))
	return addEnvoy(t, l, o, "keyward", 1)
}

// smallWindows has Envoy let the door send as little as it can, and open as few calls at once as makes them queue.
var smallWindows = strings.NewReplacer("http2_protocol_options: {}", "http2_protocol_options: {initial_stream_window_size: 65535, initial_connection_window_size: 65535, max_concurrent_streams: 4, hpack_table_size: 0}")

// TestDoorEnvoys asks the door by Envoys of several versions, in the clear and with mTLS, with windows of the usual size and small
// ones: no request is lost, and limits hold to the hit.
func TestDoorEnvoys(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": doorRules}, Expect: 1})
	start(t, l, "pod-a")
	s := l.Sidecars[0]
	mtls := []string{"--sidecar-tls", "--tls-cert", l.CertFile("envoy", ".crt"), "--tls-key", l.CertFile("envoy", ".key"), "--tls-ca", l.CertFile("ca", ".crt")}
	for version, path := range map[string]string{"1.40": envoyBinary(t), "1.38": os.Getenv("ENVOY_1_38"), "1.36": os.Getenv("ENVOY_1_36")} {
		for name, way := range map[string]struct {
			addr   string
			args   []string
			change *strings.Replacer
		}{
			"plain": {s.RLS, nil, strings.NewReplacer()}, "plain-small": {s.RLS, nil, smallWindows},
			"mtls": {s.Direct, mtls, strings.NewReplacer()}, "mtls-small": {s.Direct, mtls, smallWindows},
		} {
			t.Run(version+", "+name, func(t *testing.T) {
				if path == "" {
					t.Skip("no Envoy of this version")
				}
				e := plainEnvoy(t, l, lab.EnvoyOptions{Name: "envoy-" + version + name, Path: path}, way.addr, way.change, way.args...)
				var keys []string
				for range 5 {
					keys = append(keys, envoyKeys(version+name, 400)...)
				}
				if got, want := tally(sendKeys(e.Listener, keys, 32)), map[int]int{200: 1200, 429: 800}; !maps.Equal(got, want) {
					t.Errorf("%v, want %v", got, want)
				}
				wantNoFailures(t, e)
				if err := e.Stop(5 * time.Second); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// connectionsEnd asks without a pause for three seconds, and until four connections were asked to end.
func connectionsEnd(t *testing.T, e *lab.Envoy, name string) {
	begin, asked, ended := time.Now(), 0, 0.0
	for ; ended < 4 || time.Since(begin) < 3*time.Second; asked++ {
		if time.Since(begin) > 20*time.Second {
			t.Fatalf("%v connections were asked to end in 20 s", ended)
		}
		key := fmt.Sprint(name, asked)
		if got := tally(sendKeys(e.Listener, slices.Repeat([]string{key}, 50), 16)); got[200] != 3 || got[429] != 47 {
			t.Fatalf("%v, want 3 of 50 admitted", got)
		}
		var err error
		if ended, err = e.Stat(t.Context(), "cluster.keyward.upstream_cx_close_notify"); err != nil {
			t.Fatal(err)
		}
	}
	wantNoFailures(t, e)
	t.Logf("%d requests, %v connections in %v", 50*asked, ended, time.Since(begin).Round(time.Millisecond))
}

// TestDoorConnectionsEnd has connections live for half a second, and for a second over TLS, while Envoys ask without a pause: every one
// of them ends without a request that fails.
func TestDoorConnectionsEnd(t *testing.T) {
	l := newLab(t, lab.Options{
		Rules: map[string]string{"app.yaml": doorRules}, Expect: 1, Args: []string{"--connection-age", "1s"},
		Env: []string{"GRPC_MAX_CONNECTION_AGE=500ms", "GRPC_MAX_CONNECTION_AGE_GRACE=10s"},
	})
	start(t, l, "pod-a")
	s := l.Sidecars[0]
	mtls := []string{"--sidecar-tls", "--tls-cert", l.CertFile("envoy", ".crt"), "--tls-key", l.CertFile("envoy", ".key"), "--tls-ca", l.CertFile("ca", ".crt")}
	for name, e := range map[string]*lab.Envoy{
		"in the clear": plainEnvoy(t, l, lab.EnvoyOptions{Name: "envoy-plain"}, s.RLS, strings.NewReplacer()),
		"mTLS":         plainEnvoy(t, l, lab.EnvoyOptions{Name: "envoy-mtls"}, s.Direct, strings.NewReplacer(), mtls...),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			connectionsEnd(t, e, name)
		})
	}
}
