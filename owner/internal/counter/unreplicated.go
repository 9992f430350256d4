package counter

import (
	"math"

	"github.com/keyward/keyward/internal/limit"
)

// Unreplicated records the charges of a counter that the successor has not confirmed. It is the first record of the
// counter's chain: at is the window of its charges, or 0 without windows, and refunded is the part that is confirmed.
type Unreplicated record

// The bits of an Unreplicated: whether its key is queued; its sequence number; how often in a row it was not confirmed
// in time.
const (
	queuedBit    = 1 << 31
	attemptsBits = 8
	attemptsMask = 1<<attemptsBits - 1
)

// Seq returns a number that is different from those of the key's earlier Unreplicated.
func (u *Unreplicated) Seq() uint32 { return u.bits &^ queuedBit >> attemptsBits }

// Charged returns the hits charged since the window began.
func (u *Unreplicated) Charged() uint64 { return u.charged }

// Confirmed returns how many of the charged hits another member has confirmed.
func (u *Unreplicated) Confirmed() uint64 { return u.refunded }

// Unconfirmed returns how many of the charged hits no other member has confirmed.
func (u *Unreplicated) Unconfirmed() uint64 { return u.charged - u.refunded }

// Confirm records that another member has upTo of the charged hits.
func (u *Unreplicated) Confirm(upTo uint64) {
	u.refunded = min(u.charged, max(u.refunded, upTo))
	u.bits &^= attemptsMask
}

// Queued reports whether the key is queued.
func (u *Unreplicated) Queued() bool { return u.bits&queuedBit != 0 }

// SetQueued records that the key is queued.
func (u *Unreplicated) SetQueued() { u.bits |= queuedBit }

// SetUnqueued records that the key is not queued.
func (u *Unreplicated) SetUnqueued() { u.bits &^= queuedBit }

// Attempts returns how often in a row the charges were not confirmed in time, at most 255.
func (u *Unreplicated) Attempts() int { return int(u.bits & attemptsMask) }

// AddAttempt counts an attempt.
func (u *Unreplicated) AddAttempt() {
	if u.bits&attemptsMask < attemptsMask {
		u.bits++
	}
}

// Unreplicated returns what is not confirmed of e, or nil.
func (s *Shard) Unreplicated(e *Owned) *Unreplicated {
	return (*Unreplicated)(s.slab.head(e.more, unreplicatedWriter))
}

// TrackUnreplicated adds hits, charged in a window of rule r, to the Unreplicated of e. It returns nil if there is no
// room for it.
func (s *Shard) TrackUnreplicated(e *Owned, r limit.Rule, hits uint64) *Unreplicated {
	u := s.slab.head(e.more, unreplicatedWriter)
	if u == nil {
		i := s.slab.take(0)
		if i == 0 {
			return nil
		}
		u = s.slab.at(i)
		u.at, u.next, e.more = math.MinInt64, e.more, i
	}
	window := int64(0)
	if r.Algorithm == limit.FixedWindow {
		window = s.Newest(e, r)
	}
	if u.at != window {
		s.seq++
		u.at, u.charged, u.refunded = window, 0, 0
		u.bits = u.bits&queuedBit | s.seq<<attemptsBits&^queuedBit
	}
	u.charged = limit.SaturatingAdd(u.charged, hits)
	return (*Unreplicated)(u)
}

// DropUnreplicated removes the Unreplicated of e, which must have one.
func (s *Shard) DropUnreplicated(e *Owned) { s.slab.dropHead((*entry)(e), unreplicatedWriter) }

// Unconfirmed returns the most unconfirmed hits of one counter, and the sum of all.
func (s *Shard) Unconfirmed() (most, sum uint64) {
	return s.slab.total(unreplicatedWriter, func(r *record) uint64 {
		if r.bits == 0 {
			return 0 // not in use
		}
		return (*Unreplicated)(r).Unconfirmed()
	})
}
