package handoff

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// lost is the date of the loss of so many members that a tells.
func (c *cluster) lost(dead int) int64 {
	c.t.Helper()
	for _, l := range c.machines["a"].Losses(c.now) {
		if len(l.Dead) == dead {
			return l.FoundAt
		}
	}
	c.t.Fatalf("tells %+v, and of no %d dead", c.machines["a"].Losses(c.now), dead)
	return 0
}

// A loss that is told again is not a new one: it would be charged a second time to keys that were taken over long ago. On a ring
// that is not complete for long it is told at each change.
func TestLossKeepsItsDate(t *testing.T) {
	for _, stays := range []bool{true, false} { // who leaves takes nothing over, and tells all the same
		c := newCluster(t, "a", "b", "c", "d")
		c.lose = func(from ring.ID, tr Transfer) bool { return from == "a" } // so its base stays what it was
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
			t.Errorf("a stays %v: dated %v after the crash, then %v", stays, time.Duration(first-crash), time.Duration(again-crash))
		}
		delete(c.machines, "b")
		c.adoptAll()
		c.run(3 * time.Second)
		if next := c.lost(3); next-first < 20*int64(time.Second) {
			t.Errorf("a stays %v: the next loss is dated %v after the first", stays, time.Duration(next-first))
		}
	}
}
