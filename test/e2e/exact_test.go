package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/internal/lab"
)

// exactLimits are the limits of the exactness rules, each under a descriptor key of its own.
var exactLimits = []uint32{1, 2, 7, 50, 999, 10_000, 100_000}

func exactRules(unit string) string {
	rules := "domain: app\ndescriptors:\n"
	for _, l := range exactLimits {
		rules += fmt.Sprintf("  - key: k%d\n    rate_limit: {unit: %s, requests_per_unit: %d}\n", l, unit, l)
	}
	return rules + "  - key: api_key\n    rate_limit: {unit: " + unit + ", requests_per_unit: 200}\n"
}

// TestExactness asks from many clients at all sidecars at once, and through Envoy, and compares what was admitted with
// the limits: in a window nothing was degraded in, exactly the limit is admitted.
func TestExactness(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": exactRules("year")}, Expect: 3, Args: []string{"--decision-timeout", "1s"}})
	members := names(3)
	start(t, l, members...)
	_, e := ownerDirect(t, l, "", "--failure-mode-deny", "--timeout", "5s")

	type counter struct{ admitted, offered atomic.Uint64 }
	counters := map[string]*counter{}
	// Of each limit one key is asked for one hit at a time or for as many as divide the limit, so that the last hit that
	// fits fills it: exactly the limit is admitted. The other's addends are of every size.
	type keyed struct {
		key, value string
		limit      uint32
		step       uint32 // hits of every request; 0: any number up to most
		most       uint32
	}
	var all []keyed
	for _, limit := range exactLimits {
		step := max(1, limit/100)
		for limit%step != 0 {
			step--
		}
		for v, st := range []uint32{step, 0, step} {
			q := keyed{fmt.Sprintf("k%d", limit), fmt.Sprintf("value-%d", v), limit, st, max(1, limit/50)}
			all = append(all, q)
			counters[q.key+q.value] = &counter{}
		}
	}
	var wg sync.WaitGroup
	for i := range 24 { // plain RLS, at all sidecars at once
		client := dial(t, l.Sidecars[i%3].RLS, nil)
		rng := rand.New(rand.NewPCG(uint64(i), 1))
		wg.Go(func() {
			for range 1000 { // about 1100 of each key in all: what fits is spent by 114 at most
				q := all[rng.IntN(len(all))]
				hits := q.step
				if hits == 0 {
					hits = 1 + rng.Uint32N(q.most)
				}
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				res, err := client.ShouldRateLimit(ctx, request("app", hits, q.key, q.value))
				cancel()
				if err != nil {
					t.Errorf("%v: %v", q, err)
					return
				}
				c := counters[q.key+q.value]
				c.offered.Add(uint64(hits))
				if res.OverallCode == rlsv3.RateLimitResponse_OK {
					c.admitted.Add(uint64(hits))
				}
			}
		})
	}
	var viaEnvoy [10]counter // through Envoy: ten keys, limit 200, each hit is one
	for i := range 8 {
		wg.Go(func() {
			client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 1}}
			defer client.CloseIdleConnections()
			rng := rand.New(rand.NewPCG(uint64(i), 2))
			for range 500 {
				k := rng.IntN(len(viaEnvoy))
				switch a := send(client, e.Listener, fmt.Sprintf("envoy-%d", k)); a.status {
				case 200:
					viaEnvoy[k].admitted.Add(1)
				case 429:
				default:
					t.Errorf("through Envoy: %+v", a)
				}
				viaEnvoy[k].offered.Add(1)
			}
		})
	}
	wg.Wait()
	if degraded, all := sum(t, l, "keyward_degraded_total"), sum(t, l, "keyward_decisions_total"); degraded > all/100 {
		t.Fatalf("%v of %v answers were degraded: more than 1 %%", degraded, all)
	} else if degraded > 0 {
		t.Logf("%v of %v answers were degraded", degraded, all)
	}
	bound := sum(t, l, "keyward_overadmission_bound")
	for i := range viaEnvoy {
		got := viaEnvoy[i].admitted.Load()
		if want := min(200, viaEnvoy[i].offered.Load()); got < want || float64(got) > float64(want)+bound {
			t.Errorf("through Envoy: %d admitted of %d offered, want %d (bound %v)", got, viaEnvoy[i].offered.Load(), want, bound)
		}
	}
	for _, q := range all {
		c := counters[q.key+q.value]
		got := c.admitted.Load()
		if float64(got) > float64(q.limit)+bound {
			t.Errorf("%s %s: %d admitted, limit %d, bound %v", q.key, q.value, got, q.limit, bound)
		}
		least := uint64(q.limit)
		if q.step == 0 {
			// An addend that does not fit is charged all the same and ends the window: it may be missing from the limit.
			least -= uint64(q.most) - 1
		}
		if c.offered.Load() < uint64(q.limit) {
			t.Errorf("%s %s: only %d offered of limit %d: the test is too short", q.key, q.value, c.offered.Load(), q.limit)
		} else if got < least {
			t.Errorf("%s %s: only %d admitted of limit %d, %d offered", q.key, q.value, got, q.limit, c.offered.Load())
		}
	}
}

// TestExactPerSecond runs over several one-second windows: each whole one admits exactly its limit.
func TestExactPerSecond(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": exactRules("second")}, Expect: 3, Args: []string{"--decision-timeout", "1s"}})
	start(t, l, names(3)...)
	const limit = 50
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
	defer cancel()
	// A response does not name its window, but remaining does within one: in a window of exact counting every value
	// from limit-1 down to 0 is handed out once. Between two windows remaining starts again, so over w whole windows each
	// value is handed out w times, and in the two partial ones at most once more each.
	var handed [limit]atomic.Int64
	var admitted, offered atomic.Int64
	first := time.Now().Unix()
	var wg sync.WaitGroup
	for i := range 12 {
		client := dial(t, l.Sidecars[i%3].RLS, nil)
		wg.Go(func() {
			for ctx.Err() == nil {
				c, stop := context.WithTimeout(context.Background(), 5*time.Second)
				res, err := client.ShouldRateLimit(c, request("app", 1, "k50", "x"))
				stop()
				if err != nil {
					t.Error(err)
					return
				}
				offered.Add(1)
				if res.OverallCode == rlsv3.RateLimitResponse_OK {
					admitted.Add(1)
					handed[res.Statuses[0].LimitRemaining].Add(1)
				}
			}
		})
	}
	wg.Wait()
	windows := time.Now().Unix() - first + 1 // touched, the two partial ones included
	if degraded := sum(t, l, "keyward_degraded_total"); degraded > 0 {
		t.Fatalf("%v answers were degraded", degraded)
	}
	t.Logf("%d windows, %d offered, %d admitted, limit %d a window", windows, offered.Load(), admitted.Load(), limit)
	if a := admitted.Load(); a > windows*limit || a < (windows-2)*limit {
		t.Errorf("%d admitted over %d windows of %d", a, windows, limit)
	}
	for r := range handed {
		if n := handed[r].Load(); n > windows || n < windows-2 {
			t.Errorf("remaining %d was handed out %d times in %d windows", r, n, windows)
		}
	}
}
