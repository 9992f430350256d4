//go:build !race

package handoff

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// TestNoTwoHolders requires that no two members own the same key, in any order in which members adopt rings and receive
// messages, as long as none fails.
func TestNoTwoHolders(t *testing.T) {
	for seed := range uint64(300) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			c := newCluster(t, "a", "b", "c", "d")
			rings := []*ring.Ring{c.ring()}
			for range 60 {
				ids := c.ids()
				id := ids[rnd.IntN(len(ids))]
				switch rnd.IntN(10) {
				case 0:
					c.states[id] = membership.Active + membership.Leaving - c.states[id]
					rings = append(rings, c.ring())
				case 1, 2, 3:
					c.adopt(id, rings[rnd.IntN(len(rings))])
				case 4:
					c.adopt(id, rings[len(rings)-1])
				case 5:
					c.now += 100 * ms
					for _, id := range c.ids() {
						c.send(id, c.machines[id].Tick(c.now))
					}
				default:
					c.deliver(rnd)
				}
				c.check(0)
			}
			for _, id := range c.ids() {
				c.states[id] = membership.Active
			}
			c.adoptAll()
			c.run(4 * time.Second)
			c.steady()
		})
	}
}

// TestHealTakesOverWhatIsFree ends a partition, after which both sides own all keys. In any order of events, a member
// may keep what it owns, but takes over nothing that another member still owns.
func TestHealTakesOverWhatIsFree(t *testing.T) {
	for seed := range uint64(200) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 2))
			c := newCluster(t, "a", "b", "c", "d", "e")
			whole := c.ring()
			side := func(id ring.ID) bool { return id == "a" || id == "b" || seed%2 == 0 && id == "c" }
			c.cut = func(from, to ring.ID) bool { return side(from) != side(to) }
			c.run(4 * time.Second)
			c.part(side)
			c.run(4 * time.Second)
			c.cut = nil
			if seed%3 == 0 { // one leaves at that moment, so that keys also move within its side
				c.states["b"] = membership.Leaving
				whole = c.ring()
			}
			held := c.gains(nil)
			waiting := c.ids()
			for len(waiting) > 0 || len(c.queue) > 0 {
				if i := rnd.IntN(8); i < len(waiting) {
					c.adopt(waiting[i], whole)
					waiting = slices.Delete(waiting, i, i+1)
				} else if i == 7 {
					c.now += 50 * ms
					for _, id := range c.ids() {
						c.send(id, c.machines[id].Tick(c.now))
					}
					if len(waiting) == 0 {
						break
					}
				} else {
					c.deliver(rnd)
				}
				held = c.gains(held)
			}
			c.run(5 * time.Second)
			c.steady()
		})
	}
}

// gains fails if a member starts to own a key that another one owns.
func (c *cluster) gains(before map[ring.ID]map[uint64]bool) map[ring.ID]map[uint64]bool {
	c.t.Helper()
	now := map[ring.ID]map[uint64]bool{}
	for _, id := range c.ids() {
		now[id] = map[uint64]bool{}
	}
	for h := range uint64(100) {
		h *= 0x9E3779B97F4A7C15
		got := c.holders(h)
		for _, id := range got {
			now[id][h] = true
			if before != nil && !before[id][h] && len(got) > 1 {
				c.t.Fatalf("%s starts to own key %x, owned by %v", id, h, got)
			}
		}
	}
	return now
}

// part makes each side take the members of the other one for failed.
func (c *cluster) part(side func(ring.ID) bool) {
	for _, mine := range []bool{true, false} {
		var ms []ring.Member
		for _, id := range c.ids() {
			if side(id) == mine {
				ms = append(ms, ring.Member{ID: id, BootID: c.bootID(id), Incarnation: 1, Weight: 1})
			}
		}
		c.isolate(ring.New(ms), 5)
	}
}
