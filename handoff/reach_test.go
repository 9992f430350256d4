package handoff

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// A crash is taken over also when the next boot of the lost member is there already, waits for its place, and has not
// heard of the ring without the one before: it held none of that one's tokens, so nothing has to come from it.
func TestCrashIsTakenOverBesideTheNextBoot(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	delete(c.machines, "b")
	c.run(3 * time.Second)
	c.boot("b", membership.Joining)
	r := c.ring()
	c.adopt("a", r)
	c.adopt("c", r)
	c.run(time.Second)
	c.steady()
}

func (c *cluster) reach(id ring.ID, want Extent) {
	c.t.Helper()
	if right, num, den := c.machines[id].View().Extent(c.now); right != want {
		c.t.Fatalf("%s has right %d, %d/%d, want %d", id, right, num, den, want)
	}
}

// A leaver that confirms takes the place of one that N_ref counts, but not of one that is lost: the others may be admitting.
func TestLeaverStandsForItselfAlone(t *testing.T) {
	c := newCluster(t, "a", "b")
	c.states["b"] = membership.Leaving
	c.adoptAll() // N_ref is 2 still
	c.run(time.Second)
	c.reach("a", ExtentFull)

	c = newCluster(t, "a", "b", "c", "d", "e")
	delete(c.machines, "d")
	delete(c.machines, "e")
	c.states["c"], c.nref = membership.Leaving, 4 // c was taken off N_ref, and a and b are two of the four that are left
	c.adoptAll()
	c.run(2 * time.Second)
	c.reach("a", ExtentPart)

	c = newCluster(t, "a", "b", "c")
	c.states["c"], c.nref = membership.Leaving, 2 // c was taken off N_ref, and the two that it counts are a and b
	c.adoptAll()
	c.run(time.Second)
	c.reach("a", ExtentFull)
	delete(c.machines, "b")
	for range 3 { // also when the ring without b is complete
		c.adoptAll()
		c.run(2 * time.Second)
		c.reach("a", ExtentPart)
	}
	c.nref = 1
	c.adoptAll()
	c.reach("a", ExtentFull)
}

// Members of a part that never noticed it, because it ended before they missed the others, give up what the larger part
// has made anew as they hear from one of that: else it could stand by two members that decide one key.
func TestSmallerPartYieldsThoughItsRingNeverChanged(t *testing.T) {
	c := newCluster(t, "a", "b", "c", "d", "e")
	whole := c.ring()
	small := func(id ring.ID) bool { return id == "a" || id == "c" }
	c.cut = func(from, to ring.ID) bool { return small(from) != small(to) }
	c.run(2 * time.Second)
	c.takeOver("b", "d", "e")
	c.run(2 * time.Second)
	c.reach("b", ExtentPart)
	c.reach("c", ExtentPart)
	c.cut = func(from, to ring.ID) bool { return small(from) && to == "b" || small(to) && from == "b" }
	c.adopt("d", whole)
	c.adopt("e", whole)
	for range 20 { // d and e stand by b, too, which has not heard that a and c are back
		c.run(100 * time.Millisecond)
		c.reach("b", ExtentPart)
		c.check(0)
	}
	c.cut = nil
	c.adopt("b", whole)
	c.run(2 * time.Second)
	c.steady()
}

// takeOver lets ids alone see all others die.
func (c *cluster) takeOver(ids ...ring.ID) {
	var ms []ring.Member
	for _, id := range ids {
		ms = append(ms, ring.Member{ID: id, BootID: c.bootID(id), Incarnation: 1, Weight: 1})
	}
	for _, id := range ids {
		s := Membership{NRef: c.nref, Joined: true}
		for _, m := range ms {
			if m.ID != id {
				s.Peers = append(s.Peers, LivePeer{ID: m.ID, BootID: m.BootID, State: membership.Active, Weight: 1})
			}
		}
		c.send(id, c.machines[id].SetRing(c.now, ring.New(ms), s))
	}
}
