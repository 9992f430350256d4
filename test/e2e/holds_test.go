package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

const holdRules = `
domain: llm
descriptors:
- key: tenant
  rate_limit: {unit: hour, requests_per_unit: 1000000}
  metadata: {keyward: {reserve: 4096}}
- key: tenant
  value: small
  rate_limit: {unit: hour, requests_per_unit: 1000}
  metadata: {keyward: {reserve: 1000}}
- key: streams
  rate_limit: {unit: minute, requests_per_unit: 16}
  metadata: {keyward: {algorithm: in_flight, window: 10m}}
`

// TestHoldsEnvoy streams answers of a model server through a real Envoy. Each request reserves its estimate, and is
// charged what it spent when the stream is done.
func TestHoldsEnvoy(t *testing.T) {
	h := startHoldLab(t, holdRules)
	for _, c := range []struct {
		name    string
		headers map[string]string
		status  int
		charged int // -1: the estimate
	}{
		{"usage", map[string]string{usageHeader: "120"}, 200, 120},
		{"no usage", map[string]string{usageHeader: "120", noUsage: "1"}, 200, -1},
		{"error", map[string]string{statusHeader: "500"}, 500, 0},
		{"overloaded", map[string]string{statusHeader: "429"}, 429, 0},
		{"no tokens", map[string]string{usageHeader: "0"}, 200, 0},
		{"all reserved", map[string]string{usageHeader: "285"}, 200, 285},
		{"more than reserved", map[string]string{usageHeader: "900"}, 200, 900},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &prompt{tenant: strings.ReplaceAll(c.name, " ", "-"), maxTokens: 200, headers: c.headers}
			if got := p.send(t, h.client, h.envoy.Listener); got != c.status {
				t.Fatalf("status %d", got)
			}
			want := c.charged
			if want < 0 {
				want = p.estimate()
			}
			awaitCount(t, h.Lab, "tenant", p.tenant, want)
			awaitCount(t, h.Lab, "streams", p.tenant, 0)
		})
	}
}

// holdLab is three sidecars behind a real Envoy, in front of a model server.
type holdLab struct {
	*lab.Lab
	model  *llm
	envoy  *lab.Envoy
	client *http.Client
}

func startHoldLab(t *testing.T, rules string) *holdLab {
	t.Helper()
	h := &holdLab{Lab: newLab(t, lab.Options{Rules: map[string]string{"llm.yaml": rules}, Expect: 3, Insecure: true}), model: startLLM(t)}
	start(t, h.Lab, names(3)...)
	h.envoy = addEnvoy(t, h.Lab, lab.EnvoyOptions{Config: holdEnvoy(t, h.Lab, h.model.addr)}, "keyward", 3)
	h.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 32}}
	t.Cleanup(h.client.CloseIdleConnections)
	return h
}

// TestHoldsRefusedEnvoy holds that a refused request charges nothing, whichever of its limits refuses it, and that slots
// come back.
func TestHoldsRefusedEnvoy(t *testing.T) {
	h := startHoldLab(t, holdRules)
	large := &prompt{tenant: "small", maxTokens: 2000}
	if got := large.send(t, h.client, h.envoy.Listener); got != http.StatusTooManyRequests {
		t.Errorf("a request above the budget: status %d", got)
	}
	awaitCount(t, h.Lab, "tenant", "small", 0)
	awaitCount(t, h.Lab, "streams", "small", 0)

	p := &prompt{tenant: "busy", maxTokens: 200, headers: map[string]string{usageHeader: "50", holdHeader: "1"}}
	var open []*http.Response
	for range 16 {
		res, err := p.start(t.Context(), h.client, h.envoy.Listener)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatal(res, err)
		}
		open = append(open, res)
	}
	awaitCount(t, h.Lab, "streams", "busy", 16)
	awaitCount(t, h.Lab, "tenant", "busy", 16*p.estimate())
	if got := p.send(t, h.client, h.envoy.Listener); got != http.StatusTooManyRequests {
		t.Errorf("a 17th stream: status %d", got)
	}
	awaitCount(t, h.Lab, "streams", "busy", 16)
	awaitCount(t, h.Lab, "tenant", "busy", 16*p.estimate())
	close(h.model.gate)
	for _, res := range open {
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			t.Error(err)
		}
		res.Body.Close()
	}
	awaitCount(t, h.Lab, "streams", "busy", 0)
	awaitCount(t, h.Lab, "tenant", "busy", 16*50)
}

// TestHoldsBrokenOffEnvoy breaks off requests: while a stream lasts, the estimate remains charged and the slot comes back;
// before the sidecar has answered, nothing remains.
func TestHoldsBrokenOffEnvoy(t *testing.T) {
	h := startHoldLab(t, holdRules)
	p := &prompt{tenant: "gone", maxTokens: 200, headers: map[string]string{usageHeader: "50", holdHeader: "1"}}
	res, err := p.start(t.Context(), h.client, h.envoy.Listener)
	if err != nil {
		t.Fatal(err)
	}
	awaitCount(t, h.Lab, "streams", "gone", 1)
	res.Body.Close()
	awaitCount(t, h.Lab, "streams", "gone", 0)
	awaitCount(t, h.Lab, "tenant", "gone", p.estimate())

	for _, s := range h.Sidecars {
		if err := s.Pause(); err != nil {
			t.Fatal(err)
		}
	}
	active := func(want float64) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := lab.Await(ctx, fmt.Sprintf("%v calls", want), func(ctx context.Context) error {
			n, err := h.envoy.Stat(ctx, "cluster.keyward.upstream_rq_active")
			if err == nil && n != want {
				err = fmt.Errorf("%v", n)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	early := *p
	early.tenant = "early"
	ended := make(chan error)
	go func() {
		res, err := early.start(ctx, h.client, h.envoy.Listener)
		if err == nil {
			res.Body.Close()
		}
		ended <- err
	}()
	active(1)
	cancel()
	if err := <-ended; err == nil {
		t.Error("a request that was broken off has an answer")
	}
	active(0)
	for _, s := range h.Sidecars {
		if err := s.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	h.awaitMetric(t, "keyward_holds_abandoned_total", 2)
	awaitCount(t, h.Lab, "tenant", "early", 0)
	awaitCount(t, h.Lab, "streams", "early", 0)
}

// awaitMetric waits until a metric has this sum over all members.
func (h *holdLab) awaitMetric(t *testing.T, name string, want float64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := lab.Await(ctx, fmt.Sprintf("%s %v", name, want), func(context.Context) error {
		if got := sum(t, h.Lab, name); got != want {
			return fmt.Errorf("%v", got)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// awaitCount waits until the counter of a tenant has this count, and checks that it stays.
func awaitCount(t *testing.T, l *lab.Lab, key, tenant string, want int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var last error
	if lab.Await(ctx, "the count", func(ctx context.Context) error {
		c, err := lab.CounterOf(ctx, l.Sidecars[0].Metrics, "llm", key, tenant)
		if err == nil && c.Count != uint64(want) {
			err = fmt.Errorf("%+v", c)
		}
		if ctx.Err() == nil {
			last = err
		}
		return err
	}) != nil {
		t.Errorf("%s %s: want %d hits: %v", key, tenant, want, last)
	}
}

// holdEnvoy is the configuration of an Envoy that asks the lab's sidecars in turn.
func holdEnvoy(t testing.TB, l *lab.Lab, upstream string) string {
	t.Helper()
	b, err := os.ReadFile("testdata/holds.envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	address := func(a string) string {
		host, port, err := net.SplitHostPort(a)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("{socket_address: {address: %s, port_value: %s}}", host, port)
	}
	members := make([]string, len(l.Sidecars))
	for i, s := range l.Sidecars {
		members[i] = "{endpoint: {address: " + address(s.RLS) + "}}"
	}
	return strings.NewReplacer("@UPSTREAM@", address(upstream), "@MEMBERS@", strings.Join(members, ", ")).Replace(string(b))
}
