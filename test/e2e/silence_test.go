package e2e

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// TestSilenceThroughEnvoy stops an owner's process under load through an Envoy that lets pass what it gets no answer for:
// nothing fails open, limits stay within the bound, and once the members have noticed, Envoy asks the successor at once.
func TestSilenceThroughEnvoy(t *testing.T) {
	const limit = 100 // of longRules
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": longRules}, Expect: 3})
	f := newFleet(t, l, names(3)...)
	e, up := ownerDirectOpen(t, l, "500ms")
	before := envoyKeys("before", 60)
	b := browse(t, e.Listener, 200, before)
	steadily(3 * time.Second)
	victim := f.live[1]
	owner := owners(t, l, names(3), before)
	seen := observe(t, f.live)
	quiet := b.latencies(before, owner, victim.Name)
	if err := victim.Pause(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = victim.Signal(syscall.SIGCONT) })
	stopped := time.Now()
	f.withdraw(victim.Name)
	ringWithout := await(t, stopped, "the others' ring to do without it", func(ctx context.Context) error {
		for _, d := range *f.doors.Load() {
			v, err := lab.Cluster(ctx, d.page)
			if err != nil {
				return err
			}
			if len(v.Ring.Members) != 2 {
				return fmt.Errorf("%s has a ring of %v", d.name, v.Ring.Members)
			}
		}
		return nil
	})
	awaitEnvoy(t, e, "keyward", 2)
	envoyWithout := time.Since(stopped)
	during := b.latencies(before, owner, victim.Name)
	steadily(2 * time.Second)
	after := b.latencies(before, owner, victim.Name)
	t.Logf("T_detect: the others' ring does without it after %s, Envoy after %s", ringWithout.Round(10*time.Millisecond), envoyWithout.Round(10*time.Millisecond))
	t.Logf("latency of its keys' requests before: %s; until Envoy had the new ring: %s; after: %s", quiet, during, after)
	if err := victim.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	resumed := time.Now()
	f.agree()
	awaitEnvoy(t, e, "keyward", 3)
	if took := time.Since(resumed); took > oneRing {
		t.Errorf("one ring only %s after the end of the silence", took)
	}
	steadily(2 * time.Second)
	fresh := envoyKeys("fresh", 20)
	b.renew(fresh)
	b.finish(t, limit)
	seen.stop()
	probe := newAccount("api_key", "", limit, 1, time.Hour)
	b.audit(t, up, limit, probe.unreplicated()+shares(seen, probe, 3, 3))
	for _, k := range fresh {
		if n := b.admitted[k]; n > limit {
			t.Errorf("%s, asked for after the silence: %d admitted, limit %d", k, n, limit)
		}
	}
	wantNoFailures(t, e)
}

// await waits for a condition and returns how long after begin it came.
func await(t testing.TB, begin time.Time, what string, cond func(context.Context) error) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := lab.Await(ctx, what, cond); err != nil {
		t.Error(err)
	}
	return time.Since(begin)
}

// latencies says how long the requests of one owner's keys took since it was last asked.
func (b *browsers) latencies(keys []string, owner map[string]string, of string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []time.Duration
	for _, k := range keys {
		if owner[k] == of {
			all = append(all, b.took[k]...)
		}
		b.took[k] = nil
	}
	if len(all) == 0 {
		return "none"
	}
	slices.Sort(all)
	r := func(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
	return fmt.Sprintf("%d requests, median %v, 99 %% %v, longest %v", len(all), r(all[len(all)/2]), r(all[len(all)*99/100]), r(all[len(all)-1]))
}
