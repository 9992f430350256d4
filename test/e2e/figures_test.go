package e2e

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

const (
	figuresPerSecond = 1000 // the limit, in hits
	figuresWarm      = 2    // windows before latencies are measured
	figuresBoundary  = 500 * time.Millisecond
	figuresP99       = time.Millisecond // that 99 % of requests take at most
)

// figuresCall is one request and its result.
type figuresCall struct {
	sent            time.Time
	took            time.Duration
	refused, failed bool
}

// figuresCalls are requests in no particular order.
type figuresCalls []figuresCall

// part returns the share of calls for which f is true.
func (s figuresCalls) part(f func(*figuresCall) bool) float64 {
	n := 0
	for i := range s {
		if f(&s[i]) {
			n++
		}
	}
	return float64(n) / float64(max(1, len(s)))
}

// between returns the calls that were sent in that time.
func (s figuresCalls) between(begin, end time.Time) figuresCalls {
	return slices.DeleteFunc(slices.Clone(s), func(c figuresCall) bool { return c.sent.Before(begin) || !c.sent.Before(end) })
}

// quantiles returns the durations that those parts of the calls do not exceed.
func (s figuresCalls) quantiles(qs ...float64) (out []time.Duration) {
	times := make([]time.Duration, len(s))
	for i := range s {
		times[i] = s[i].took
	}
	slices.Sort(times)
	for _, q := range qs {
		out = append(out, times[min(len(times)-1, int(q*float64(len(times))))].Round(time.Microsecond))
	}
	return out
}

// sendAtRandom sends hits of a key, by a rule, to all regions from now until the end: a Poisson process for each, with that many per
// second. A call is sent when it is due, however long others take.
func (x *realRegions) sendAtRandom(rule, key string, until time.Time, rates ...int) (all figuresCalls) {
	var mu sync.Mutex
	var calls, senders sync.WaitGroup
	for i, rate := range rates {
		if rate == 0 {
			continue
		}
		senders.Go(func() {
			gaps := rand.New(rand.NewPCG(uint64(i), uint64(rate)))
			clients := x.list[i].clients
			for n, due := 0, time.Now(); due.Before(until); n++ {
				time.Sleep(time.Until(due))
				calls.Go(func() {
					c := x.call(clients[n%len(clients)], request("app", 1, rule, key))
					mu.Lock()
					defer mu.Unlock()
					all = append(all, c)
				})
				due = due.Add(time.Duration(gaps.ExpFloat64() / float64(rate) * float64(time.Second)))
			}
		})
	}
	senders.Wait()
	calls.Wait()
	return all
}

func (x *realRegions) call(c rlsv3.RateLimitServiceClient, r *rlsv3.RateLimitRequest) figuresCall {
	ctx, cancel := context.WithTimeout(x.t.Context(), 2*time.Second)
	defer cancel()
	sent := time.Now()
	res, err := c.ShouldRateLimit(ctx, r)
	return figuresCall{sent: sent, took: time.Since(sent), failed: err != nil, refused: err == nil && res.OverallCode != rlsv3.RateLimitResponse_OK}
}

// regionCounts are counters of all regions together.
type regionCounts struct{ requests, decided, waited float64 }

func (x *realRegions) counts() (c regionCounts) {
	for i := range x.list {
		c.requests += x.metric(i, "keyward_federation_requests_total")
		c.decided += x.metric(i, `keyward_authority_total{authority="escrow"`) + x.metric(i, `keyward_authority_total{authority="full"`)
		c.waited += x.metric(i, "keyward_federation_waits_total")
	}
	return c
}

func (c regionCounts) since(o regionCounts) regionCounts {
	return regionCounts{c.requests - o.requests, c.decided - o.decided, c.waited - o.waited}
}

// measureUsed spends a key for some whole windows, and two seconds before, at those rates. It returns which part of the limit was
// used, and what was counted.
func (x *realRegions) measureUsed(key string, windows int, rates ...int) (used float64, c regionCounts) {
	first := x.limit.of(time.Now().Add(2*time.Second)) + 1
	begin, end := x.limit.begin(first), x.limit.begin(first+int64(windows))
	before := x.counts()
	time.Sleep(time.Until(begin.Add(-2 * time.Second))) // so that the demand is known
	all := x.sendAtRandom("shared", key, end.Add(-50*time.Millisecond), rates...)
	admitted := 0
	for i := range all {
		if c := &all[i]; !c.refused && !c.failed && !c.sent.Before(begin) && c.sent.Add(c.took).Before(end) {
			admitted++ // in these windows for certain: of calls that begin or end in others, the time of the decision is unknown
		}
	}
	if most := windows * x.limit.hits; admitted > most {
		x.t.Errorf("%s: %d of %d admitted", key, admitted, most)
	}
	return float64(admitted) / float64(windows*x.limit.hits), x.counts().since(before)
}

// measureBelow sends 80 % of the limit by that rule. It returns the calls from half a second before the third window on, when that
// begins, and what was counted since.
func (x *realRegions) measureBelow(rule string, windows int, rates ...int) (all figuresCalls, begin time.Time, c regionCounts) {
	first := x.limit.of(time.Now().Add(2*time.Second)) + 1
	begin = x.limit.begin(first + figuresWarm)
	end := begin.Add(time.Duration(windows) * x.limit.window).Add(figuresBoundary)
	time.Sleep(time.Until(x.limit.begin(first).Add(-2 * time.Second)))
	var sending sync.WaitGroup
	sending.Go(func() { all = x.sendAtRandom(rule, "below", end, rates...) })
	time.Sleep(time.Until(begin))
	before := x.counts()
	sending.Wait()
	return all.between(begin.Add(-figuresBoundary), end), begin, x.counts().since(before)
}

// figuresSkewed measures how much of the limit is used, and how often coordinators are called, with more demand than the limit.
func (x *realRegions) figuresSkewed(windows int) {
	t := x.t
	used, c := x.measureUsed("skewed", windows, 1333, 133, 133)
	t.Logf("10:1:1, 160 %% of the limit: %.2f %% used, %.4f requests to the coordinator per decision (%.0f of %.0f)", 100*used, c.requests/c.decided, c.requests, c.decided)
	if used < 0.98 || c.requests > 0.01*c.decided {
		t.Errorf("10:1:1: %.2f %% used, %.4f requests to the coordinator per decision", 100*used, c.requests/c.decided)
	}
	used, c = x.measureUsed("one", 1, 0, 1600, 0)
	t.Logf("one region, 160 %%: %.2f %% used, %.4f requests per decision", 100*used, c.requests/c.decided)
	if used < 0.95 {
		t.Errorf("one region: %.2f %% used", 100*used)
	}
}

// figuresBelow measures wrong refusals, waits and latencies at 80 % of the limit. The same load of a limit that each region has for
// itself goes first, and shows what the machine is capable of.
func (x *realRegions) figuresBelow(windows int) {
	t := x.t
	alone, begin, _ := x.measureBelow("alone", windows, 667, 67, 67)
	a := alone.between(begin, begin.Add(time.Hour)).logged(t, "of a single region")
	shared, begin, c := x.measureBelow("shared", windows, 667, 67, 67)
	s := shared.between(begin, begin.Add(time.Hour)).logged(t, "shared by regions")
	var dip figuresCalls
	for w := range windows + 1 {
		at := begin.Add(time.Duration(w) * x.limit.window)
		dip = append(dip, shared.between(at.Add(-figuresBoundary), at.Add(figuresBoundary))...)
	}
	wrong := dip.part(func(c *figuresCall) bool { return c.refused || c.failed })
	t.Logf("80 %%: %.4f requests per decision, %.0f of %.0f decisions waited, %.3f %% refused, %.3f %% of the %d requests within %v of a boundary",
		c.requests/c.decided, c.waited, c.decided, 100*shared.part(func(c *figuresCall) bool { return c.refused }), 100*wrong, len(dip), figuresBoundary)
	t.Logf("80 %%: p99 with a shared limit is %.2f times that without, %v more", float64(s)/float64(a), s-a)
	allowed := 0.001
	if x.limit.window < time.Minute {
		allowed = 0.005
	}
	if a > figuresP99 {
		t.Logf("80 %%: the machine is too busy to judge that: of the requests that no region shares, 1 %% took more than %v", a)
		return
	}
	if wrong > allowed || c.requests > 0.01*c.decided || c.waited > 0.0005*c.decided || s > figuresP99 {
		t.Errorf("80 %%: %.3f %% refused near boundaries, %.4f requests per decision, %.0f of %.0f decisions waited, p99 %v",
			100*wrong, c.requests/c.decided, c.waited, c.decided, s)
	}
}

// logged logs latencies.
func (s figuresCalls) logged(t *testing.T, what string) (p99 time.Duration) {
	q := s.quantiles(0.5, 0.9, 0.99, 0.999, 1)
	t.Logf("80 %%, limit %s: %d calls, p50, p90, p99, p99.9, longest %v; %.4f %% took more than %v, %.3f %% failed", what, len(s), q,
		100*s.part(func(c *figuresCall) bool { return c.took > regionOneWay }), regionOneWay, 100*s.part(func(c *figuresCall) bool { return c.failed }))
	return q[2]
}

// TestRegionsFigures measures the figures of docs/federation.md with real processes (make figures). Windows of a minute take
// six minutes each.
func TestRegionsFigures(t *testing.T) {
	if !long() {
		t.Skip("make figures")
	}
	for _, window := range []time.Duration{10 * time.Second, time.Minute} {
		limit := sharedLimit{figuresPerSecond * int(window/time.Second), window}
		windows := int(max(1, 40*time.Second/window))
		for _, coordinator := range []string{"Redis", "cluster"} {
			t.Run(coordinator+"/"+window.String(), func(t *testing.T) {
				var x *realRegions
				if coordinator == "Redis" {
					x = newRealRegions(t, "fail_closed", limit)
				} else {
					x = newHomeRegions(t, "eu", limit)
				}
				x.figuresSkewed(windows)
				x.figuresBelow(windows)
			})
		}
	}
}
