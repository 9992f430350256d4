package owner

import "math"

// entry is one counter, in 48 bytes. It holds no pointers, so the collector never looks into a table.
type entry struct {
	key     Key
	note    uint64 // by table: owned, the ring position; shared and opened, the admitted part; quoted, when it was said; denied, when it ends, Unix nanoseconds
	word    uint64 // 0 is an empty slot; see below
	charged uint32 // see load
	limit   uint32
	more    uint32 // first of its records; 0 is none
	epoch   uint16 // a view in which this member decided the key; 0 is none
	hotness uint16 // how often its key is asked for, see hot.go
}

// An entry's word is, from the top: until, 42 bits; whether it is complete; whether it is a copy; the domain's slot, 10 bits; its shape + 1, 10 bits.
const (
	shapeBits   = 10
	domainBits  = 10
	domainSlots = 1 << domainBits
	domainAt    = shapeBits
	copyBit     = 1 << (shapeBits + domainBits) // the key is another member's, as far as the ledgers are concerned
	completeBit = copyBit << 1                  // what sketches have counted of the key is in the entry, too
	untilAt     = shapeBits + domainBits + 2
	// maxShapes caps the windows, algorithms and bursts that one shard knows at a time.
	maxShapes = 1<<shapeBits - 1

	// unit is that of until, in nanoseconds: about a millisecond.
	unit     = 1 << unitBits
	unitBits = 20
)

// newEntry is an empty counter of key k.
func newEntry(k Key, domain uint16, copied bool) entry {
	e := entry{key: k, word: uint64(domain)<<domainAt | 1}
	if copied {
		e.word |= copyBit
	}
	return e
}

func (e *entry) empty() bool { return e.word == 0 }

// until is when e has no effect any more, in Unix nanoseconds, rounded up to a unit.
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

// expired says that e has no effect any more, also on members whose clocks are behind.
func (e *entry) expired(now int64) bool { return e.until()+int64(ahead) <= now }

// copied says that e counts among the copies.
func (e *entry) copied() bool { return e.word&copyBit != 0 }

// complete reports whether e counts what sketches have counted of its key. It does from this member's first decision on until the key's token goes
// away: who has it then may count in its sketch.
func (e *entry) complete() bool { return e.word&completeBit != 0 }

func (e *entry) setComplete() { e.word |= completeBit }

func (e *entry) setIncomplete() { e.word &^= completeBit }

// domain is the slot of e's domain.
func (e *entry) domain() uint16 { return uint16(e.word >> domainAt & (domainSlots - 1)) }

// shape is the rule that e counts by, apart from the limit.
func (e *entry) shape() uint16 { return uint16(e.word&maxShapes) - 1 }

func (e *entry) setShape(n uint16) { e.word = e.word&^maxShapes | uint64(n+1) }
