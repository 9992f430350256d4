package handoff

import (
	"slices"

	"github.com/keyward/keyward/ring"
)

// maxSteps is how many rings may be adopted without one of them becoming complete. Beyond, all tokens are given up and
// come back when everybody has acknowledged the present ring.
const maxSteps = 8

// OwnershipView is what decisions need of a Machine at one moment. It is immutable, so it may be read without a lock.
type OwnershipView struct {
	ring   *ring.Ring
	self   int // index on ring; -1: not on it
	epoch  uint16
	seq    uint64
	nref   int
	joined bool

	base          *ring.Ring // the tokens held at first are those of the keys that self owned on it; nil: none
	baseSelf      int
	steps         []step // rings adopted since, the last is ring; empty: base is ring, and nothing is in motion
	losses        []loss // state that went with its holders, the newest first
	live          map[ring.ID]bool
	confirmations confirmations
	history       []*ring.Ring // rings before this one, the newest first
}

// step is one adopted ring and what became of the tokens while it was the present one.
type step struct {
	ring     *ring.Ring
	self     int
	epoch    uint16
	released []bool  // by index on ring: that member was given all of its keys that were held here
	proofs   []proof // arcs that their holders have given to self
	allOwned bool    // all of self's keys on ring were given, or their holders are gone
}

// proof says that all keys owned by member from on ring were released to self.
type proof struct {
	ring *ring.Ring
	from int
}

// StatehipState says what a Hold is.
type OwnershipState uint8

// The reasons.
const (
	OwnedHere      OwnershipState = iota // decide: the token is here
	OwnedElsewhere                       // ask Member, the owner by the ring; no Member: nobody better is known
	InHandoff                            // the ring names self, but the token is with Member; no Member: wait for acknowledgements
)

// Ownership is who decides a key.
type Ownership struct {
	State  OwnershipState
	Member ring.ID
}

// Ring is the ring that was adopted last.
func (v *OwnershipView) Ring() *ring.Ring { return v.ring }

// Self is this member's index on Ring; -1: it is not on it.
func (v *OwnershipView) Self() int { return v.self }

// Epoch numbers views with different tokens, rings or standings; never 0. It comes round after 65,535 of them.
func (v *OwnershipView) Epoch() uint16 { return v.epoch }

// Seq is the number of this member's adoption of Ring.
func (v *OwnershipView) Seq() uint64 { return v.seq }

// NRef is the number of members that a limit is shared over.
func (v *OwnershipView) NRef() int { return max(1, v.nref, v.ring.Len()) }

// Joined says whether this member takes part.
func (v *OwnershipView) Joined() bool { return v.joined }

// Steady says that tokens are exactly what the ring says.
func (v *OwnershipView) Steady() bool { return len(v.steps) == 0 && v.base == v.ring }

// LocalShare is this member's part of limit for the key at h: floor(limit/N), and one more for the first limit mod N
// members in the key's ring order. Over all members it sums to limit.
func (v *OwnershipView) LocalShare(limit uint32, h uint64) uint32 {
	n := uint64(v.NRef())
	part, rest := uint64(limit)/n, uint64(limit)%n
	if rest > 0 && v.self >= 0 && uint64(v.ring.Rank(h, v.self)) < rest {
		part++
	}
	return uint32(part)
}

// Ownership says who decides the key at h. gained is the epoch of a view in which the token of this very key was here, be it
// that it was received alone (Sealed with Given) or that Hold said Mine; 0 is never.
func (v *OwnershipView) Ownership(h uint64, gained uint16) Ownership {
	o := v.ring.Owner(h)
	switch {
	case !v.joined || o < 0:
		return Ownership{State: OwnedElsewhere}
	case v.Steady():
		if o == v.self {
			return Ownership{State: OwnedHere}
		}
	case v.ownedThrough(h, gained, len(v.steps)):
		return Ownership{State: OwnedHere}
	case o == v.self:
		return Ownership{InHandoff, v.lastOwner(h)}
	}
	return Ownership{OwnedElsewhere, v.ring.At(o).ID}
}

// ownedThrough says whether the token of the key at h is here, given the first n steps.
func (v *OwnershipView) ownedThrough(h uint64, gained uint16, n int) bool {
	has := v.base != nil && v.baseSelf >= 0 && v.base.Owner(h) == v.baseSelf
	first := 0
	for i := n - 1; i >= 0 && gained != 0; i-- {
		if int16(gained-v.steps[i].epoch) >= 0 { // the step during which it was here
			has, first = true, i
			break
		}
	}
	for i := first; i < n; i++ {
		has = v.steps[i].ownedAfter(h, has)
	}
	return has
}

// ownedAfter is whether the token is here after the step, had being whether it was before.
func (s *step) ownedAfter(h uint64, had bool) bool {
	o := s.ring.Owner(h)
	switch {
	case o < 0:
		return had
	case o != s.self:
		return had && !s.released[o]
	case had || s.allOwned:
		return true
	}
	return slices.ContainsFunc(s.proofs, func(p proof) bool { return p.ring.Owner(h) == p.from })
}

// lastOwner is the live member that was the last, as far as is known here, to hold the token of the key at h.
func (v *OwnershipView) lastOwner(h uint64) ring.ID {
	if v.base != nil && v.base != v.ring {
		if id := v.liveOwner(v.base, h); id != "" {
			return id
		}
	}
	for _, r := range v.history {
		if id := v.liveOwner(r, h); id != "" {
			return id
		}
	}
	return ""
}

func (v *OwnershipView) liveOwner(r *ring.Ring, h uint64) ring.ID {
	o := r.Owner(h)
	if o < 0 {
		return ""
	}
	if id := r.At(o).ID; v.live[id] {
		return id
	}
	return ""
}

// Reply says what to answer a member that asks, by the ring with that fingerprint, for the token of the key at h: Given
// needs that the Machine has seen the request first, so that all keys of that member are released.
func (v *OwnershipView) Reply(h uint64, gained uint16, asker ring.ID, fingerprint uint64) (ReplyStatus, ring.ID) {
	if v.Ownership(h, gained).State == OwnedHere {
		return KeyKept, ""
	}
	if fingerprint != v.ring.Fingerprint() {
		return keyRefused, ""
	}
	o := v.ring.Owner(h)
	if o < 0 || v.ring.At(o).ID != asker {
		return keyRefused, ""
	}
	// Released to the asker a moment ago, while the transfer may still be on its way: it may have this key ahead of it.
	if n := len(v.steps); n > 0 && v.steps[n-1].released[o] && v.ownedThrough(h, gained, n-1) {
		return KeyGiven, ""
	}
	for i := len(v.steps) - 2; i >= 0; i-- {
		if s := &v.steps[i]; v.ownedThrough(h, gained, i) && !v.ownedThrough(h, gained, i+1) {
			return KeyGone, s.ring.At(s.ring.Owner(h)).ID
		}
	}
	return keyUnknown, ""
}

// Extent is by what right a member decides the keys whose tokens it holds.
type Extent uint8

// The rights.
const (
	ExtentNone Extent = iota // nobody confirms this member: only its share
	ExtentPart               // limit * Num / Den
	ExtentFull               // the limit
)

// ConfirmedBy is how many members of the ring stand by this one at now, itself included; 0: it is not on the ring.
func (v *OwnershipView) ConfirmedBy(now int64) int {
	if v.self < 0 {
		return 0
	}
	return v.confirmations.members(now)
}

// confirmations is who confirms this member, and until when.
type confirmations struct {
	until     []int64 // ends of the confirmations by other members, latest first
	others    int     // members on the ring beside self
	nref      int
	policy    PartitionPolicy
	noHandoff int // members that always count, because they cannot confirm
}

// Extent is the right to decide at now, and with Part the fraction of the limit.
func (v *OwnershipView) Extent(now int64) (r Extent, num, den uint32) {
	return v.confirmations.extent(now)
}

func (r *confirmations) extent(now int64) (Extent, uint32, uint32) {
	if r.others > 0 && r.noHandoff == 0 && (len(r.until) == 0 || r.until[0] < now) {
		return ExtentNone, 0, 1
	}
	need := max(1, r.nref) - 1 - tolerated(r.nref) - r.noHandoff
	if need <= 0 || need <= len(r.until) && r.until[need-1] >= now {
		return ExtentFull, 1, 1
	}
	n := r.members(now)
	switch r.policy {
	case PolicyAvailable:
		return ExtentFull, 1, 1
	case PolicyQuorum:
		if 2*n > r.nref {
			return ExtentFull, 1, 1
		}
		return ExtentPart, 0, 1
	}
	return ExtentPart, uint32(n), uint32(r.nref)
}

// members is how many there are, self included.
func (r *confirmations) members(now int64) int {
	n := 1 + r.noHandoff
	for _, u := range r.until {
		if u >= now {
			n++
		}
	}
	return n
}

// tolerated is f, how many members a full right may miss.
func tolerated(nref int) int {
	if nref >= 3 {
		return 1
	}
	return 0
}
