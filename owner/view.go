package owner

import (
	"slices"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/ring"
)

// maxChanges is the number of ring changes that are recorded.
const maxChanges = 8

// view is a snapshot of membership and ownership. All shards get a new one, one after the other.
type view struct {
	*handoff.OwnershipView
	epoch   uint16
	sole    bool             // no other member can admit hits, so that a pause changes nothing
	copies  bool             // another member of the ring can hold replicas, so charges are replicated
	legacy  map[ring.ID]bool // members whose version has no handoff
	changes []change         // the newest first
	// divisors are the values by which limits were divided, the newest first.
	divisors []divisor
}

// change is one change of the ring, with which counts may have been lost.
type change struct {
	at      int64
	settled int64      // windows that begin from then on are not affected
	ring    *ring.Ring // the ring before the change, or the first one
	self    int
	first   bool
	legacy  []bool // by index in ring: its version has no handoff
	crashed []bool // by index in ring
}

func newView(v *handoff.OwnershipView, changes []change, legacy map[ring.ID]bool) *view {
	r := v.Ring()
	n := &view{OwnershipView: v, epoch: v.Epoch(), legacy: legacy, changes: changes}
	n.sole = r.Len() == 1 && v.Self() == 0 && v.NRef() <= 1
	for i := range r.Len() {
		if i != v.Self() && !legacy[r.At(i).ID] {
			n.copies = true
		}
	}
	return n
}

// affected reports whether other members may have admitted hits of the key at ringPos, in the window that began at
// start, that this member has not received, and whether the key's owner crashed.
func (v *view) affected(ringPos uint64, start int64) (lost, crashed bool) {
	for i := range v.changes {
		c := &v.changes[i]
		if start >= c.settled {
			continue
		}
		o := c.ring.Owner(ringPos)
		if o < 0 || o == c.self && !c.first {
			continue
		}
		lost = lost || c.legacy[o] || c.first && slices.Contains(c.legacy, true)
		crashed = crashed || c.crashed[o]
	}
	return lost, crashed
}
