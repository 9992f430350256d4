package claim

import "time"

// Ident identifies a claim: a digest of its counter's key, of who may settle it, and of the id that the caller gave.
type Ident [2]uint64

// Stage is how far a claim is settled. The numbers are part of the peer protocol, and of two copies of one claim the
// one with the larger number is later.
type Stage uint8

// The states.
const (
	Open     Stage = 0 // charged, and may be given back
	Settling Stage = 1 // settled; what it gives back is not given back yet
	Settled  Stage = 2 // settled completely. The record remains for a while, so that no other settlement has an effect
	// Orphan is a settlement whose claim was not known: all that was asked for is charged in addition to the claim, if
	// there is one. If the claim turns up, it is given back.
	Orphan Stage = 3
)

// Flags are the properties of a claim. The numbers are part of the peer protocol.
type Flags uint8

// The flags.
const (
	Releases Flags = 1 << 0 // when it lapses, it is given back
	InFlight Flags = 1 << 1 // a request in flight: it is given back when its caller is dead
	Keeps    Flags = 1 << 2 // an Orphan that gives nothing back
	Once     Flags = 1 << 3 // a charge that only recognizes repeated requests: nothing settles it
	// Set is a charge of an all-or-nothing call. The claim exists for about a second, on the owner only: no other member
	// gets it, it is no hold of the key, and when it is released or has ended it is forgotten at once.
	Set Flags = 1 << 4
)

// MarkLife is how long a settled claim is remembered. A settlement without a confirmation is repeated for at
// most as long.
const MarkLife = time.Minute

// Claim is one charge that may be given back. It has 88 bytes and no pointers.
type Claim struct {
	ID      Ident
	Key     [2]uint64 // of its counter
	RingPos uint64    // of the key
	// At is where the hits were charged: the index of the window, the time of the log's slot, or the time at which the
	// bucket would have drained, plus all that the Records know to have been given back of the bucket.
	At     int64
	Caller uint64 // who made it; 0: unknown
	word   uint64 // from the top: when it was made, in milliseconds; domain; flags; local bits; state
	Amount uint32 // hits that may be given back; of a settled claim, hits to give back
	ttl    uint32 // seconds; of a settled claim, until it was settled
	nextID uint32
	next   uint32 // of the same key, or free
	prev   uint32 // of the same key
}

// The layout of Claim.word.
const (
	stateBits   = 2
	changedBit  = 1 << 2 // no other member has confirmed the latest change
	trackedBit  = 1 << 3 // the latest change is, or was, in the list of changes
	copiedBit   = 1 << 4 // other members' share of the limit counts it
	givesBit    = 1 << 5 // see Gives
	flagsAt     = 6
	flagsBits   = 5
	domainAt    = flagsAt + flagsBits
	domainBits  = 10
	madeAt      = domainAt + domainBits
	domainSlots = 1 << domainBits
)

// Made returns when the claim was made, in Unix nanoseconds, rounded down to a millisecond.
func (c *Claim) Made() int64 { return int64(c.word>>madeAt) * int64(time.Millisecond) }

// SetMade sets the time at which the claim was made. Every claim of Records must have one, above 0.
func (c *Claim) SetMade(at int64) {
	c.word = c.word&(1<<madeAt-1) | uint64(max(1, at/int64(time.Millisecond)))<<madeAt
}

// State returns how far the claim is settled.
func (c *Claim) State() Stage { return Stage(c.word & (1<<stateBits - 1)) }

// SetState sets the state. In Records, Records.Settle does.
func (c *Claim) SetState(s Stage) { c.word = c.word&^(1<<stateBits-1) | uint64(s) }

// Flags returns the claim's properties.
func (c *Claim) Flags() Flags { return Flags(c.word >> flagsAt & (1<<flagsBits - 1)) }

// SetFlags sets the claim's properties.
func (c *Claim) SetFlags(f Flags) {
	c.word = c.word&^((1<<flagsBits-1)<<flagsAt) | uint64(f&(1<<flagsBits-1))<<flagsAt
}

// Domain returns the slot of the domain's quota, below 1024.
func (c *Claim) Domain() uint16 { return uint16(c.word >> domainAt & (domainSlots - 1)) }

// SetDomain sets the slot of the domain's quota to that of a domain with this hash.
func (c *Claim) SetDomain(hash uint64) {
	c.word = c.word&^((domainSlots-1)<<domainAt) | hash%domainSlots<<domainAt
}

// TTL returns how long after it was made an open claim lapses, or when a settled one was settled.
func (c *Claim) TTL() time.Duration { return time.Duration(c.ttl) * time.Second }

// SetTTL sets the time after which the claim lapses, rounded up to a second.
func (c *Claim) SetTTL(d time.Duration) {
	c.ttl = uint32(min(max(0, d+time.Second-1)/time.Second, 1<<32-1))
}

// Ends returns when an open claim lapses, or when a settled one is forgotten, in Unix nanoseconds.
func (c *Claim) Ends() int64 {
	if c.State() == Open {
		return c.Made() + int64(c.TTL())
	}
	return c.Made() + int64(c.TTL()) + int64(MarkLife)
}

// Live reports whether the claim is an open hold: not that of a set, or one that only recognizes repeated requests.
func (c *Claim) Live() bool { return c.State() == Open && c.Flags()&(Once|Set) == 0 && c.ttl > 0 }

// forgettable reports whether the claim may be forgotten to make room: it is settled or that of a set.
func (c *Claim) forgettable() bool { return c.State() >= Settled || c.Flags()&Set != 0 }

// chain returns the index of the chain of its key that the claim is in: see Records.keySlots.
func (c *Claim) chain() int {
	if c.State() == Open && c.Flags()&Once == 0 {
		return 0
	}
	return 1
}

// Ended reports whether the claim is open only until the owner of its key gives back its hits: see Records.End.
func (c *Claim) Ended() bool { return c.State() == Open && c.ttl == 0 }

// Changed reports whether no other member has confirmed the latest change of the claim.
func (c *Claim) Changed() bool { return c.word&changedBit != 0 }

// Tracked reports whether the latest change of the claim is in the Records' list of changes, or was confirmed.
func (c *Claim) Tracked() bool { return c.word&trackedBit != 0 }

// Gives reports whether this member is the one that gives back the hits of a claim that is Settling. It is the one that
// has settled it, or that got it from that member together with the key. Of others it is not known whether the hits were
// given back before their owner was lost.
func (c *Claim) Gives() bool { return c.word&givesBit != 0 }

// SetGives sets Gives.
func (c *Claim) SetGives(gives bool) {
	if c.word &^= givesBit; gives {
		c.word |= givesBit
	}
}
