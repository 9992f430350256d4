package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/federation"
)

// stream is the demand of a tenant in a region: requests for one hit, evenly over time.
type stream struct {
	region int
	tenant uint64
	weight uint32
	every  int // milliseconds between two requests
	from   int // milliseconds
	at     int // of its life
	got    int
	over   int
	fair   int // refused to leave the rest to others
}

// run lets the streams ask for one hit at a time, for that many milliseconds, and counts what they get.
func (w *regions) run(q Request, ms int, streams ...*stream) {
	for range ms {
		for j, x := range streams {
			if x.at++; x.at <= x.from || (x.at+j)%x.every != 0 {
				continue
			}
			q := byTenant(q, x.tenant, x.weight)
			q.Waiter = &streamed{x}
			x.count(take(w.nodes[x.region], w.now, q))
		}
		for _, d := range w.wait(1) {
			d.Waiter.(*streamed).count(d.Result)
		}
	}
}

// streamed is one request of a stream.
type streamed struct{ *stream }

func (x *stream) count(res Result) {
	switch {
	case res.Kind != Decided:
	case !res.Over:
		x.got++
	default:
		x.over++
		x.fair += b2i(res.FairShare)
	}
}

// Tenants in several regions get what one limit for all of them would give them, although one of them comes first and
// asks for ten times the limit.
func TestFairRegions(t *testing.T) {
	w := newRegions(t, 1, 1, 1)
	w.terms.Batch = time.Second
	q := w.ask(1200, 20*time.Second)
	w.now = q.Rule.End(q.Rule.Index(w.now))
	hog := &stream{region: 0, tenant: 1, weight: 1, every: 2}
	small := &stream{region: 0, tenant: 2, weight: 1, every: 200, from: 100}
	heavy := &stream{region: 1, tenant: 3, weight: 3, every: 8, from: 250}
	both := &stream{region: 1, tenant: 4, weight: 2, every: 20, from: 300}
	too := &stream{region: 2, tenant: 4, weight: 2, every: 60, from: 300}
	w.run(q, 19_920, hog, small, heavy, both, too)
	// No longer, because a reply that arrives ahead of the clock begins the next window, with other floors.
	// The small one gets its 100 hits. The others want all of 1100, by weights 1:3:2, of which region 0 has a floor of 20.
	const lot = 60
	for x, want := range map[*stream]int{hog: 183, small: 100, heavy: 550, both: 275, too: 92} {
		if x.got < want-lot || x.got > want+lot {
			t.Errorf("tenant %d in region %d got %d, not about %d", x.tenant, x.region, x.got, want)
		}
	}
	sum := hog.got + small.got + heavy.got + both.got + too.got
	if sum < 1170 || sum > 1200 || hog.fair < 5000 {
		t.Errorf("%d of 1200 admitted; the first tenant was refused %d times for others", sum, hog.fair)
	}
	f, decided := w.nodes[0].Stats(w.now), 0
	for _, n := range f.Decided {
		decided += int(n)
	}
	if want := hog.got + hog.over + small.got + small.over; f.Fair.Refused != uint64(hog.fair+small.fair) || decided != want {
		t.Errorf("%d decisions and %d hits refused for others, by the metrics %d and %d", want, hog.fair+small.fair, decided, f.Fair.Refused)
	}
	t.Logf("got %d %d %d %d %d; %d calls", hog.got, small.got, heavy.got, both.got, too.got, w.calls)
}

// A tenant alone gets everything that is not the floor of another region, and what a tenant that has gone does not use.
func TestFairLoneTenant(t *testing.T) {
	w := newRegions(t, 1, 1, 1)
	q := w.ask(300, 20*time.Second)
	w.now = q.Rule.End(q.Rule.Index(w.now))
	first, gone := &stream{region: 0, tenant: 1, weight: 1, every: 10}, &stream{region: 1, tenant: 2, weight: 5, every: 100}
	w.run(q, 3000, first, gone)
	w.run(q, 16_990, first)
	if all := first.got + gone.got; all < 293 || all > 300 {
		t.Errorf("%d and %d of 300 admitted", first.got, gone.got)
	}
}

// A region without its coordinator divides between its tenants what it may admit.
func TestFairCutRegion(t *testing.T) {
	w := newRegions(t, 1, 1)
	w.terms.Outage, w.terms.Floor = federation.RegionalOnly, 10
	q := w.ask(400, 20*time.Second)
	w.now = q.Rule.End(q.Rule.Index(w.now))
	w.cut[0] = true
	hog, other := &stream{region: 0, tenant: 1, weight: 1, every: 5}, &stream{region: 0, tenant: 2, weight: 1, every: 50, from: 2000}
	w.run(q, 19_920, hog, other)
	if hog.got+other.got != 200 || other.got < 85 {
		t.Errorf("%d and %d of the slice of 200 admitted", hog.got, other.got)
	}
}

// Requests that charge nothing report what a charge of the tenant would get, refunds count, and the tenants are listed.
func TestFairEscrowReports(t *testing.T) {
	w := newRegions(t, 1, 1)
	q := w.ask(100, time.Minute)
	w.now = q.Rule.End(q.Rule.Index(w.now))
	hog, other := &stream{region: 0, tenant: 1, weight: 1, every: 10, from: 3000}, &stream{region: 1, tenant: 2, weight: 1, every: 1200}
	w.run(q, 20_000, hog, other)
	n := w.nodes[0]
	for _, op := range []Op{DryRun, Take} {
		if res := take(n, w.now, byTenant(withOp(q, op), 1, 1)); !res.Over || !res.FairShare || res.Remaining != 0 {
			t.Errorf("operation %d above the tenant's share: %+v", op, res)
		}
	}
	if res := take(n, w.now, byTenant(withOp(q, Read), 1, 1)); res.Over || res.Remaining > 2 {
		t.Errorf("a reading: %+v", res)
	}
	all := n.Tenants(w.now, &q)
	if len(all) != 1 || all[0].Digest != 1 || all[0].Used != uint64(hog.got) || all[0].Offered != 1701 || all[0].Weight != 1 {
		t.Errorf("%d admitted, the tenants are %+v", hog.got, all)
	}
	refund := withOp(q, Refund)
	refund.Hits = 2
	take(n, w.now, byTenant(refund, 1, 1))
	if again := n.Tenants(w.now, &q); again[0].Used != all[0].Used-2 {
		t.Errorf("after a refund, the tenants are %+v", again)
	}
}

// With mechanism: static, each region divides its slice between its own tenants.
func TestFairStaticRegion(t *testing.T) {
	w := newRegions(t, 1, 1)
	w.terms = federation.RuleTerms{Floor: 100}
	q := w.ask(100, time.Minute)
	w.now = q.Rule.End(q.Rule.Index(w.now))
	hog, other := &stream{region: 0, tenant: 1, weight: 1, every: 100}, &stream{region: 0, tenant: 2, weight: 1, every: 3000}
	for range 2 { // windows
		hog.got, other.got = 0, 0
		w.run(q, 60_000, hog, other)
	}
	if hog.got+other.got != 50 || other.got != 20 || hog.fair == 0 {
		t.Errorf("%d and %d of the slice of 50 admitted", hog.got, other.got)
	}
}
