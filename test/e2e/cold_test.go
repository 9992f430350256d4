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

// TestColdStart asks all members from the moment they listen, while they are still finding each other: together they admit
// no more than the limit and what they say themselves that they may have added.
func TestColdStart(t *testing.T) {
	const keys = 20
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": longRules}, Expect: 3})
	members := names(3)
	for _, n := range members {
		if _, err := l.AddSidecar(n); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var admitted [keys]atomic.Int64
	var asked atomic.Int64
	var wg sync.WaitGroup
	for i := range 6 {
		client := dial(t, l.Sidecars[i%3].RLS, nil)
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				c, stop := context.WithTimeout(context.Background(), time.Second)
				res, err := client.ShouldRateLimit(c, request("app", 1, "api_key", fmt.Sprint(n%keys)))
				stop()
				if err != nil {
					continue // not up yet
				}
				asked.Add(1)
				if res.OverallCode == rlsv3.RateLimitResponse_OK {
					admitted[n%keys].Add(1)
				}
			}
		})
	}
	awaitRing(t, l, members...)
	enough, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	if err := lab.Await(enough, "twice the limit to be asked for", func(context.Context) error {
		if n := asked.Load(); n < 2*100*keys {
			return fmt.Errorf("%d requests", n)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	cancel()
	wg.Wait()
	bound := sum(t, l, "keyward_overadmission_bound")
	t.Logf("%d requests during the start, bound %v, degraded %v", asked.Load(), bound, sum(t, l, "keyward_degraded_total"))
	var most int64
	for k := range admitted {
		// longRules allow 100.
		n := admitted[k].Load()
		most = max(most, n)
		if float64(n) > 100+bound || n < 100 {
			t.Errorf("key %d: %d admitted, limit 100, bound %v", k, n, bound)
		}
	}
	t.Logf("at most %d of a limit of 100 were admitted", most)
}
