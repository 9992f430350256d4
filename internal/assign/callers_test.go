package assign

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/keyward/keyward/envoy/rlqs"
	"github.com/keyward/keyward/internal/assign/lots"
	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/quota"
	"github.com/keyward/keyward/owner"
)

// TestDemandOfCalls checks that the demand of calls follows the calls, and lapses when they end, and that one below a fiftieth of the limit is not announced.
func TestDemandOfCalls(t *testing.T) {
	const limitOf = 6000
	r := newRig(t, 1000*aMinute+int64(time.Second), limitOf)
	var perSecond atomic.Uint64
	r.Close() // the test measures itself
	r.Assigner = New(Options{
		Charger: r.cluster, Send: r.sent.send, Members: func() int { return 1 }, Now: r.cluster.now,
	})
	t.Cleanup(r.Assigner.Close)
	r.mu.Lock()
	r.calls = func(see func(q *owner.Request, hits uint64)) {
		if n := perSecond.Load(); n > 0 {
			see(&r.request, n)
		}
	}
	r.calledAt = r.clock.Load()
	r.mu.Unlock()
	run := func(seconds int) {
		for range seconds {
			r.clock.Add(int64(time.Second))
			r.node.Tick(r.clock.Load())
			r.mu.Lock()
			r.measureCalls(r.clock.Load())
			r.mu.Unlock()
			for busy := true; busy; {
				time.Sleep(time.Millisecond)
				r.mu.Lock()
				c := r.Assigner.callers[r.request.Key]
				busy = c != nil && c.noting
				r.mu.Unlock()
			}
		}
	}
	check := func(what string, least, most float64) {
		t.Helper()
		if _, parts := r.notesOf(lots.CallsRequest(&r.request, owner.DryRun, lots.Note{})); float64(parts) < least*lots.DemandUnit || float64(parts) > most*lots.DemandUnit {
			t.Errorf("%s: a demand of %.3f limits, want %v to %v", what, float64(parts)/lots.DemandUnit, least, most)
		}
	}
	perSecond.Store(1)
	run(20)
	check("below a fiftieth", 0, 0)
	perSecond.Store(50)
	run(20)
	check("half of the limit", 0.45, 0.55)
	perSecond.Store(200)
	run(20)
	check("twice the limit", 1.8, 2.2)
	perSecond.Store(0)
	run(40 + int(quota.DemandLife/time.Second))
	check("no calls", 0, 0)
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.Assigner.callers); n != 0 {
		t.Errorf("%d keys are still measured", n)
	}
}

// TestCallsAfterClockSetBack checks that the demand of calls is still measured and announced when the clock was set back.
func TestCallsAfterClockSetBack(t *testing.T) {
	now := 1000*aMinute + int64(time.Second)
	r := newRig(t, now, 6000)
	r.Close() // the test measures itself
	r.calls = func(see func(q *owner.Request, hits uint64)) { see(&r.request, 50) }
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calledAt = now
	c := &caller{request: r.request, rate: 50, seenAt: now, note: lots.Note{Parts: lots.DemandUnit / 2, At: now}}
	r.callers[r.request.Key] = c
	now -= int64(time.Hour)
	if !r.callsDue(now) {
		t.Error("no measurement is due for an hour")
	}
	c.noting = true // announces nothing
	r.measureCalls(now)
	c.noting = false
	if next := lots.NewNote(&r.request, c.demand(), now, newIdent()); c.rate != 50 || !c.stale(now, &next) {
		t.Errorf("a rate of %v, and the note is not extended", c.rate)
	}
}

// TestUnknownDemandOfCalls checks that an exchange without an answer about calls, as while their counter moves to another owner,
// takes nothing from callers, and that they lose their part when no answer comes for long.
func TestUnknownDemandOfCalls(t *testing.T) {
	r := newRig(t, 1000*aMinute+int64(time.Second), 6000)
	moving := false
	r.as = func(q *owner.Request, res *owner.Result) {
		if calls := lots.CallsRequest(&r.request, owner.DryRun, lots.Note{}); moving && q.Key == calls.Key {
			*res = owner.Result{Authority: owner.Closed}
		}
	}
	r.Opened(r.cluster.now(), 1, rlqs.EnvoyStream{Name: "one"})
	r.report(1, 0, 5, 0)
	r.await(t, rlqs.AssignPair, 1)
	made := lots.CallsRequest(&r.request, owner.Reserve, lots.NewNote(&r.request, 3000, r.clock.Load(), claim.Ident{3}))
	if res := r.node.Decide(r.clock.Load(), &made); res.Over {
		t.Fatalf("%+v", res)
	}
	check := func(what string, want uint64) {
		t.Helper()
		r.mu.Lock()
		defer r.mu.Unlock()
		if got := r.ledger.Keys()[0].Calls; got != want {
			t.Errorf("%s: a demand of calls of %d, want %d", what, got, want)
		}
	}
	r.give(1000)
	check("known", 3000)
	moving = true
	r.give(1000)
	check("unknown", 3000)
	r.clock.Add(int64(quota.DemandLife))
	r.step(func(int64) {})
	check("unknown for long", 0)
}
