package owner

import (
	"slices"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/ring"
)

// maxChanges is how many changes of the ring are remembered.
const maxChanges = 8

// view is one immutable state of membership and tokens, swapped whole, shard by shard.
type view struct {
	*handoff.OwnershipView
	epoch   uint16
	sole    bool             // nobody else can be admitting, so that a pause changes nothing
	copies  bool             // another member of the ring may hold copies, so charges must be told
	legacy  map[ring.ID]bool // members that cannot hand over
	changes []change
}

// change is one change of the ring, the newest first, for the bounds that it may have cost.
type change struct {
	at      int64
	settled int64      // windows that begin from then on are untouched by it
	ring    *ring.Ring // the ring before, or the first one
	self    int
	first   bool
	legacy  []bool // by index on ring: it did not hand over, since it speaks no version of the protocol that can
	crashed []bool // by index on ring: it crashed
}

func newView(v *handoff.OwnershipView, changes []change, old map[ring.ID]bool) *view {
	r := v.Ring()
	n := &view{OwnershipView: v, epoch: v.Epoch(), legacy: old, changes: changes}
	n.sole = r.Len() == 1 && v.Self() == 0 && v.NRef() <= 1
	for i := range r.Len() {
		if i != v.Self() && !old[r.At(i).ID] {
			n.copies = true
		}
	}
	return n
}

// affected says of the key at h, in the window that began at start: whether others may have admitted hits of which
// nothing came here, and whether its owner crashed.
func (v *view) affected(hash uint64, start int64) (lost, crashed bool) {
	for i := range v.changes {
		c := &v.changes[i]
		if start >= c.settled {
			continue
		}
		o := c.ring.Owner(hash)
		if o < 0 || o == c.self && !c.first {
			continue
		}
		lost = lost || c.legacy[o] || c.first && slices.Contains(c.legacy, true)
		crashed = crashed || c.crashed[o]
	}
	return lost, crashed
}
