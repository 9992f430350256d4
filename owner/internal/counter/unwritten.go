package counter

import (
	"math"

	"github.com/keyward/keyward/internal/limit"
)

// Unwritten records the hits of a counter that this member's journal may lack. charged is the number of hits since the
// last record or, if requests wait for records, since the Unwritten was created or its window began. refunded is how many
// of these a journal that loses nothing more contains, including those that it has reserved ahead; at is their window,
// or 0 without windows.
type Unwritten record

// The bits of an Unwritten: whether its key is queued to be written soon; whether it has changed since the last record
// without a hit; whether a request may wait for it; whether its records reserve hits ahead; its sequence number.
const (
	soonBit       = 1 << 0
	changedBit    = 1 << 1
	awaitedBit    = 1 << 2
	reservesBit   = 1 << 3
	unwrittenBits = 4 // below the sequence number
)

// Seq returns a number that is different from those of the key's earlier Unwritten.
func (u *Unwritten) Seq() uint32 { return u.bits >> unwrittenBits }

// Charged returns the hits since the Unwritten began.
func (u *Unwritten) Charged() uint64 { return u.charged }

// Covered returns up to which number of hits the journal contains or has reserved them.
func (u *Unwritten) Covered() uint64 { return u.refunded }

// Owed returns the hits that a crash of all members would lose.
func (u *Unwritten) Owed() uint64 { return saturatingSub(u.charged, u.refunded) }

// Cover records that the journal contains, or has reserved, the first upTo hits.
func (u *Unwritten) Cover(upTo uint64) { u.refunded = max(u.refunded, upTo) }

// Add adds hits that no request waits for.
func (u *Unwritten) Add(hits uint64) { u.charged = limit.SaturatingAdd(u.charged, hits) }

// Soon reports whether the key is queued to be written soon.
func (u *Unwritten) Soon() bool { return u.bits&soonBit != 0 }

// SetSoon records that the key is queued to be written soon.
func (u *Unwritten) SetSoon() { u.bits |= soonBit }

// SetChanged records that the counter has changed without a hit, as by a refund.
func (u *Unwritten) SetChanged() { u.bits |= changedBit }

// IsDue reports whether the counter has changed since the last record in a way that a journal has to contain.
func (u *Unwritten) IsDue() bool { return u.Owed() > 0 || u.bits&changedBit != 0 }

// Recorded processes that a record of the counter is about to be written, so that the key is in no queue for soon.
func (u *Unwritten) Recorded() {
	if u.bits &^= soonBit | changedBit; !u.Awaited() {
		u.charged, u.refunded = 0, 0
	}
}

// Awaited reports whether a request may wait until the hits are covered, so that the Unwritten has to be kept until
// then.
func (u *Unwritten) Awaited() bool { return u.bits&awaitedBit != 0 }

// Reserves reports whether records of the counter reserve hits ahead.
func (u *Unwritten) Reserves() bool { return u.bits&reservesBit != 0 }

// SetReserves records that records of the counter reserve hits ahead.
func (u *Unwritten) SetReserves() { u.bits |= reservesBit }

// Unwritten returns what the journal may lack of e, or nil.
func (s *Shard) Unwritten(e *Owned) *Unwritten {
	return (*Unwritten)(s.slab.head(e.more, unwrittenWriter))
}

// AddUnwritten adds an Unwritten to e, which must have none. It returns nil if there is no room for it.
func (s *Shard) AddUnwritten(e *Owned) *Unwritten {
	if s.slab.pool.journal.Add(-1) < 0 {
		s.slab.pool.journal.Add(1)
		return nil
	}
	i := s.slab.take(s.slab.pool.reserve)
	if i == 0 {
		s.slab.pool.journal.Add(1)
		return nil
	}
	u := s.slab.at(i)
	u.writer, u.at, u.next, e.more = unwrittenWriter, math.MinInt64, e.more, i
	return (*Unwritten)(u)
}

// TrackAwaited adds hits, for which a request may wait, to u, the Unwritten of e, in a window of rule r. Hits of another
// window, and those for which no request waited, do not count together with them.
func (s *Shard) TrackAwaited(e *Owned, u *Unwritten, r limit.Rule, hits uint64) {
	window := int64(0)
	if Windowed(r) {
		window = s.Newest(e, r)
	}
	if u.at != window || !u.Awaited() {
		s.seq++
		u.at, u.charged, u.refunded = window, 0, 0
		u.bits = u.bits&(1<<unwrittenBits-1) | s.seq<<unwrittenBits | awaitedBit
	}
	u.Add(hits)
}

// DropUnwritten removes the Unwritten of e, which must have one.
func (s *Shard) DropUnwritten(e *Owned) { s.slab.dropHead((*entry)(e), unwrittenWriter) }

// Owed returns the most hits of one counter that a crash of all members would lose, and the sum of all.
func (s *Shard) Owed() (most, sum uint64) {
	return s.slab.total(unwrittenWriter, func(r *record) uint64 { return (*Unwritten)(r).Owed() })
}
