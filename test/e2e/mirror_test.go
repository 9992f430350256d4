package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

const mirroredRules = `domain: edge
descriptors:
  - key: api_key
    rate_limit: {unit: year, requests_per_unit: 20}
`

// mirrored is a running `keyward mirror`.
type mirrored struct {
	*lab.Process
	rls, page string
}

func startMirror(t *testing.T, name, old, newer string, args ...string) *mirrored {
	t.Helper()
	var ports lab.Ports
	rls, err := ports.Addr()
	if err != nil {
		t.Fatal(err)
	}
	page, err := ports.Addr()
	if err != nil {
		t.Fatal(err)
	}
	return startMirrorAt(t, name, rls, page, append([]string{"--old", old, "--new", newer}, args...)...)
}

func startMirrorAt(t *testing.T, name, rls, page string, args ...string) *mirrored {
	t.Helper()
	p, err := lab.StartProcess(t.TempDir(), lab.Spec{
		Name: name, Path: filepath.Join(bin(t), "keyward"), Args: append([]string{"mirror", "--listen", rls, "--metrics", page}, args...),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Stop(20 * time.Second)
		if t.Failed() {
			t.Logf("%s:\n%s", name, p.Tail(4000))
		}
	})
	m := &mirrored{p, rls, page}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "health of "+name, func(ctx context.Context) error {
		_, err := lab.Get(ctx, "http://"+page+"/healthcheck")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return m
}

// mirrorSum is the part of the page that these tests read.
type mirrorSum struct {
	Compared    int            `json:"compared"`
	Differences map[string]int `json:"differences"`
	NotCompared map[string]int `json:"not_compared"`
	FellBack    int            `json:"fallbacks"`
	Ratio       float64        `json:"ratio"`
	Verdict     string         `json:"verdict"`
	Old         struct {
		Admitted int `json:"admitted"`
	} `json:"old"`
}

// sum waits until n requests are accounted for.
func (m *mirrored) sum(t *testing.T, n int) (s mirrorSum) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := lab.Await(ctx, fmt.Sprintf("%d requests compared", n), func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.page+"/", nil)
		if err != nil {
			return err
		}
		req.Header.Set("Accept", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		s = mirrorSum{}
		if err := json.NewDecoder(res.Body).Decode(&s); err != nil {
			return err
		}
		all := s.Compared
		for _, k := range s.NotCompared {
			all += k
		}
		if all < n {
			return fmt.Errorf("%+v", s)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return s
}

// exactly asks 30 times for each key, of which 20 fit, and wants the old service's verdicts.
func exactly(t *testing.T, envoy string, keys ...string) {
	t.Helper()
	for _, key := range keys {
		many := make([]string, 30)
		for i := range many {
			many[i] = key
		}
		if n := tally(sendKeys(envoy, many, 4)); n[http.StatusOK] != 20 || n[http.StatusTooManyRequests] != 10 {
			t.Errorf("%s: %v", key, n)
		}
	}
}

// The whole way over, as docs/migration.md has it: envoyproxy/ratelimit with its Redis, a real Envoy, three members, and
// the mirror between them. Whatever happens to Keyward, callers get what they got before.
func TestMirrorBetweenTheOriginalAndKeyward(t *testing.T) {
	o := newOriginal(t, map[string]string{"edge.yaml": mirroredRules}, "USE_STATSD=false", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0")
	o.theirs(t)
	l := newLab(t, lab.Options{Insecure: true, Expect: 3, Rules: map[string]string{"edge.yaml": mirroredRules}, Env: []string{"LIMIT_RESPONSE_HEADERS_ENABLED=true"}})
	start(t, l, names(3)...)
	m := startMirror(t, "mirror", o.grpc, l.Sidecars[0].RLS, "--timeout", "15s") // a busy machine is to change nothing
	app := startUpstream(t)
	envoy, err := l.AddEnvoy(lab.EnvoyOptions{
		Name: "envoy", Path: envoyBinary(t), Shape: "plain", Upstream: app.addr,
		Args: []string{"--from", "api_key=header:x-api-key", "--sidecar", m.rls, "--failure-mode-deny", "--timeout", "5s"},
	})
	if err != nil {
		t.Fatal(err)
	}
	awaitReady(t, envoy)

	exactly(t, envoy.Listener, "a", "b", "c", "d")
	s := m.sum(t, 120)
	if s.Compared != 120 || s.Differences["other"] != 0 || s.Ratio != 1 || s.Old.Admitted != 80 {
		t.Errorf("the same rules: %+v", s)
	}

	// Keyward gets another limit: callers do not see it, the mirror does.
	other := strings.Replace(mirroredRules, "20", "5", 1)
	for _, side := range l.Sidecars {
		if err := l.WriteRules(side, map[string]string{"edge.yaml": other}); err != nil {
			t.Fatal(err)
		}
	}
	for _, side := range l.Sidecars {
		awaitLimit(t, side.RLS, 5)
	}
	exactly(t, envoy.Listener, "e")
	s = m.sum(t, 150)
	if s.Differences["other"] != 30 || !strings.Contains(m.Tail(20000), `"fields":["limit","remaining"`) {
		t.Errorf("another limit: %+v", s)
	}

	// It hangs, and it dies.
	for _, side := range l.Sidecars {
		if err := side.Pause(); err != nil {
			t.Fatal(err)
		}
	}
	exactly(t, envoy.Listener, "f")
	for _, side := range l.Sidecars {
		side.Kill()
	}
	exactly(t, envoy.Listener, "g")
	s = m.sum(t, 210)
	if s.NotCompared["new_failed"] != 60 || s.Compared != 150 {
		t.Errorf("without Keyward: %+v", s)
	}

	// The second half: a mirror in the same place answers with Keyward's verdicts, and with the old ones while there are none.
	if err := m.Stop(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	if text := m.Tail(4000); !strings.Contains(text, "admitted, new / old") {
		t.Errorf("no sum at the end:\n%s", text)
	}
	m = startMirrorAt(t, "mirror-new", m.rls, m.page, "--old", o.grpc, "--new", l.Sidecars[0].RLS, "--answer", "new", "--log", "")
	exactly(t, envoy.Listener, "h")
	if s = m.sum(t, 30); s.FellBack != 30 {
		t.Errorf("without Keyward: %+v", s)
	}
	for _, side := range l.Sidecars {
		if err := l.Restart(side); err != nil {
			t.Fatal(err)
		}
	}
	awaitRing(t, l, names(3)...)
	awaitLimit(t, m.rls, 5)
	many := strings.Split(strings.Repeat("i,", 29)+"i", ",")
	if n := tally(sendKeys(envoy.Listener, many, 4)); n[http.StatusOK] != 5 || n[http.StatusTooManyRequests] != 25 {
		t.Errorf("the verdicts are not Keyward's: %v", n)
	}
}

// awaitLimit waits until a service applies a limit.
func awaitLimit(t *testing.T, addr string, limit uint32) {
	t.Helper()
	c := dial(t, addr, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "the new limit", func(ctx context.Context) error {
		res, err := c.ShouldRateLimit(ctx, peek("edge", "api_key", "unused"))
		if err != nil {
			return err
		}
		if n := res.Statuses[0].CurrentLimit.GetRequestsPerUnit(); n != limit {
			return fmt.Errorf("limit %d", n)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
