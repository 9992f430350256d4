package limit

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// LostStateWriter is the writer of charges for lost state. The numbers of members are greater, and less than
// math.MaxUint64.
const LostStateWriter uint64 = 1

// Slot records what one writer has done to a counter at one time. Both numbers only grow, and only their writer increases
// them. Of two copies, the one with the larger number is later.
type Slot struct {
	Writer uint64
	// At is the index of the window; for a log the time of the hits, or the end of their segment; for buckets the time
	// of the writer's last charge.
	At      int64
	Charged uint64 // hits, saturating; for buckets nanoseconds to drain, see bucket.go
	// Refunded is the number of refunded hits, whichever writer charged them. For buckets it is the part of Charged
	// that had drained before the slot was created.
	Refunded uint64
}

// State is the state of one counter: what every writer charged and refunded. The zero State is an empty counter.
// Methods of [Rule] change it in place.
type State struct {
	TAT   int64  // buckets: when the level will be 0 ("theoretical arrival time"); without slots it has no meaning
	Slots []Slot // sorted by At, then Writer, without duplicates
}

// Take charges hits and returns whether they fit. Windows and a SlidingLog are charged completely even beyond the
// limit; buckets are charged completely if at least one hit fits, otherwise not; InFlight is charged if all hits fit.
// Taking 0 hits is a Peek. Slots grow by at most one.
func (r Rule) Take(s *State, now int64, writer, hits uint64) Decision {
	d := r.fits(r.Used(s, now), hits)
	switch {
	case r.Algorithm.Bucket() && d.Before >= uint64(r.Depth()), r.Algorithm == InFlight && d.Over:
	default:
		r.Charge(s, now, writer, hits)
	}
	d.Reset = r.reset(s, now, d.Over)
	return d
}

// Charge charges hits, whether they fit or not. Slots grow by at most one.
func (r Rule) Charge(s *State, now int64, writer, hits uint64) {
	if hits == 0 {
		return
	}
	switch r.Algorithm {
	case SlidingLog, InFlight:
		r.chargeLog(s, now, writer, hits)
	case TokenBucket, LeakyBucket:
		r.chargeBucket(s, now, writer, hits)
	default:
		r.chargeWindow(s, now, writer, hits)
	}
}

// Peek returns the Decision that Take would return, without charging.
func (r Rule) Peek(s *State, now int64, hits uint64) Decision {
	d := r.fits(r.Used(s, now), hits)
	d.Reset = r.reset(s, now, d.Over)
	return d
}

// Refund refunds hits, the newest first and at most the count. Its Decision is never Over. Slots grow by at most one
// for each time at which only other writers have charged.
func (r Rule) Refund(s *State, now int64, writer, hits uint64) Decision {
	before := r.Used(s, now)
	switch r.Algorithm {
	case SlidingLog, InFlight:
		r.refundLog(s, now, writer, hits)
	case TokenBucket, LeakyBucket:
		r.refundBucket(s, now, hits)
	default:
		r.refundWindows(s, now, writer, hits)
	}
	d := r.Peek(s, now, 0)
	d.Before, d.Over = before, false
	return d
}

// Used returns the count at now.
func (r Rule) Used(s *State, now int64) uint64 {
	switch r.Algorithm {
	case SlidingLog, InFlight:
		return r.usedLog(s, now)
	case TokenBucket, LeakyBucket:
		return r.usedBucket(s, now)
	}
	return r.usedWindows(s, now)
}

// NextFit returns the time until one more hit fits without further requests, or 0 if one fits at now.
func (r Rule) NextFit(s *State, now int64) time.Duration {
	if r.Used(s, now) < uint64(r.Depth()) {
		return 0
	}
	return time.Duration(elapsed(now, r.resetAt(s, now, true)))
}

// reset returns the Reset of a Decision.
func (r Rule) reset(s *State, now int64, over bool) (left time.Duration) {
	return WholeSeconds(elapsed(now, r.resetAt(s, now, over)))
}

// resetAt returns the time at which reset ends.
func (r Rule) resetAt(s *State, now int64, over bool) int64 {
	switch r.Algorithm {
	case SlidingLog, InFlight:
		return r.resetLog(s, now, over)
	case TokenBucket, LeakyBucket:
		return r.resetBucket(s, now, over)
	}
	return r.resetWindows(s, now, over)
}

// Merge adds what from contains to into. It is commutative and idempotent, and never under-charges: the count is at
// least what all charges and refunds in either State would give in one counter, provided that each State contains
// everything that its writers had seen. Of two States in one history, the later one results. It is associative, except
// for buckets, where another order may charge more.
func (r Rule) Merge(into, from *State) {
	switch r.Algorithm {
	case SlidingLog, InFlight:
		r.mergeLog(into, from)
	case TokenBucket, LeakyBucket:
		r.mergeBuckets(into, from)
	default:
		for _, f := range from.Slots {
			into.slot(f.At, f.Writer).raise(f)
		}
	}
}

// Expires returns the time from which s equals an empty counter. A member whose clock is behind may need it for
// [ClockTolerance] longer.
func (r Rule) Expires(s *State) int64 {
	if len(s.Slots) == 0 {
		return math.MinInt64
	}
	newest := s.Slots[len(s.Slots)-1].At
	switch r.Algorithm {
	case SlidingWindow:
		return r.start(addTime(newest, 2))
	case SlidingLog, InFlight:
		return addTime(newest, r.width())
	case TokenBucket, LeakyBucket:
		return r.expiresBucket(s)
	}
	return r.start(addTime(newest, 1))
}

// Trim drops what no longer counts. It keeps what a clock up to [ClockTolerance] behind may still count in a window. It
// joins the slots of a log with more than 64 slots.
func (r Rule) Trim(s *State, now int64) {
	switch r.Algorithm {
	case SlidingLog, InFlight:
		r.trimLog(s, now)
	case TokenBucket, LeakyBucket:
		r.trimBucket(s, now)
	default:
		oldest := r.Index(subTime(now, int64(ClockTolerance)))
		if r.Algorithm == SlidingWindow {
			oldest = min(oldest, subTime(r.Index(now), 1))
		}
		s.dropBefore(oldest)
	}
}

// raise makes both numbers at least those of g.
func (f *Slot) raise(g Slot) {
	f.Charged, f.Refunded = max(f.Charged, g.Charged), max(f.Refunded, g.Refunded)
}

// Compare orders slots by At, then by Writer.
func (f Slot) Compare(g Slot) int {
	return cmp.Or(cmp.Compare(f.At, g.At), cmp.Compare(f.Writer, g.Writer))
}

// find returns the index at which the slot of (at, writer) is or would be inserted.
func (s *State) find(at int64, writer uint64) (i int, ok bool) {
	for i = len(s.Slots); i > 0; i-- { // the slot is nearly always the newest
		switch f := &s.Slots[i-1]; {
		case f.At > at || f.At == at && f.Writer > writer:
		case f.At == at && f.Writer == writer:
			return i - 1, true
		default:
			return i, false
		}
	}
	return 0, false
}

// slot returns the slot of (at, writer), which it inserts if necessary. It is valid until the next insertion.
func (s *State) slot(at int64, writer uint64) *Slot {
	i, ok := s.find(at, writer)
	if !ok {
		s.Slots = slices.Insert(s.Slots, i, Slot{Writer: writer, At: at})
	}
	return &s.Slots[i]
}

// dropBefore drops the slots older than at.
func (s *State) dropBefore(at int64) {
	n := 0
	for n < len(s.Slots) && s.Slots[n].At < at {
		n++
	}
	if n > 0 {
		s.Slots = slices.Delete(s.Slots, 0, n)
	}
}
