package e2e

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/internal/lab"
)

// TestChurnStaysWithinTheBound joins, stops and kills members under load. Counts do not move with their keys yet, so
// limits are exceeded, and the members say by how much at most: no key is admitted more than its limit and the sum of what
// every member, live or not, has reported.
func TestChurnStaysWithinTheBound(t *testing.T) {
	const keys, limit = 30, 100 // of longRules
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": longRules}, Expect: 3})
	members := names(3)
	start(t, l, members...)
	ctx, cancel := context.WithCancel(t.Context())
	var admitted [keys]atomic.Int64
	var asked atomic.Int64
	var load sync.WaitGroup
	for range 4 {
		client := dial(t, l.Sidecars[2].RLS, nil) // the one that nothing happens to
		load.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				c, stop := context.WithTimeout(context.Background(), 5*time.Second)
				res, err := client.ShouldRateLimit(c, request("app", 1, "api_key", fmt.Sprint(n%keys)))
				stop()
				if err != nil {
					t.Error(err)
					return
				}
				asked.Add(1)
				if res.OverallCode == rlsv3.RateLimitResponse_OK {
					admitted[n%keys].Add(1)
				}
			}
		})
	}
	reported := map[string]float64{} // bound by member, the last that it reported
	scrape := func() {
		for _, s := range l.Sidecars {
			if s.Running() {
				reported[s.Name] = max(reported[s.Name], value(metrics(t, s.Metrics), "keyward_overadmission_bound"))
			}
		}
	}
	settle := func(members ...string) {
		awaitRing(t, l, members...)
		begin, before := time.Now(), asked.Load()
		enough, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		if err := lab.Await(enough, "every key to be asked for more than its limit", func(context.Context) error {
			if n := asked.Load() - before; n < 2*limit*keys || time.Since(begin) < 2*time.Second {
				return fmt.Errorf("%d requests", n)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		scrape()
	}
	settle(members...)
	for k := range admitted {
		if n := admitted[k].Load(); n != limit {
			t.Errorf("before anything happened: key %d: %d admitted", k, n)
		}
	}
	if _, err := l.AddSidecar("pod-d"); err != nil {
		t.Fatal(err)
	}
	settle("pod-a", "pod-b", "pod-c", "pod-d")
	if err := l.Sidecars[0].Stop(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	settle("pod-b", "pod-c", "pod-d")
	l.Sidecars[1].Kill()
	settle("pod-c", "pod-d")
	cancel()
	load.Wait()
	bound, most := 0.0, int64(0)
	for _, b := range reported {
		bound += b
	}
	for k := range admitted {
		n := admitted[k].Load()
		most = max(most, n)
		if float64(n) > limit+bound {
			t.Errorf("key %d: %d admitted, limit %d, bound %v", k, n, limit, bound)
		}
	}
	t.Logf("%d requests, at most %d of %d admitted, bound %v: %v", asked.Load(), most, limit, bound, reported)
	if most < limit || bound == 0 { // what moves and what a successor takes over costs nothing, if all goes well
		t.Error("no limit was spent, or no member was lost: does the test do anything?")
	}
}
