package quota

import (
	"testing"
	"time"
)

// TestMost checks how much of a limit a sidecar may have charged.
func TestMost(t *testing.T) {
	const begin = int64(1200 * time.Second)
	for name, c := range map[string]struct {
		held, next, left uint64
		ahead            bool
		own, all         float64
		members          int
		now              time.Duration
		want             uint64
	}{
		"no demands are known":                {members: 3, left: 1200, want: 392},
		"it has its part":                     {members: 3, left: 808, held: 392, want: 0},
		"half of the parts are free":          {members: 3, left: 808, held: 392, now: 5 * time.Second, want: 404},
		"the others have theirs":              {members: 3, left: 0, held: 392, now: 5 * time.Second, want: 0},
		"by demand":                           {members: 3, left: 1200, own: 2000, all: 2400, want: 980},
		"by demand, the next window":          {members: 3, left: 1200, own: 2000, all: 2400, held: 900, ahead: true, want: 980},
		"by demand, it has a part of its own": {members: 3, left: 300, held: 800, own: 2000, all: 2400, want: 180},
		"less than its part is left":          {members: 3, left: 100, own: 2000, all: 2400, want: 100},
		"demands below the limit":             {members: 3, left: 1200, own: 300, all: 400, want: 882},
		"one member, and the callers' part":   {members: 1, left: 1200, own: 2000, all: 2000, want: 1176},
		"the end of the window":               {members: 1, left: 24, held: 1176, own: 2000, all: 2000, now: 10*time.Second - 1, want: 23},
		"a sum that lacks its own":            {members: 3, left: 1200, own: 2000, all: 10, want: 1176},
	} {
		l := NewLedger(Options{Shared: true})
		l.SetMembers(c.members)
		a := newAllotment(l, begin, key, KeyQuota{Limit: 1200, Window: 10 * time.Second})
		now, w := begin+int64(c.now), a.window
		if a.held = c.held; c.ahead {
			w++
		}
		a.share = share{own: c.own, all: c.all, knownAt: now}
		a.learnLeft(now, &AskResult{WindowHits{Window: w, Hits: 1}, c.left})
		if got := a.most(now, w); got != c.want {
			t.Errorf("%s: %d, not %d", name, got, c.want)
		}
	}
}

// TestRefusedAskIsRepeated checks that a sidecar which asked for more than there was asks again at once, once, and that it
// asks again when what it knows is old.
func TestRefusedAskIsRepeated(t *testing.T) {
	r := newRig(t, 1000, time.Minute)
	r.l = NewLedger(Options{Shared: true})
	r.l.SetMembers(2)
	r.lent[r.window()] = 900
	r.broke = true
	r.first(1)
	equal(t, "asks", len(r.asks), 1)
	ask := func(left uint64) int {
		r.l.Granted(r.now, AskResult{WindowHits{Key: key, Window: r.window()}, left})
		r.run()
		return len(r.asks)
	}
	equal(t, "asks after a refusal", ask(100), 2)
	equal(t, "hits of the second", r.asks[1].Hits, 100)
	equal(t, "asks after a second refusal", ask(50), 2)
	r.wait(5 * time.Second)
	r.report(1, 0, 10)
	r.wait(time.Second)
	if n := len(r.asks); n < 3 {
		t.Errorf("%d asks", n)
	}
}

// TestDemands checks that a sidecar gives its demand when it has changed or is old, and asks by the sum.
func TestDemands(t *testing.T) {
	r := newRig(t, 1000, time.Minute)
	r.l = NewLedger(Options{Shared: true})
	r.l.SetMembers(10)
	r.first(1)
	equal(t, "demands without a rate", len(r.demands), 0)
	r.wait(5 * time.Second)
	r.report(1, 10, 490)
	r.wait(300 * time.Millisecond)
	equal(t, "demands", len(r.demands), 1)
	equal(t, "demand", r.demands[0], KeyDemand{key, 6000})
	equal(t, "hits with an equal part", r.lent[r.window()] < 200, true)
	r.l.Demanded(r.now, key, 7500)
	r.wait(2 * time.Second)
	equal(t, "hits by demand", r.lent[r.window()] > 780, true)
	r.wait(2 * time.Second)
	equal(t, "demands after 4 s", len(r.demands), 2)
}
