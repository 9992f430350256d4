package handoff

import (
	"testing"
	"time"

	"github.com/keyward/keyward/ring"
)

// A crash is taken over also when the next boot of the lost member is there already, waits for its place, and has not
// heard of the ring without the one before: it held none of that one's tokens, so nothing has to come from it.
func TestCrashIsTakenOverBesideTheNextBoot(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	delete(c.machines, "b")
	c.run(3 * time.Second)
	c.boot("b", Joining)
	r := c.ring()
	c.adopt("a", r)
	c.adopt("c", r)
	c.run(time.Second)
	c.steady()
}

func (c *cluster) reach(id ring.ID, want Right) {
	c.t.Helper()
	if right, num, den := c.machines[id].View().Reach(c.now); right != want {
		c.t.Fatalf("%s has right %d, %d/%d, want %d", id, right, num, den, want)
	}
}

// A leaver that confirms takes the place of one that N_ref counts, but not of one that is lost: the others may be admitting.
func TestLeaverStandsForItselfAlone(t *testing.T) {
	c := newCluster(t, "a", "b")
	c.states["b"] = Leaving
	c.adoptAll() // N_ref is 2 still
	c.run(time.Second)
	c.reach("a", Full)

	c = newCluster(t, "a", "b", "c", "d", "e")
	delete(c.machines, "d")
	delete(c.machines, "e")
	c.states["c"], c.nref = Leaving, 4 // c was taken off N_ref, and a and b are two of the four that are left
	c.adoptAll()
	c.run(2 * time.Second)
	c.reach("a", Part)
}
