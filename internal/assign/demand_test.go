package assign

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/assign/lots"
	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/quota"
	"github.com/keyward/keyward/owner"
)

// demandsOf returns the number of open demands for the rig's key, and their sum.
func (r *rig) demandsOf() (n uint32, parts uint64) {
	return r.notesOf(lots.DemandRequest(&r.request, owner.DryRun, lots.Note{}))
}

// notesOf returns the number of holds in the counter of q, and their sum.
func (r *rig) notesOf(q owner.Request) (n uint32, parts uint64) {
	q.Hold = nil
	res := r.node.Decide(r.clock.Load(), &q)
	return res.Holds, res.Held
}

// give announces a demand and waits until the owner has it.
func (r *rig) give(hits uint64) {
	r.mu.Lock()
	r.announce(r.clock.Load(), quota.KeyDemand{Key: "k", Hits: hits})
	r.mu.Unlock()
	for busy := true; busy; {
		time.Sleep(time.Millisecond)
		r.mu.Lock()
		busy = r.keys["k"].noting
		r.mu.Unlock()
	}
}

// TestDemandsAreAddedUp checks that the owner has one demand of each member, the newest, and that those of members that
// are gone lapse.
func TestDemandsAreAddedUp(t *testing.T) {
	r := newRig(t, 1000*aMinute+int64(time.Second), 1000)
	r.mu.Lock()
	r.keys["k"] = &counter{request: r.request, usedAt: r.clock.Load()}
	r.mu.Unlock()
	check := func(what string, n uint32, parts uint64) {
		t.Helper()
		for range 1000 { // the demand before is released after the sum is known
			if gotN, _ := r.demandsOf(); gotN == n {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if gotN, got := r.demandsOf(); gotN != n || got != parts {
			t.Errorf("%s: %d demands of %d parts, not %d of %d", what, gotN, got, n, parts)
		}
	}
	other := lots.DemandRequest(&r.request, owner.Reserve, lots.Note{ID: claim.Ident{7, 7}, Parts: 5000})
	if res := r.node.Decide(r.clock.Load(), &other); res.Over {
		t.Fatalf("%+v", res)
	}
	r.give(2000)
	check("first", 2, 5000+2*lots.DemandUnit)
	r.clock.Add(int64(4 * time.Second))
	r.give(2010)
	check("nearly the same", 2, 5000+2*lots.DemandUnit)
	r.clock.Add(int64(4 * time.Second))
	r.give(500)
	check("less", 2, 5000+lots.DemandUnit/2)
	r.clock.Add(int64(5 * time.Second))
	r.give(500)
	r.node.Tick(r.clock.Load())
	check("the other one is gone", 1, lots.DemandUnit/2)
	r.clock.Add(int64(quota.DemandLife + time.Second))
	r.node.Tick(r.clock.Load())
	r.give(1 << 40)
	check("its own lapsed", 1, lots.DemandMost)
}
