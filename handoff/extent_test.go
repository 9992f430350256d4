package handoff

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/ring"
)

// TestCrashIsTakenOverNextToTheNextBoot requires a takeover although the next boot of the failed member is joining and
// has not received the ring without the previous boot: it never owned that boot's keys, so nothing has to come from it.
func TestCrashIsTakenOverNextToTheNextBoot(t *testing.T) {
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
	if extent, num, den := c.machines[id].View().Extent(c.now, policy.PartShare); extent != want {
		c.t.Fatalf("%s has extent %d, %d/%d, want %d", id, extent, num, den, want)
	}
}

// TestLeaverCountsForItselfOnly requires that the confirmation of a leaving member replaces one that N_ref counts, but
// not that of a failed member, which may still be admitting.
func TestLeaverCountsForItselfOnly(t *testing.T) {
	c := newCluster(t, "a", "b")
	c.states["b"] = membership.Leaving
	c.adoptAll() // N_ref is still 2
	c.run(time.Second)
	c.reach("a", ExtentFull)

	c = newCluster(t, "a", "b", "c", "d", "e")
	delete(c.machines, "d")
	delete(c.machines, "e")
	c.states["c"], c.nref = membership.Leaving, 4 // N_ref no longer counts c; a and b are two of the four that it counts
	c.adoptAll()
	c.run(2 * time.Second)
	c.reach("a", ExtentPart)

	c = newCluster(t, "a", "b", "c")
	c.states["c"], c.nref = membership.Leaving, 2 // N_ref no longer counts c; it counts a and b
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

// TestSmallerPartYieldsThoughItsRingNeverChanged lets a partition end before the smaller side noticed it. Its members
// must give up what the larger side has taken over as soon as they hear from one of its members, or two members would
// decide one key.
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
	for range 20 { // d and e confirm b, too, which does not know that a and c are back
		c.run(100 * time.Millisecond)
		c.reach("b", ExtentPart)
		c.check(0)
	}
	c.cut = nil
	c.adopt("b", whole)
	c.run(2 * time.Second)
	c.steady()
}

// takeOver makes the given members take all others for failed.
func (c *cluster) takeOver(ids ...ring.ID) {
	var ms []ring.Member
	for _, id := range ids {
		ms = append(ms, ring.Member{ID: id, BootID: c.bootID(id), Incarnation: 1, Weight: 1})
	}
	c.isolate(ring.New(ms), c.nref)
}
