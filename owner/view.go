package owner

import (
	"github.com/keyward/keyward/ring"
)

// Standing is what membership says of this member's weight in decisions.
type Standing struct {
	NRef   int  // N_ref: the members that may be admitting, the lost ones included until their death is sure
	Joined bool // this member has joined its cluster, or stands alone on purpose
}

// maxViews is how many rings are remembered; windows older than that count as touched by a change.
const maxViews = 8

// view is one immutable state of membership, swapped whole, shard by shard.
type view struct {
	Standing
	ring  *ring.Ring
	self  int    // index on the ring; -1 is not on it
	epoch uint16 // 0 only before the first ring
	at    int64  // when the ring came
	prev  *view  // the ring before; nil: none, or forgotten
	first bool   // no ring came before this one
}

// n is the number of members a limit is shared over.
func (v *view) n() int { return max(1, v.NRef, v.ring.Len()) }

// alone says that nobody else can be admitting, so that a pause changes nothing.
func (v *view) alone() bool { return v.ring.Len() == 1 && v.self == 0 && v.NRef <= 1 }

// share is this member's part of limit for the key at h: floor(limit/N), and one more for the first limit mod N
// members in the key's ring order. Over all members it sums to limit.
func (v *view) share(limit uint32, h uint64) uint32 {
	n := uint64(v.n())
	part, rest := uint64(limit)/n, uint64(limit)%n
	if rest > 0 && v.self >= 0 && uint64(v.ring.Rank(h, v.self)) < rest {
		part++
	}
	return uint32(part)
}

// touched says that somebody else may have admitted hits on the key at h in the window that began at start, although
// this member owns the key now: another member owned it on a ring of that window, or members are missing who may
// stand on a ring of their own.
func (v *view) touched(h uint64, start, settle int64) bool {
	if v.ring.Len() < v.NRef {
		return true
	}
	for ; start < v.at+settle; v = v.prev {
		if v.first {
			// Who starts alone has the whole limit; who joins others takes keys over from them.
			return v.ring.Len() > 1
		}
		if v.prev == nil {
			return true
		}
		if p := v.prev; p.self < 0 || p.ring.Owner(h) != p.self {
			return true
		}
	}
	return false
}

// next is the view after v, with ring r from now on.
func (v *view) next(now int64, r *ring.Ring, self ring.ID, s Standing) *view {
	n := &view{Standing: s, ring: r, self: r.Index(self), epoch: v.epoch + 1, at: now, prev: v}
	if n.epoch == 0 {
		n.epoch = 1
	}
	switch {
	case v.epoch == 0:
		n.prev, n.first = nil, true
	case v.ring == r || r.Fingerprint() != 0 && v.ring.Fingerprint() == r.Fingerprint():
		n.at, n.prev, n.first = v.at, v.prev, v.first
	}
	n.trim()
	return n
}

// trim forgets the oldest rings. Views are shared with readers, so the ones kept are copied.
func (v *view) trim() {
	p := v
	for range maxViews - 1 {
		if p.prev == nil {
			return
		}
		c := *p.prev
		p.prev, p = &c, &c
	}
	p.prev = nil
}
