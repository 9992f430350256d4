package quota

import (
	"math"
	"slices"
	"testing"
	"time"
)

func TestFill(t *testing.T) {
	for _, c := range []struct {
		budget               float64
		needs, weights, want []float64
	}{
		{100, []float64{10, 20}, []float64{1, 1}, []float64{10, 20}},
		{100, []float64{10, 200}, []float64{1, 1}, []float64{10, 90}},
		{100, []float64{200, 200, 200}, []float64{1, 1, 2}, []float64{25, 25, 50}},
		{100, []float64{5, 200, 200}, []float64{10, 1, 1}, []float64{5, 47.5, 47.5}},
		{0, []float64{5, 5}, []float64{1, 1}, []float64{0, 0}},
		{100, nil, nil, nil},
	} {
		got := slices.Clone(c.needs)
		fill(c.budget, got, slices.Clone(c.weights))
		if !slices.Equal(got, c.want) {
			t.Errorf("%v of needs %v with weights %v: %v, want %v", c.budget, c.needs, c.weights, got, c.want)
		}
	}
}

func TestRate(t *testing.T) {
	var r rate
	r.measure(1000, 100*time.Millisecond)
	equal(t, "known after a tenth of a second", r.known, false)
	r.measure(500, 5*time.Second)
	equal(t, "first measurement", r.perSecond, 100)
	r.measure(520, 5*time.Second)
	equal(t, "within four deviations", math.Round(r.perSecond*10)/10, 100.8)
	r.measure(1000, 5*time.Second)
	equal(t, "a jump", r.perSecond, 200)
	equal(t, "need", r.need(2, 2), 400+2*20+1)
}

// Hits count against the oldest lease first.
func TestReportsCountOldestFirst(t *testing.T) {
	l := line{allotment: &allotment{}, carried: 5, past: 10, old: 3, live: 20}
	l.count(12)
	equal(t, "carried, past, doubt", [3]uint64{l.carried, l.past, l.doubt}, [3]uint64{0, 3, 7})
	equal(t, "spent, known", [2]uint64{l.spent, l.known}, [2]uint64{5, 0})
	l.count(10)
	equal(t, "past, doubt, old", [3]uint64{l.past, l.doubt, l.old}, [3]uint64{0, 10, 0})
	equal(t, "spent, known", [2]uint64{l.spent, l.known}, [2]uint64{12, 4})
	equal(t, "charge", l.charge(), 12+16)
	l.count(30)
	equal(t, "charge above the leases", l.charge(), 12+30)
}

// Hits that were taken for those of the window before may be of the replaced lease: they are not credited.
func TestCreditKeepsDoubt(t *testing.T) {
	l := line{old: 10, carried: 3, doubt: 4, past: 7, live: 5}
	equal(t, "credit", l.credit(), 9)
	equal(t, "charge", l.charge(), 4+5)
	equal(t, "doubt", l.doubt, 0)
}

// Reports of a new line may contain hits of leases of other streams, which were charged there.
func TestForeignHits(t *testing.T) {
	l := line{allotment: &allotment{}, past: unbounded, live: 20}
	l.count(30)
	equal(t, "charge", l.charge(), 20)
	l.credit()
	l.count(5)
	equal(t, "known", l.known, 5)

	l = line{allotment: &allotment{quota: KeyQuota{FirstAllow: true}}, past: unbounded, live: 20}
	l.count(30)
	equal(t, "charge with first: allow", l.charge(), 50)
}

func TestGrantIsMaxMin(t *testing.T) {
	lots := func(limit uint32) (lots []uint64) {
		r := newRig(t, limit, 10*time.Second)
		for _, l := range r.steady(100, 10, 10) {
			lots = append(lots, l.live)
		}
		return lots
	}
	got := lots(600) // far less than they need, so nothing is kept back
	if total := got[0] + got[1] + got[2]; total < 597 || total > 600 || got[0]/got[1] != 10 && got[0]/got[1] != 9 {
		t.Errorf("lots of 600: %v", got)
	}
	got = lots(3000) // needs are 1064, 121 and 121; half of the rest is spread, as much as doubles needs at most
	for i, need := range []uint64{1064, 121, 121} {
		if got[i] < need || got[i] > 2*need {
			t.Errorf("lots of 3000: %v", got)
		}
	}
	r := newRig(t, 1250, 10*time.Second)
	r.steady(100, 10, 10)
	if free := r.l.allotments[key].free(); free < 16 || free > 20 {
		t.Errorf("%d of 1250 are kept back", free)
	}
}

func TestRefusalsProveEmpty(t *testing.T) {
	r := newRig(t, 1000, time.Minute)
	l := r.first(1)
	size := l.live
	r.wait(5 * time.Second)
	r.report(1, 10, 3) // the lease was acknowledged during the interval: the refusals may be older
	equal(t, "rest after the first report", l.rest(), size)
	r.wait(5 * time.Second)
	r.report(1, 10, 3)
	equal(t, "spent", l.spent, size)
	equal(t, "old", l.old, 0) // another lease has replaced it
}

func TestTopUpAndReclaim(t *testing.T) {
	r := newRig(t, 1000, time.Minute)
	lines := r.steady(4, 4)
	r.pushes()
	a := r.l.allotments[key]
	r.wait(time.Second)
	r.report(1, 20, 0)
	r.report(2, 20, 0)
	r.none() // both last
	before := lines[0].live
	for range 3 { // the load of the first one grows five times
		r.wait(5 * time.Second)
		r.report(1, 100, 0)
		r.report(2, 20, 0)
	}
	if lines[0].live == before || a.charged > a.held {
		t.Errorf("lease of %d, charged %d of %d", lines[0].live, a.charged, a.held)
	}
}

// A replaced lease is credited by the first report that arrives a second after the acknowledgement.
func TestCreditNeedsReport(t *testing.T) {
	r := newRig(t, 1000, time.Minute)
	l := r.first(1)
	r.wait(5 * time.Second)
	r.report(1, 1, 0) // what the line had before is settled
	size, a := l.live, r.l.allotments[key]
	a.order(l, Pair, 100)
	r.wait(0)
	equal(t, "charge when replaced", a.charged, size+100)
	r.wait(900 * time.Millisecond)
	r.report(1, 1, 0)
	equal(t, "charge after a report within a second", a.charged, size+100)
	r.wait(200 * time.Millisecond)
	equal(t, "charge without another report", a.charged, size+100)
	r.report(1, 30, 0)
	equal(t, "charge after a report", a.charged, 100+32)
	r.deaf[1] = true
	a.order(l, Pair, 50)
	r.wait(6 * time.Second)
	r.report(1, 1, 0)
	equal(t, "charge without an acknowledgement", a.charged, 100+32+50)
}

func TestNoCreditAcrossStreams(t *testing.T) {
	r := newRig(t, 1000, time.Minute)
	l := r.first(1)
	size := l.live
	r.wait(5 * time.Second)
	r.report(1, 40, 0)
	r.l.Closed(r.now, 1)
	r.wait(time.Second)
	a := r.l.allotments[key]
	equal(t, "charge of the closed stream", a.charged, size)
	r.l.Opened(r.now, 2, "")
	r.report(2, 70, 0) // its Envoy has gone on
	r.wait(6 * time.Second)
	r.report(2, 0, 0)
	equal(t, "gone", a.gone, size)
	if l := r.l.streams[2].lines[key]; a.charged != size+l.live {
		t.Errorf("charged %d; %d and a lease of %d were pushed", a.charged, size, l.live)
	}
	r.turn(time.Millisecond)
	equal(t, "gone in the next window", a.gone, 0)
}

// An Envoy without requests for two reports has a lease for the load that it had, and a small one while others need the
// limit.
func TestIdle(t *testing.T) {
	r := newRig(t, 1000, time.Minute)
	l := r.first(1)
	r.wait(5 * time.Second)
	r.report(1, 40, 0)
	r.pushes()
	r.wait(5 * time.Second)
	r.report(1, 0, 0)
	r.none()
	r.wait(5 * time.Second)
	r.report(1, 0, 0)
	if n := r.one(Pair).Tokens; n < 8*6 || n > 2*8*6 {
		t.Errorf("a lease of %d for 8 hits a second", n)
	}
	busy := r.first(2)
	r.wait(5 * time.Second)
	r.report(2, 0, 100)
	r.report(1, 0, 0)
	r.wait(5 * time.Second)
	r.pushes()
	r.report(1, 0, 0)
	equal(t, "idle lease while others need the limit", r.one(Pair).Tokens, 10)
	r.wait(5 * time.Second)
	r.report(1, 0, 0)
	equal(t, "charge", r.charged()-busy.charge(), 40+10)
	for range 6 {
		r.wait(5 * time.Second)
		r.report(1, 0, 0)
	}
	r.l.Closed(r.now, 2)
	r.wait(5 * time.Second)
	r.pushes()
	r.report(1, 0, 0)
	equal(t, "TTL", r.one(Abandon).TTL, 0)
	equal(t, "lines", len(r.l.allotments[key].lines), 0)
	equal(t, "charge of an abandoned id", r.l.allotments[key].gone >= l.counted.charge, true)
	r.turn(2 * r.quota.Window)
	equal(t, "keys", len(r.l.Keys()), 0)
}

func TestOneResponsePerEnvoy(t *testing.T) {
	r := newRig(t, 1000, time.Minute)
	r.first(1)
	for _, k := range []Key{"x", "y"} {
		r.l.Report(r.now, BucketReport{Stream: 1, Key: k, Denied: 1}, r.quota)
	}
	r.pushes()
	begin := r.now
	r.wait(60 * time.Millisecond)
	sent := r.pushes()
	if len(sent) != 2 || sent[0].serial != sent[1].serial || sent[0].at != begin+int64(spacing) {
		t.Errorf("pushes %+v; want two in one response, 50 ms after the last one", sent)
	}
}

func TestCapOfIDs(t *testing.T) {
	r := newRig(t, 1000, time.Minute)
	r.l.Opened(r.now, 1, "")
	for i, k := range []Key{"a", "b", "c", "d"} {
		if got := r.l.Report(r.now, BucketReport{Stream: 1, Key: k, Denied: 1}, r.quota); got != (i < 3) {
			t.Errorf("report of id %d: %v", i+1, got)
		}
	}
	equal(t, "above the cap", r.l.Stats().OverCap, 1)
	equal(t, "ids", r.l.IDs(), 3)
	equal(t, "report without a stream", r.l.Report(r.now, BucketReport{Stream: 2, Key: key}, r.quota), false)
}

// An Envoy that has forgotten an id reports it as new.
func TestForgottenAssignment(t *testing.T) {
	r := newRig(t, 1000, time.Minute)
	l := r.first(1)
	r.wait(5 * time.Second)
	r.report(1, 40, 0)
	r.pushes()
	r.wait(2 * time.Second)
	r.l.Report(r.now, BucketReport{Stream: 1, Key: key, Denied: 1}, r.quota)
	r.run()
	r.one(Pair)
	equal(t, "old", l.old > 0, true)
}

// An Envoy may report all ids less than a second after a new one.
func TestReportAfterNewID(t *testing.T) {
	r := newRig(t, 1000, time.Minute)
	r.first(1)
	r.pushes()
	r.wait(300 * time.Millisecond)
	r.l.Report(r.now, BucketReport{Stream: 1, Key: key, Allowed: 20, Denied: 2}, r.quota)
	r.run()
	r.none()
}

func TestStalledEnvoy(t *testing.T) {
	r := newRig(t, 3000, 10*time.Second)
	lines := r.steady(40, 40)
	r.deaf[1] = true
	r.until(5 * time.Second)
	r.report(1, 200, 0)
	r.report(2, 200, 0)
	r.turn(time.Millisecond) // refused to it before the turn, with no answer
	r.turn(time.Millisecond)
	a := r.l.allotments[key]
	equal(t, "stalled", lines[0].stream.stalled(r.now), true)
	equal(t, "lease of a stalled Envoy", lines[0].live, 0)
	if lines[0].carried == 0 || lines[1].live+lines[0].carried > a.held {
		t.Errorf("carried %d, and a lease of %d, of %d", lines[0].carried, lines[1].live, a.held)
	}
	r.pushes()
	r.l.Acked(r.now, 1, lines[0].stream.serial)
	r.wait(0)
	equal(t, "lease after an acknowledgement", lines[0].live > 0, true)
}

func TestUnlimited(t *testing.T) {
	r := newRig(t, 0, 0)
	r.now, r.quota = 1e18, KeyQuota{Unlimited: true}
	r.first(1)
	equal(t, "TTL", r.one(Allow).TTL, 24*time.Hour)
	for range 3 * 3600 {
		r.wait(5 * time.Second)
		r.report(1, 1000, 0)
	}
	equal(t, "repeated", len(r.pushes()), 1)
	equal(t, "asks", len(r.asks), 0)
	r.quota = KeyQuota{Limit: 100, Window: time.Minute} // the rule is enforced again
	r.report(1, 1000, 0)
	r.wait(time.Second)
	if sent := r.pushes(); len(sent) == 0 || sent[0].Kind != Pair {
		t.Errorf("pushes %+v; want a lease", sent)
	}
}
