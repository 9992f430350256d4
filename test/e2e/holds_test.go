package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
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

// TestHoldsEnvoy streams answers of a model server through real Envoys. Each request reserves its estimate, and is charged
// what it spent when the stream is done.
func TestHoldsEnvoy(t *testing.T) {
	h := startHoldLab(t, holdRules)
	xds := startXDS(t, h.Lab, names(3))
	envoys := map[string]*lab.Envoy{"plain": h.envoy}
	for version, path := range envoyVersions(t) {
		name := "owner-direct-" + version
		envoys[name] = addEnvoy(t, h.Lab, lab.EnvoyOptions{
			Name: name, Path: path, Shape: "owner-direct", XDS: xds.Addr, Upstream: h.model.addr, Args: reserveArgs,
		}, "keyward", 3)
	}
	for name, e := range envoys {
		t.Run(name, func(t *testing.T) { h.settles(t, name, e) })
	}
}

// settles sends requests that end in every way, and compares what they are charged.
func (h *holdLab) settles(t *testing.T, envoy string, e *lab.Envoy) {
	for name, c := range map[string]struct {
		headers map[string]string
		status  int
		charged int // -1: the estimate
	}{
		"usage":              {map[string]string{usageHeader: "120"}, 200, 120},
		"no usage":           {map[string]string{usageHeader: "120", noUsage: "1"}, 200, -1},
		"error":              {map[string]string{statusHeader: "500"}, 500, 0},
		"overloaded":         {map[string]string{statusHeader: "429"}, 429, 0},
		"no tokens":          {map[string]string{usageHeader: "0"}, 200, 0},
		"all reserved":       {map[string]string{usageHeader: "285"}, 200, 285},
		"more than reserved": {map[string]string{usageHeader: "900"}, 200, 900},
	} {
		p := &prompt{tenant: envoy + " " + name, maxTokens: 200, headers: c.headers}
		if got := p.send(t, h.client, e.Listener); got != c.status {
			t.Errorf("%s: status %d", name, got)
		}
		want := c.charged
		if want < 0 {
			want = p.estimate()
		}
		awaitCount(t, h.Lab, "tenant", p.tenant, want)
		awaitCount(t, h.Lab, "streams", p.tenant, 0)
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
	h := &holdLab{Lab: newLab(t, lab.Options{Rules: map[string]string{"llm.yaml": rules}, Expect: 3}), model: startLLM(t)}
	start(t, h.Lab, names(3)...)
	h.envoy = addHoldEnvoy(t, h.Lab, h.model.addr, lab.EnvoyOptions{}, strings.NewReplacer())
	h.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 32}}
	t.Cleanup(h.client.CloseIdleConnections)
	return h
}

// reserveArgs are the arguments of keyward envoy-config for rules with tenants and streams.
var reserveArgs = []string{"--from", "tenant=header:x-tenant", "--from", "streams=header:x-streams", "--reserve", "openai", "--failure-mode-deny", "--timeout", "5s"}

// addHoldEnvoy starts an Envoy with the configuration that keyward prints. It asks the lab's sidecars in turn, so that
// holds are made and settled through different members.
func addHoldEnvoy(t testing.TB, l *lab.Lab, upstream string, o lab.EnvoyOptions, change *strings.Replacer) *lab.Envoy {
	t.Helper()
	args := append([]string{
		"envoy-config", "--shape", "plain", "--rules", filepath.Join(l.Sidecars[0].Runtime, "ratelimit", "config"),
		"--listen", "127.0.0.1:10000", "--envoy-admin", "127.0.0.1:9901", "--upstream", upstream, "--sidecar", "127.0.0.1:10001",
	}, reserveArgs...)
	out, err := exec.Command(filepath.Join(l.Bin, "keyward"), args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	var members strings.Builder
	for _, s := range l.Sidecars {
		host, port, _ := strings.Cut(s.RLS, ":")
		fmt.Fprintf(&members, "\n        - endpoint: {address: {socket_address: {address: %s, port_value: %s}}}", host, port)
	}
	o.Config = change.Replace(strings.NewReplacer(
		`"127.0.0.1", port_value: 10000`, "@HOST@, port_value: @PORT@", `"127.0.0.1", port_value: 9901`, "@ADMINHOST@, port_value: @ADMINPORT@",
		"\n        - endpoint: {address: {socket_address: {address: \"127.0.0.1\", port_value: 10001}}}", members.String(),
	).Replace(string(out)))
	return addEnvoy(t, l, o, "keyward", len(l.Sidecars))
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
	close(h.model.gates[1])
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
