package counter

import (
	"math"

	"github.com/keyward/keyward/internal/limit"
)

// entry is one slot of a table, in 48 bytes. It holds no pointers, so the garbage collector never scans a table. The
// types Owned, Local, Quota and Denied give its fields their meanings.
type entry struct {
	key     Key
	value   uint64 // Owned: ring position; Local: admitted hits; Quota: when it was observed; Denied: when it ends
	word    uint64 // 0 is an empty slot; see below
	charged uint32 // see Shard.Load
	limit   uint32
	more    uint32 // first of its records; 0 is none
	epoch   uint16 // Owned: a view in which this member decided the key; Denied: the view of the denial; 0 is none
	hotness uint16 // Owned: for the detection of hot keys
}

// The word of an entry is, from the top: until, 42 bits; whether it is complete; whether it is a copy; the domain's
// slot, 10 bits; its shape + 1, 10 bits.
const (
	shapeBits   = 10
	domainBits  = 10
	domainSlots = 1 << domainBits
	domainAt    = shapeBits
	copyBit     = 1 << (shapeBits + domainBits) // the ledger counts the entry among the copies
	completeBit = copyBit << 1                  // the entry contains what sketches have counted of the key
	untilAt     = shapeBits + domainBits + 2
	// maxShapes limits the windows, algorithms and bursts that one shard stores at a time.
	maxShapes = 1<<shapeBits - 1

	// Unit is the resolution of the end of a counter, in nanoseconds: about a millisecond.
	Unit     = 1 << unitBits
	unitBits = 20
)

// ahead is how far clocks of members may be apart.
const ahead = int64(limit.ClockTolerance)

// newEntry returns an empty counter of key k.
func newEntry(k Key, domain uint16, copied bool) entry {
	e := entry{key: k, word: uint64(domain)<<domainAt | 1}
	if copied {
		e.word |= copyBit
	}
	return e
}

func (e *entry) empty() bool { return e.word == 0 }

// until returns the time from which on e has no effect, in Unix nanoseconds, rounded up to a Unit.
func (e *entry) until() int64 { return int64(e.word >> untilAt << unitBits) }

// setUntil makes e last until t.
func (e *entry) setUntil(t int64) {
	n := uint64(0)
	if t > 0 {
		n = min(uint64(t-1)>>unitBits+1, math.MaxUint64>>untilAt)
	}
	e.word = e.word&(1<<untilAt-1) | n<<untilAt
}

// prolong makes e last until t at least.
func (e *entry) prolong(t int64) { e.setUntil(max(t, e.until())) }

// expired reports whether e has no effect any more, also on members whose clocks are behind.
func (e *entry) expired(now int64) bool { return e.until()+ahead <= now }

// copied reports whether the ledger counts e among the copies.
func (e *entry) copied() bool { return e.word&copyBit != 0 }

// domain returns the slot of e's domain.
func (e *entry) domain() uint16 { return uint16(e.word >> domainAt & (domainSlots - 1)) }

// shape returns the number of the rule that e counts by, without its limit.
func (e *entry) shape() uint16 { return uint16(e.word&maxShapes) - 1 }

func (e *entry) setShape(n uint16) { e.word = e.word&^maxShapes | uint64(n+1) }

// raise adds hits to what e, of a table without records, has charged. It stops at the highest limit.
func (e *entry) raise(hits uint64) { e.charged = saturated(uint64(e.charged), hits) }

// saturated returns a + b, at most the highest limit.
func saturated(a, b uint64) uint32 { return uint32(min(limit.SaturatingAdd(a, b), math.MaxUint32)) }

func saturatingSub(a, b uint64) uint64 { return a - min(a, b) }

// Owned is a counter of TableOwned: all that is known of a key, for its owner or for a replica.
type Owned entry

// Key returns the key that is counted.
func (e *Owned) Key() Key { return e.key }

// RingPos returns the ring position of the key.
func (e *Owned) RingPos() uint64 { return e.value }

// Domain returns the slot of the domain's quota.
func (e *Owned) Domain() uint16 { return (*entry)(e).domain() }

// Limit returns the highest limit that the counter was charged with.
func (e *Owned) Limit() uint32 { return e.limit }

// SetLimit sets the limit.
func (e *Owned) SetLimit(l uint32) { e.limit = l }

// Epoch returns the epoch of a view in which this member decided the key; 0 if there is none.
func (e *Owned) Epoch() uint16 { return e.epoch }

// SetEpoch sets the epoch.
func (e *Owned) SetEpoch(epoch uint16) { e.epoch = epoch }

// OwnedEpoch returns the epoch of a view in which this member owned the key, which is at ringPos; 0 if there is none or
// if e is nil.
func (e *Owned) OwnedEpoch(ringPos uint64) uint16 {
	if e == nil || e.value != ringPos {
		return 0
	}
	return e.epoch
}

// MarkOwned records that this member decides the key, which is at ringPos, in the view with that epoch.
func (e *Owned) MarkOwned(ringPos uint64, epoch uint16, limit uint32) {
	e.value, e.epoch, e.limit = ringPos, epoch, max(e.limit, limit)
}

// Move makes e the counter of a key at another ring position, of which this member has decided nothing.
func (e *Owned) Move(ringPos uint64) {
	e.value, e.epoch = ringPos, 0
	e.SetIncomplete()
}

// Until returns the time from which on e has no effect, in Unix nanoseconds, rounded up to a Unit.
func (e *Owned) Until() int64 { return (*entry)(e).until() }

// Prolong makes e last until t at least.
func (e *Owned) Prolong(t int64) { (*entry)(e).prolong(t) }

// Expired reports whether e has no effect any more, also on members whose clocks are behind.
func (e *Owned) Expired(now int64) bool { return (*entry)(e).expired(now) }

// Complete reports whether e contains what sketches have counted of its key. It does from this member's first decision
// until the key's ownership leaves: the next owner may count the key in its sketch.
func (e *Owned) Complete() bool { return e.word&completeBit != 0 }

// SetComplete makes Complete true.
func (e *Owned) SetComplete() { e.word |= completeBit }

// SetIncomplete makes Complete false.
func (e *Owned) SetIncomplete() { e.word &^= completeBit }

// Hotness returns what the detection of hot keys has stored with the key.
func (e *Owned) Hotness() uint16 { return e.hotness }

// SetHotness stores h with the key.
func (e *Owned) SetHotness(h uint16) { e.hotness = h }

// Local is a counter of TableShare or TableOpen: what this member has charged under a degraded policy.
type Local entry

// Charged returns the charged hits, if the counter has a fixed window.
func (e *Local) Charged() uint64 { return uint64(e.charged) }

// Charge adds hits to a counter with a fixed window.
func (e *Local) Charge(hits uint64) { (*entry)(e).raise(hits) }

// Admitted returns the hits that were admitted.
func (e *Local) Admitted() uint64 { return e.value }

// Admit adds to the admitted hits.
func (e *Local) Admit(hits uint64) { e.value = limit.SaturatingAdd(e.value, hits) }

// Unreported returns the admitted hits that TableOwned had no room for, so that the key's owner does not learn of them.
func (e *Local) Unreported() uint64 { return uint64(e.limit) }

// AddUnreported adds to the unreported hits.
func (e *Local) AddUnreported(hits uint64) {
	e.limit = uint32(min(uint64(e.limit)+hits, math.MaxUint32))
}

// ClearUnreported sets the unreported hits to 0.
func (e *Local) ClearUnreported() { e.limit = 0 }

// Reset sets the admitted hits, of which none are reported.
func (e *Local) Reset(admitted uint64) {
	e.value, e.limit = admitted, uint32(min(admitted, math.MaxUint32))
}

// Until returns the time from which on e has no effect, in Unix nanoseconds, rounded up to a Unit.
func (e *Local) Until() int64 { return (*entry)(e).until() }

// Prolong makes e last until t at least.
func (e *Local) Prolong(t int64) { (*entry)(e).prolong(t) }

// Quota is an entry of TableQuota: what an owner said was left of a limit.
type Quota entry

// Remaining returns the hits that were left.
func (e *Quota) Remaining() uint32 { return e.limit }

// ObservedAt returns when the owner said so, in Unix nanoseconds.
func (e *Quota) ObservedAt() int64 { return int64(e.value) }

// Included returns how many of this member's own hits, admitted without the owner, had been counted by then.
func (e *Quota) Included() uint64 { return uint64(e.charged) }

// Observe records that remaining hits were left at now of the window that ends at end, with included hits of this member
// that it had admitted without the owner.
func (e *Quota) Observe(now, end int64, remaining uint32, included uint64) {
	(*entry)(e).setUntil(end)
	e.limit, e.value, e.charged = remaining, uint64(now), saturated(included, 0)
}

// Denied is an entry of TableDeny: a key that is above its limit until its window ends.
type Denied entry

// Until returns when the window ends, in Unix nanoseconds.
func (e *Denied) Until() int64 { return int64(e.value) }

// Epoch returns the epoch of the view in which the key was denied.
func (e *Denied) Epoch() uint16 { return e.epoch }

// Limit returns the highest limit that the key was above.
func (e *Denied) Limit() uint32 { return e.limit }

// Count returns a lower bound of the key's count.
func (e *Denied) Count() uint32 { return e.charged }

// Denial describes why a key is denied.
type Denial struct {
	End   int64 // of the window, in Unix nanoseconds
	Epoch uint16
	Limit uint32
	Count uint64 // at least Limit
}

// Deny records d.
func (e *Denied) Deny(d Denial) {
	if e.value != uint64(d.End) || e.epoch != d.Epoch {
		e.limit, e.charged = 0, 0
	}
	(*entry)(e).setUntil(d.End)
	e.value, e.epoch = uint64(d.End), d.Epoch
	e.limit, e.charged = max(e.limit, d.Limit), max(e.charged, saturated(d.Count, 0))
}
