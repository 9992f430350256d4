package handoff

import (
	"math"
	"slices"

	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/ring"
)

// maxSteps is the number of rings that may be adopted without one of them becoming complete. Beyond it, a member
// revokes its own ownership and regains it when every member has acknowledged the current ring.
const maxSteps = 8

// OwnershipView is the part of a Machine that decisions need. It is immutable and may be read without a lock.
type OwnershipView struct {
	ring   *ring.Ring
	self   int // index in ring, or -1 if not on it
	epoch  uint16
	seq    uint64
	nref   int
	joined bool

	base          *ring.Ring // the ring whose keys this member owned initially; nil: none
	baseSelf      int
	steps         []step // rings adopted since base, the last is ring; empty: base is ring
	losses        []loss // lost state, newest first
	live          map[ring.ID]bool
	confirmations confirmations
	history       []*ring.Ring // earlier rings, newest first
}

// step is one adopted ring and the changes of ownership while it was the current one.
type step struct {
	ring     *ring.Ring
	self     int
	epoch    uint16
	released []bool  // by index in ring: the member was given all its keys that this member owned
	proofs   []proof // arcs that were transferred to this member
	allOwned bool    // this member owns all its keys on ring
}

// proof states that all keys owned by member from on ring were released to this member.
type proof struct {
	ring *ring.Ring
	from int
}

// same reports whether x and y prove the same release.
func (x proof) same(y proof) bool {
	return x.from == y.from && x.ring.Fingerprint() == y.ring.Fingerprint()
}

// OwnershipState is the case that an Ownership describes.
type OwnershipState uint8

// The ownership states.
const (
	OwnedHere      OwnershipState = iota // this member owns the key and decides
	OwnedElsewhere                       // Member owns the key by the ring; without Member, the owner is unknown
	InHandoff                            // assigned to this member, but Member owns it; no Member: wait for Acks
)

// Ownership identifies the member that decides a key.
type Ownership struct {
	State  OwnershipState
	Member ring.ID
}

// Ring returns the ring that was adopted last.
func (v *OwnershipView) Ring() *ring.Ring { return v.ring }

// Self returns the index of this member in Ring, or -1 if it is not on the ring.
func (v *OwnershipView) Self() int { return v.self }

// Epoch returns the number of the view. Views with different ownership, ring or membership have different numbers,
// never 0. It wraps around after 65,535 views.
func (v *OwnershipView) Epoch() uint16 { return v.epoch }

// Seq returns the number of this member's adoption of Ring.
func (v *OwnershipView) Seq() uint64 { return v.seq }

// NRef returns N_ref, the number of members by which a limit is divided.
func (v *OwnershipView) NRef() int { return max(1, v.nref, v.ring.Len()) }

// Joined reports whether this member has joined its cluster.
func (v *OwnershipView) Joined() bool { return v.joined }

// Steady reports whether ownership is exactly what the ring says.
func (v *OwnershipView) Steady() bool { return len(v.steps) == 0 && v.base == v.ring }

// LocalShare returns this member's part of limit for the key at h: floor(limit/N), plus one for the first limit mod N
// members in the key's ring order. The shares of all members add up to limit.
func (v *OwnershipView) LocalShare(limit uint32, h uint64) uint32 {
	n := uint64(v.NRef())
	part, rest := uint64(limit)/n, uint64(limit)%n
	if rest > 0 && v.self >= 0 && uint64(v.ring.Rank(h, v.self)) < rest {
		part++
	}
	return uint32(part)
}

// Ownership returns the member that decides the key at h. gained is the epoch of a view in which this member owned this
// very key, either because it was transferred alone (KeyGiven) or because Ownership returned OwnedHere; 0 means never.
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

// ownedThrough reports whether this member owns the key at h after the first n steps.
func (v *OwnershipView) ownedThrough(h uint64, gained uint16, n int) bool {
	has := v.base != nil && v.baseSelf >= 0 && v.base.Owner(h) == v.baseSelf
	first := 0
	for i := n - 1; i >= 0 && gained != 0; i-- {
		if int16(gained-v.steps[i].epoch) >= 0 { // the step during which the key was owned
			has, first = true, i
			break
		}
	}
	for i := first; i < n; i++ {
		has = v.steps[i].ownedAfter(h, has)
	}
	return has
}

// ownedAfter reports whether this member owns the key at h after the step, given whether it owned the key before.
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

// lastOwner returns the live member that was the last known owner of the key at h, or "".
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

// Reply returns the reply to a member that uses the given ring version and requests the ownership of the key at h.
// KeyGiven requires that the Machine has processed the request first, so that all keys of that member are released.
func (v *OwnershipView) Reply(
	h uint64, gained uint16, member ring.ID, fingerprint uint64,
) (protocol.ReplyStatus, ring.ID) {
	if v.Ownership(h, gained).State == OwnedHere {
		return protocol.KeyKept, ""
	}
	if fingerprint != v.ring.Fingerprint() {
		return protocol.KeyRefused, ""
	}
	o := v.ring.Owner(h)
	if o < 0 || v.ring.At(o).ID != member {
		return protocol.KeyRefused, ""
	}
	// The key was released to the member a moment ago. The transfer may still be in progress; the reply overtakes it.
	if n := len(v.steps); n > 0 && v.steps[n-1].released[o] && v.ownedThrough(h, gained, n-1) {
		return protocol.KeyGiven, ""
	}
	for i := len(v.steps) - 2; i >= 0; i-- {
		if s := &v.steps[i]; v.ownedThrough(h, gained, i) && !v.ownedThrough(h, gained, i+1) {
			return protocol.KeyGone, s.ring.At(s.ring.Owner(h)).ID
		}
	}
	return protocol.KeyUnknown, ""
}

// Extent is how much of a limit a member may admit for the keys that it owns.
type Extent uint8

// The extents.
const (
	ExtentNone Extent = iota // no peer confirms this member: only its local share
	ExtentPart               // limit * num / den
	ExtentFull               // the complete limit
)

// ConfirmedBy returns the number of members on the ring that confirm this member at now, including itself, or 0 if it
// is not on the ring.
func (v *OwnershipView) ConfirmedBy(now int64) int {
	if v.self < 0 {
		return 0
	}
	return v.confirmations.members(now)
}

// confirmations records how many members confirm this one, and until when.
type confirmations struct {
	until     []int64 // ends of the other members' confirmations, latest first
	others    int     // number of other members on the ring
	nref      int
	noHandoff int // members that always count, because their protocol version cannot confirm
}

// Extent returns how much of a limit may be admitted at now by policy p. For ExtentPart the fraction is num/den. Whether
// the extent is ExtentNone does not depend on p.
func (v *OwnershipView) Extent(now int64, p policy.Partition) (r Extent, num, den uint32) {
	return v.confirmations.extent(now, p)
}

// fullUntil returns until when the confirmations allow the complete limit, whatever the policy; math.MaxInt64 if they are
// not needed, 0 if there are too few.
func (r *confirmations) fullUntil() int64 {
	switch need := r.needed(); {
	case need <= 0:
		return math.MaxInt64
	case need <= len(r.until):
		return r.until[need-1]
	}
	return 0
}

// needed returns how many members must confirm this one for the complete limit.
func (r *confirmations) needed() int { return max(1, r.nref) - 1 - tolerated(r.nref) - r.noHandoff }

// isolated reports whether no peer confirms this member at now, although there are peers on the ring that could.
func (r *confirmations) isolated(now int64) bool {
	return r.others > 0 && r.noHandoff == 0 && (len(r.until) == 0 || r.until[0] < now)
}

func (r *confirmations) extent(now int64, p policy.Partition) (Extent, uint32, uint32) {
	if r.isolated(now) {
		return ExtentNone, 0, 1
	}
	if r.fullUntil() >= now {
		return ExtentFull, 1, 1
	}
	n := r.members(now)
	switch p {
	case policy.PartAvailable:
		return ExtentFull, 1, 1
	case policy.PartQuorum:
		if 2*n > r.nref {
			return ExtentFull, 1, 1
		}
		return ExtentPart, 0, 1
	}
	return ExtentPart, uint32(n), uint32(r.nref)
}

// members returns the number of confirming members at now, including this one.
func (r *confirmations) members(now int64) int {
	n := 1 + r.noHandoff
	for _, u := range r.until {
		if u >= now {
			n++
		}
	}
	return n
}

// tolerated returns f, the number of members that need not confirm for the complete limit.
func tolerated(nref int) int {
	if nref >= 3 {
		return 1
	}
	return 0
}
