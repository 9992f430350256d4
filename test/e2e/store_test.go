package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/internal/lab"
)

const storeRules = `domain: app
descriptors:
  - key: exact
    rate_limit: {unit: year, requests_per_unit: 600}
    metadata: {keyward: {federation: {lease_max: 30}}}
  - key: reclaimed
    rate_limit: {unit: year, requests_per_unit: 600}
    metadata: {keyward: {federation: {lease_max: 30, reclaim: ttl, ttl: 2s}}}
  - key: crashed
    rate_limit: {unit: year, requests_per_unit: 600}
    metadata: {keyward: {federation: {lease_max: 30, reclaim: crash}}}
  - key: approximate
    rate_limit: {unit: year, requests_per_unit: 3000}
    metadata: {keyward: {federation: {mechanism: approximate, epsilon: 3%, sync_interval: 200ms}}}
  - key: checked
    rate_limit: {unit: year, requests_per_unit: 1000}
    metadata: {keyward: {federation: {mechanism: approximate, epsilon: 9%, sync_interval: 200ms, low_watermark: 30%}}}
`

// storeHolders are sidecars that do not know each other: what they share is in a real Redis.
type storeHolders struct {
	*testing.T
	lab     *lab.Lab
	clients []rlsv3.RateLimitServiceClient
}

func newStoreHolders(t *testing.T) *storeHolders {
	t.Helper()
	x := newRealRedis(t)
	layout := filepath.Join(x.dir, "federation.yaml")
	if err := os.WriteFile(layout, []byte("name: shop\nepoch: 1\ncoordinator: redis\nholders: 3\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	h := &storeHolders{T: t, lab: newLab(t, lab.Options{Rules: map[string]string{"app.yaml": storeRules}, Args: []string{
		"--federation", layout, "--authority", "redis=redis://" + x.addr,
	}})}
	for _, name := range names(3) {
		s, err := h.lab.AddSidecar(name, "--join", "") // no gossip
		if err != nil {
			t.Fatal(err)
		}
		h.clients = append(h.clients, dial(t, s.RLS, nil))
	}
	for _, s := range h.lab.Sidecars {
		h.ready(s)
	}
	return h
}

func (h *storeHolders) ready(s *lab.Sidecar) {
	h.Helper()
	ctx, cancel := context.WithTimeout(h.Context(), 20*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "readiness of "+s.Name, func(ctx context.Context) error {
		_, err := lab.Get(ctx, "http://"+s.Metrics+"/readyz")
		return err
	}); err != nil {
		h.Fatal(err)
	}
}

// storeOutcome counts what clients saw.
type storeOutcome struct{ admitted, refused, failed int }

// spend sends hits to sidecar i, one after the other, until n of them are admitted or so many in a row are not.
func (h *storeHolders) spend(i int, rule string, n, misses int) (o storeOutcome) {
	for missed := 0; o.admitted < n && missed < misses; {
		ctx, cancel := context.WithTimeout(h.Context(), 2*time.Second)
		res, err := h.clients[i].ShouldRateLimit(ctx, request("app", 1, rule, "k"))
		cancel()
		missed++
		switch {
		case err != nil:
			o.failed++
		case res.OverallCode != rlsv3.RateLimitResponse_OK:
			o.refused++
		default:
			o.admitted++
			missed = 0
		}
	}
	return o
}

// drain has sidecars spend what is left of a rule at the same time, until it is used up.
func (h *storeHolders) drain(rule string, sidecars ...int) (sum storeOutcome) {
	var all sync.WaitGroup
	var mu sync.Mutex
	for _, i := range sidecars {
		all.Go(func() {
			o := h.spend(i, rule, 1<<20, 50)
			mu.Lock()
			defer mu.Unlock()
			sum.admitted += o.admitted
			sum.refused += o.refused
			sum.failed += o.failed
		})
	}
	all.Wait()
	return sum
}

func (h *storeHolders) kill(i int) {
	h.Helper()
	if err := h.lab.Sidecars[i].Signal(syscall.SIGKILL); err != nil {
		h.Fatal(err)
	}
	_ = h.lab.Sidecars[i].Stop(5 * time.Second) // awaits its end
}

// TestLeasesFromAStore kills one of three sidecars that lease parts of limits from Redis and cannot gossip. Together they
// admit at most the limit. What the one had not spent is lost with reclaim: none, and comes back with ttl and crash: then
// the limit is used up, and exceeded by at most what had been lent to it.
func TestLeasesFromAStore(t *testing.T) {
	h := newStoreHolders(t)
	const limit, lent = 600, 30
	admitted := map[string]int{}
	for _, i := range []int{1, 2, 0} {
		for _, rule := range []string{"reclaimed", "crashed", "exact"} { // what is idle for a second is returned
			o := h.spend(i, rule, 50, 100)
			if o.admitted != 50 {
				t.Fatalf("%s on sidecar %d: %+v", rule, i, o)
			}
			admitted[rule] += o.admitted
		}
	}
	h.kill(0)
	o := h.drain("exact", 1, 2)
	if n := admitted["exact"] + o.admitted; n > limit || n < limit-lent || n == limit || o.failed > 0 {
		t.Errorf("exact: %d of %d admitted, %+v: want some stranded", n, limit, o)
	} else {
		t.Logf("exact: %d of %d admitted", n, limit)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	for _, rule := range []string{"reclaimed", "crashed"} {
		if err := lab.Await(ctx, "the hits of the sidecar that was killed, "+rule, func(context.Context) error {
			admitted[rule] += h.drain(rule, 1, 2).admitted
			if admitted[rule] < limit {
				return errors.New("not used up")
			}
			return nil
		}); err != nil {
			t.Fatalf("%v: %d of %d", err, admitted[rule], limit)
		}
		admitted[rule] += h.drain(rule, 1, 2).admitted
		if n := admitted[rule]; n > limit+lent {
			t.Errorf("%s: %d of %d admitted, at most %d more", rule, n, limit, lent)
		} else {
			t.Logf("%s: %d of %d admitted", rule, n, limit)
		}
	}
}

// TestApproximateFromAStore has three sidecars that cannot gossip count in Redis, and one of them restart after kill -9.
// Together they use the limit up and exceed it by at most the slack of all lives but one.
func TestApproximateFromAStore(t *testing.T) {
	h := newStoreHolders(t)
	const limit, slack, lives = 3000, 3000 * 3 / 100 / 3, 4
	var sum storeOutcome
	var all sync.WaitGroup
	var mu sync.Mutex
	for i := range 3 {
		all.Go(func() {
			o := h.spend(i, "approximate", 400, 50)
			mu.Lock()
			defer mu.Unlock()
			sum.admitted += o.admitted
		})
	}
	all.Wait()
	if sum.admitted != 1200 {
		t.Fatalf("%+v", sum)
	}
	requests := 0.0
	for _, s := range h.lab.Sidecars {
		requests += value(metrics(t, s.Metrics), "keyward_federation_requests_total")
	}
	if requests == 0 || requests > 300 {
		t.Errorf("%.0f requests to Redis for 1200 decisions", requests)
	}
	h.kill(0)
	if err := h.lab.Restart(h.lab.Sidecars[0], "--join", ""); err != nil {
		t.Fatal(err)
	}
	h.ready(h.lab.Sidecars[0])
	h.clients[0] = dial(t, h.lab.Sidecars[0].RLS, nil)
	o := h.drain("approximate", 0, 1, 2)
	if n := sum.admitted + o.admitted; n < limit || n > limit+(lives-1)*slack || o.failed > 0 {
		t.Errorf("%d of %d admitted, at most %d more, %+v", n, limit, (lives-1)*slack, o)
	} else {
		t.Logf("%d of %d admitted, %.0f requests to Redis for 1200 decisions", n, limit, requests)
	}
	o = h.drain("checked", 0, 1, 2)
	if o.admitted < 1000-10 || o.admitted > 1000+2*30 || o.failed > 0 {
		t.Errorf("checked: %+v", o)
	} else {
		t.Logf("checked: %d of 1000 admitted", o.admitted)
	}
}
