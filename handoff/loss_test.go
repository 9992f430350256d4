package handoff

import (
	"slices"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// lost returns the time of the loss with this number of failed members, as member a reports it.
func (c *cluster) lost(dead int) int64 {
	c.t.Helper()
	for _, l := range c.machines["a"].Losses(c.now) {
		if len(l.Dead) == dead {
			return l.FoundAt
		}
	}
	c.t.Fatalf("reports %+v, without a loss of %d members", c.machines["a"].Losses(c.now), dead)
	return 0
}

// TestLossKeepsItsDate requires that a repeated loss is not a new one. Otherwise it would be charged again to keys that
// were taken over long ago. While a ring is incomplete, the loss is repeated at each change.
func TestLossKeepsItsDate(t *testing.T) {
	for _, stays := range []bool{true, false} { // a leaving member takes nothing over, but repeats the loss
		c := newCluster(t, "a", "b", "c", "d")
		c.lose = func(from ring.ID, tr Transfer) bool { return from == "a" } // keeps a's base unchanged
		if !stays {
			c.states["a"] = membership.Leaving
			c.adoptAll()
		}
		crash := c.now
		delete(c.machines, "c")
		delete(c.machines, "d")
		c.adoptAll()
		c.run(3 * time.Second)
		first := c.lost(2)
		c.boot("e", membership.Active)
		c.adoptAll()
		c.run(20 * time.Second)
		if again := c.lost(2); first-crash > 3*int64(time.Second) || again != first {
			t.Errorf("a stays %v: %v after the crash, then %v", stays, time.Duration(first-crash), time.Duration(again-crash))
		}
		delete(c.machines, "b")
		c.adoptAll()
		c.run(3 * time.Second)
		if next := c.lost(3); next-first < 20*int64(time.Second) {
			t.Errorf("a stays %v: the next loss is %v after the first", stays, time.Duration(next-first))
		}
	}
}

// TestLossOfAZone requires that no state is lost with a zone whose keys have replicas in another one, and that the state
// is lost if the member with that replica has failed, too.
func TestLossOfAZone(t *testing.T) {
	zones := []string{"1", "1", "2", "2"}
	members := make([]ring.Member, len(zones))
	for i, zone := range zones {
		members[i] = ring.Member{ID: ring.ID("abcd"[i : i+1]), BootID: 1, Weight: 1, Zone: zone}
	}
	r := ring.New(members)
	zone := loss{ring: r, dead: []bool{true, true, false, false}}
	most := loss{ring: r, dead: []bool{true, true, true, false}}
	lost := 0
	for i := range uint64(500) {
		h := i << 55
		if zone.covers(h) {
			t.Fatalf("the state of %x is lost with zone 1", h)
		}
		order := r.Order(h, nil)
		other := slices.IndexFunc(order, func(m int) bool { return zones[m] != zones[order[0]] })
		want := order[0] != 3 && order[1] != 3 && order[other] != 3 // d is the only live member
		if most.covers(h) != want {
			t.Fatalf("the state of %x: lost %v, order %v", h, !want, order)
		}
		if want {
			lost++
		}
	}
	if lost == 0 || lost == 500 {
		t.Errorf("the state of %d of 500 keys is lost", lost)
	}
}

// TestLossDuringALeave requires that a member that has left counts neither as a member with a replica nor as a failed owner:
// what it had is on the ring without it. Its ring is the base until the ring without it is complete, and here its next
// members fail before that.
func TestLossDuringALeave(t *testing.T) {
	for _, forgotten := range []bool{false, true} { // the cluster remembers a member that has left only for a while
		c := newCluster(t, "a", "b", "c", "d")
		with := c.ring()
		c.states["a"] = membership.Leaving
		without := c.ring()
		delete(c.machines, "b")
		adopt := func(r *ring.Ring) {
			for _, id := range c.ids() {
				c.adopt(id, r)
			}
			c.run(200 * time.Millisecond)
		}
		adopt(without)
		delete(c.machines, "a")
		c.left = []ring.ID{"a"}
		adopt(without)
		if c.machines["d"].View().base.Fingerprint() != with.Fingerprint() {
			t.Fatal("the ring without a is complete too early for this test")
		}
		if forgotten {
			c.left = nil
			adopt(without)
		}
		delete(c.machines, "c")
		c.adoptAll()
		c.run(10 * time.Second)
		c.steady()
		kinds := map[bool]int{}
		for h := range uint64(500) {
			h *= 0x9E3779B97F4A7C15
			want := without.At(without.Owner(h)).ID != "d" && without.At(without.Successor(h)).ID != "d"
			if _, lost := c.machines["d"].View().Lost(h); lost != want {
				t.Fatalf("forgotten %v: key %x: lost %v, owner with a %s, without %s, successor with a %s, without %s", forgotten, h, lost,
					with.At(with.Owner(h)).ID, without.At(without.Owner(h)).ID, with.At(with.Successor(h)).ID, without.At(without.Successor(h)).ID)
			}
			kinds[want]++
		}
		if len(kinds) != 2 {
			t.Errorf("the keys are all alike: %v", kinds)
		}
	}
}
