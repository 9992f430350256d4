package e2e

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

const (
	moduleLimit  = 1200
	moduleWindow = 3 * time.Second
)

const moduleRules = `domain: app
descriptors:
- key: api_key
  rate_limit: {unit: second, requests_per_unit: 1200}
  metadata: {keyward: {window: 3s, degraded: fail_closed, durability: strict}}
`

// moduleCounts are the admitted requests of windows.
type moduleCounts struct {
	mu               sync.Mutex
	admitted, leased map[int64]int // by window
	failed           map[int64]int // calls
}

func (c *moduleCounts) add(admitted, leased bool, window int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if admitted {
		c.admitted[window]++
	}
	if err != nil {
		c.failed[window]++
	}
	if leased {
		c.leased[window]++
	}
}

// run makes requests at a steady rate until the context ends, but none in the last part of a window, so that it is clear in
// which one a call counts.
func (c *moduleCounts) run(ctx context.Context, e *podEnvoy, perSecond int) {
	const workers = 4
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			tick := time.NewTicker(time.Second * workers / time.Duration(perSecond))
			defer tick.Stop()
			for ctx.Err() == nil {
				<-tick.C
				if now := time.Now(); now.Truncate(moduleWindow).Add(moduleWindow).Sub(now) > 250*time.Millisecond {
					c.add(e.ask(ctx, moduleWindow, "app", "api_key", "hot"))
				}
			}
		})
	}
	wg.Wait()
}

// TestModule has three pods spend one limit from leases in shared memory, next to calls of the rate limit service, while a
// sidecar and the key's owner are killed, and an Envoy ends. In no window more than the limit is admitted, and in those
// without a killed sidecar exactly the limit, unless hits come back too late.
func TestModule(t *testing.T) {
	l := newLab(t, lab.Options{Insecure: true, Rules: map[string]string{"app.yaml": moduleRules}})
	socket := func(name string) string { return filepath.Join(l.Dir, name+".sock") }
	members := names(3)
	args := func(name string) []string { return []string{"--module-socket", socket(name)} }
	for _, n := range members {
		if _, err := l.AddSidecar(n, args(n)...); err != nil {
			t.Fatal(err)
		}
	}
	awaitRing(t, l, members...)
	var envoys []*podEnvoy
	for i, n := range members {
		envoys = append(envoys, startPodEnvoy(t, socket(n), l.Sidecars[i].RLS))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := &moduleCounts{admitted: map[int64]int{}, leased: map[int64]int{}, failed: map[int64]int{}}
	var wg sync.WaitGroup
	load := func(e *podEnvoy, perSecond int) (stop func()) {
		ctx, cancel := context.WithCancel(ctx)
		wg.Go(func() { c.run(ctx, e, perSecond) })
		return cancel
	}
	stopFirst := load(envoys[0], 500)
	load(envoys[1], 150)
	load(envoys[2], 150)
	load(&podEnvoy{rls: envoys[1].rls}, 30) // a caller without a module
	next := func() int64 {
		w := time.Now().UnixNano()/int64(moduleWindow) + 1
		time.Sleep(time.Until(time.Unix(0, w*int64(moduleWindow))))
		return w
	}
	next()
	harmed, exact := []int64{}, map[int64]int{} // of exact, how many hits may be missing
	// watch has the limit checked exactly in the window that begins now. Hits of a lease that is taken back after the limit is
	// reached cannot be admitted any more, because refused calls count, and neither can those of calls without an answer.
	watch := func(w int64) (end func()) {
		lost := func() float64 {
			return sum(t, l, "keyward_module_returned_hits_total") + sum(t, l, "keyward_module_unreturned_hits_total") +
				sum(t, l, "keyward_module_expired_hits_total") + sum(t, l, "keyward_degraded_total")
		}
		before := lost()
		return func() { exact[w] = int(lost() - before) }
	}
	end := watch(next())
	owner := slices.IndexFunc(l.Sidecars, func(s *lab.Sidecar) bool {
		return value(metrics(t, s.Metrics), "keyward_decisions_total", "path", "local") > 0
	})
	if owner < 0 {
		t.Fatal("no member owns the key")
	}
	for _, i := range []int{(owner + 1) % 3, owner} {
		s, first := l.Sidecars[i], next()
		if end != nil {
			end()
			end = nil
		}
		time.Sleep(time.Second)
		s.Kill()
		<-s.Exited()
		if err := l.Restart(s, args(s.Name)...); err != nil {
			t.Fatal(err)
		}
		awaitRing(t, l, members...)
		for w := first; w <= time.Now().UnixNano()/int64(moduleWindow); w++ {
			harmed = append(harmed, w)
		}
	}
	end = watch(next())
	time.Sleep(500 * time.Millisecond)
	stopFirst() // an Envoy with a lease ends, and another one comes
	envoys[0].stop()
	load(startPodEnvoy(t, socket(members[0]), l.Sidecars[0].RLS), 500)
	w := next()
	end()
	end = watch(w)
	next()
	end()
	cancel()
	wg.Wait()
	for w, n := range c.admitted {
		if n > moduleLimit {
			t.Errorf("window %d: %d admitted, %d of them from leases; the limit is %d", w, n, c.leased[w], moduleLimit)
		}
	}
	leased := uint64(0)
	for w, lost := range exact {
		leased += uint64(c.leased[w])
		t.Logf("window %d: %d admitted, %d of them from leases; at most %d came back too late", w, c.admitted[w], c.leased[w], lost)
		if n := c.admitted[w]; n < moduleLimit-lost-c.failed[w] {
			t.Errorf("window %d: %d admitted; the limit is %d, %d were returned, and %d calls have failed", w, n, moduleLimit, lost, c.failed[w])
		}
	}
	if all := uint64(len(exact)) * moduleLimit; leased < all/3 { // usually two thirds; on a busy machine leases come later
		t.Errorf("%d of %d admitted from leases", leased, all)
	}
	for _, w := range harmed {
		t.Logf("window %d, in which a sidecar was killed: %d admitted, %d of them from leases", w, c.admitted[w], c.leased[w])
	}
	if lost := sum(t, l, "keyward_module_lost_hits_total"); lost > 0 {
		t.Errorf("%v hits count as spent in corrupt memory", lost)
	}
}
