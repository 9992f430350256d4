package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// clientRules have one rule for each of the headers that clients read.
const clientRules = `domain: app
descriptors:
  - key: api_key
    rate_limit: {unit: year, requests_per_unit: 2}
`

// printed returns the bootstrap of `keyward envoy-config`, for lab.EnvoyOptions.Config.
func printed(t testing.TB, l *lab.Lab, args ...string) string {
	t.Helper()
	args = append([]string{"envoy-config", "--rules", filepath.Join(l.Sidecars[0].Runtime, "ratelimit", "config"),
		"--from", "api_key=header:x-api-key", "--failure-mode-deny", "--listen", "127.0.0.1:1", "--envoy-admin", "127.0.0.1:2"}, args...)
	out, err := exec.Command(filepath.Join(l.Bin, "keyward"), args...).Output()
	if err != nil {
		t.Fatalf("keyward %s: %v", strings.Join(args, " "), err)
	}
	return strings.NewReplacer("port_value: 1}", "port_value: @PORT@}", "port_value: 2}", "port_value: @ADMINPORT@}").Replace(string(out))
}

// withAccessLog adds an access log with the decision of each request to a bootstrap.
func withAccessLog(config, file string) string {
	const at = "          http_filters:\n"
	format := "%REQ(X-API-KEY)% %RESPONSE_CODE%"
	for _, field := range []string{"authority", "path", "delay"} {
		format += " %DYNAMIC_METADATA(envoy.filters.http.ratelimit:keyward:" + field + ")%"
	}
	return strings.Replace(config, at, `          access_log:
          - name: envoy.access_loggers.file
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
              path: `+file+`
              log_format: {text_format_source: {inline_string: "`+format+`\n"}}
`+at, 1)
}

// envoyVersions are the Envoys under test by version.
func envoyVersions(t testing.TB) map[string]string {
	all := map[string]string{"1.40.0": envoyBinary(t)}
	if p := os.Getenv("ENVOY_1_36"); p != "" {
		all["1.36.4"] = p
	}
	return all
}

// get sends a request with a key through Envoy, and returns the answer's status and headers.
func get(t testing.TB, envoy, key string) (int, http.Header) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+envoy+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("x-api-key", key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	res.Body.Close()
	return res.StatusCode, res.Header
}

// TestClientHeaders sends requests through Envoys of both versions, in two shapes, with and without Envoy's own
// Retry-After. Each denial has one Retry-After, and the IETF's fields and the decision are those of the counter.
func TestClientHeaders(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": clientRules}, Expect: 3,
		Args: []string{"--retry-after", "--ratelimit-fields", "--decision-headers", "--decision-metadata"}})
	start(t, l, names(3)...)
	xds := startXDS(t, l, names(3))
	up := startUpstream(t).addr
	tls := []string{"--tls-cert", l.CertFile("envoy", ".crt"), "--tls-key", l.CertFile("envoy", ".key"), "--tls-ca", l.CertFile("ca", ".crt")}
	shapes := map[string][]string{
		"plain":        {"--shape", "plain", "--sidecar", l.Sidecars[0].RLS, "--upstream", up, "--timeout", "5s"},
		"owner-direct": append([]string{"--shape", "owner-direct", "--xds", xds.Addr, "--upstream", up, "--timeout", "5s"}, tls...),
	}
	n := 0
	for version, path := range envoyVersions(t) {
		for shape, args := range shapes {
			for _, own := range []bool{false, true} {
				if own && version != "1.40.0" {
					continue
				}
				n++
				name := fmt.Sprintf("%s-%s-%v", shape, version, own)
				file := filepath.Join(l.Dir, name+".access")
				if own {
					args = append(args, "--envoy-version", "1.40")
				}
				e, err := l.AddEnvoy(lab.EnvoyOptions{Name: name, Path: path, Config: withAccessLog(printed(t, l, args...), file)})
				if err != nil {
					t.Fatal(err)
				}
				if shape == "plain" {
					awaitReady(t, e)
				} else {
					awaitEnvoy(t, e, "keyward", 3)
				}
				clientHeaders(t, name, e.Listener)
				if err := e.Stop(5 * time.Second); err != nil { // writes the rest of its access log
					t.Error(err)
				}
				log, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				want := regexp.MustCompile(`(?m)^` + name + `-\d (200|429) full (local|forwarded) -$`)
				if found := want.FindAll(log, -1); len(found) != 12 {
					t.Errorf("%s: %d lines with exact decisions in the access log, want 12:\n%s", name, len(found), log)
				}
				if direct := strings.Count(string(log), "full local"); shape == "owner-direct" && direct != 12 {
					t.Errorf("%s: %d of 12 decided by the member that Envoy called", name, direct)
				}
			}
		}
	}
	if n < 4 {
		t.Logf("%d of 6 cases: ENVOY_1_36 is not set", n)
	}
}

// clientHeaders spends the limits of four keys through an Envoy.
func clientHeaders(t *testing.T, name, envoy string) {
	t.Helper()
	for k := range 4 {
		for hit := range 3 {
			status, h := get(t, envoy, fmt.Sprint(name, "-", k))
			left := strconv.Itoa(max(0, 1-hit))
			reset := h.Get("x-ratelimit-reset")
			if want := [...]int{200, 200, 429}[hit]; status != want {
				t.Fatalf("%s: status %d of hit %d", name, status, hit)
			}
			if again := h.Values("Retry-After"); status == 200 && len(again) != 0 || status == 429 && (len(again) != 1 || again[0] != reset) {
				t.Errorf("%s: status %d has Retry-After %q, and x-ratelimit-reset is %s", name, status, again, reset)
			}
			for header, want := range map[string]string{
				"RateLimit-Policy":      `"api_key";q=2;w=31536000`,
				"RateLimit":             `"api_key";r=` + left + ";t=" + reset,
				"X-Ratelimit-Remaining": left,
				"X-Keyward-Authority":   "full",
			} {
				if got := h.Values(header); len(got) != 1 || got[0] != want {
					t.Errorf("%s: hit %d has %s: %q, want %s", name, hit, header, got, want)
				}
			}
			if p := h.Get("X-Keyward-Path"); p != "local" && p != "forwarded" {
				t.Errorf("%s: path %q", name, p)
			}
		}
	}
}

// denied spends a key's limit of longRules and checks that the denial has one Retry-After.
func denied(t *testing.T, envoy, key string) {
	t.Helper()
	for range 100 {
		if status, h := get(t, envoy, key); status != 200 || len(h.Values("Retry-After")) > 0 {
			t.Fatalf("%s: %d with Retry-After %q", key, status, h.Values("Retry-After"))
		}
	}
	status, h := get(t, envoy, key)
	again := h.Values("Retry-After")
	if seconds, err := strconv.Atoi(strings.Join(again, ",")); status != 429 || err != nil || seconds < 1 || seconds > 365*24*3600 {
		t.Errorf("%s: %d with Retry-After %q", key, status, again)
	}
}

// TestDegradedInAccessLog pauses the owner of a key. The access log then shows which answers are exact, and which
// are of the degraded policy.
func TestDegradedInAccessLog(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": longRules}, Expect: 3, Args: []string{"--decision-metadata", "--decision-headers"}})
	start(t, l, names(3)...)
	file := filepath.Join(l.Dir, "access")
	e, err := l.AddEnvoy(lab.EnvoyOptions{Name: "envoy", Path: envoyBinary(t),
		Config: withAccessLog(printed(t, l, "--shape", "plain", "--sidecar", l.Sidecars[0].RLS, "--upstream", startUpstream(t).addr, "--timeout", "2s"), file)})
	if err != nil {
		t.Fatal(err)
	}
	awaitReady(t, e)
	key := ""
	for k, o := range owners(t, l, names(3), distinctKeys("k", 40)) {
		if o == names(3)[1] && !strings.ContainsAny(k, "\u00fc") {
			key = k
		}
	}
	if _, h := get(t, e.Listener, key); h.Get("X-Keyward-Authority") != "full" || h.Get("X-Keyward-Path") != "forwarded" {
		t.Errorf("with its owner: %v", h)
	}
	if err := l.Sidecars[1].Pause(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Sidecars[1].Signal(syscall.SIGCONT) })
	if status, h := get(t, e.Listener, key); status != 200 || h.Get("X-Keyward-Authority") != "share" || h.Get("X-Keyward-Path") != "degraded" {
		t.Errorf("without its owner: %d, %v", status, h)
	}
	if err := e.Stop(5 * time.Second); err != nil {
		t.Error(err)
	}
	log, err := os.ReadFile(file)
	if want := key + " 200 full forwarded -\n" + key + " 200 share degraded -\n"; err != nil || string(log) != want {
		t.Errorf("access log %q, %v, want %q", log, err, want)
	}
}

// delays records the requests that reach an application, by the value of their header x-n.
type delays struct {
	addr string
	mu   sync.Mutex
	seen map[string][]string // their delays in milliseconds
}

func startDelays(t *testing.T) *delays {
	t.Helper()
	d := &delays{seen: map[string][]string{}}
	d.addr = startHandler(t, func(_ http.ResponseWriter, r *http.Request) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.seen[r.Header.Get("x-n")] = r.Header.Values("x-envoy-fault-delay-request")
	})
	return d
}

// TestLeakyBucketDelaysRequests has Envoy's fault filter delay the requests of a leaky bucket by what the member
// answers. Clients cannot choose the delay.
func TestLeakyBucketDelaysRequests(t *testing.T) {
	l := newLab(t, lab.Options{Insecure: true, Args: []string{"--delay-header", "x-envoy-fault-delay-request", "--decision-headers", "--decision-metadata"}, Rules: map[string]string{"app.yaml": `domain: app
descriptors:
  - key: api_key
    rate_limit: {unit: second, requests_per_unit: 4}
    metadata: {keyward: {algorithm: leaky_bucket, burst: 8}}
`}})
	start(t, l, names(1)...)
	for version, path := range envoyVersions(t) {
		d, file := startDelays(t), filepath.Join(l.Dir, version+".access")
		e, err := l.AddEnvoy(lab.EnvoyOptions{Name: "envoy-" + version, Path: path,
			Config: withAccessLog(printed(t, l, "--shape", "plain", "--sidecar", l.Sidecars[0].RLS, "--upstream", d.addr, "--timeout", "5s", "--delay"), file)})
		if err != nil {
			t.Fatal(err)
		}
		awaitReady(t, e)
		const sent = 8
		sendAtOnce(t, e.Listener, version, sent)
		delayed := 0
		d.mu.Lock()
		for n := range sent {
			header, ok := d.seen[strconv.Itoa(n)]
			switch {
			case !ok:
				t.Errorf("%s: request %d did not arrive", version, n)
			case len(header) > 1 || len(header) == 1 && header[0] == "0":
				t.Errorf("%s: request %d arrived with the delay %q: that of the client", version, n, header)
			case len(header) == 1:
				delayed++
			}
		}
		d.mu.Unlock()
		injected, err := e.StatSum(t.Context(), ".fault.delays_injected")
		if err != nil || delayed == 0 || injected != float64(delayed) {
			t.Errorf("%s: %d of %d requests with a delay, and Envoy delayed %v, %v", version, delayed, sent, injected, err)
		}
		if err := e.Stop(5 * time.Second); err != nil { // writes the rest of its access log
			t.Error(err)
		}
		log, err := os.ReadFile(file)
		if n := len(regexp.MustCompile(`(?m) 200 full local [0-9.]*[1-9]$`).FindAll(log, -1)); err != nil || n != delayed {
			t.Errorf("%s: %d delays in the access log, %v, want %d:\n%s", version, n, err, delayed, log)
		}
	}
}

// sendAtOnce sends requests with one key at the same time, with their numbers as x-n and with delays of the client.
func sendAtOnce(t *testing.T, envoy, key string, n int) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+envoy+"/", nil)
			if err != nil {
				t.Error(err)
				return
			}
			for name, v := range map[string]string{
				"x-api-key": key, "x-n": strconv.Itoa(i),
				"x-envoy-fault-delay-request": "0", "x-envoy-fault-delay-request-percentage": "0",
			} {
				req.Header.Set(name, v)
			}
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			res.Body.Close()
			if res.StatusCode != http.StatusOK || res.Header.Get("X-Keyward-Delay") == "" {
				t.Errorf("request %d: %s, %v", i, res.Status, res.Header)
			}
		})
	}
	wg.Wait()
}
