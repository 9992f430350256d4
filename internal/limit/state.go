package limit

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// LostStateWriter is the writer of the charges that stand for a lost State. Members' own numbers are greater.
const LostStateWriter uint64 = 1

// Slot is what one writer has done to a counter at one time. Both numbers only grow, and only their writer makes them
// grow, so that of two copies the larger number is the later one.
type Slot struct {
	Writer uint64
	// At is, for windows, the index of the window; for a log the time of the hits, or the end of the 64th of the Window
	// that they lie in; for buckets the time of the writer's last charge.
	At      int64
	Charged uint64 // hits, saturating; for buckets nanoseconds of draining, see bucket.go
	// Refunded is the hits given back, whoever charged them. For buckets it is the part of Charged that had drained
	// before.
	Refunded uint64
}

// State is all that is known of one counter: what every writer charged and gave back. The zero State is an empty
// counter. Methods of [Rule] change it in place.
type State struct {
	TAT   int64  // buckets: when the level will be 0 again ("theoretical arrival time"); without slots it means nothing
	Slots []Slot // in the order of At, then Writer; none twice
}

// Take charges hits and says whether they fitted. Windows and logs are charged in full also past the limit; buckets in
// full if at least one hit fits, else not at all. Taking 0 hits is a Peek. Slots grow by at most one.
func (r Rule) Take(s *State, now int64, writer, hits uint64) Decision {
	d := r.fits(r.Used(s, now), hits)
	if hits > 0 {
		switch r.Algorithm {
		case SlidingLog:
			r.chargeLog(s, now, writer, hits)
		case TokenBucket, LeakyBucket:
			if d.Before < uint64(r.Depth()) {
				r.chargeBucket(s, now, writer, hits)
			}
		default:
			r.chargeWindow(s, now, writer, hits)
		}
	}
	d.Reset = r.reset(s, now, d.Over)
	return d
}

// Peek answers as Take would, and charges nothing.
func (r Rule) Peek(s *State, now int64, hits uint64) Decision {
	d := r.fits(r.Used(s, now), hits)
	d.Reset = r.reset(s, now, d.Over)
	return d
}

// Refund gives hits back, the newest first, never more than count, and is never over. Slots grow by at most one for
// each time at which only others have charged.
func (r Rule) Refund(s *State, now int64, writer, hits uint64) Decision {
	before := r.Used(s, now)
	switch r.Algorithm {
	case SlidingLog:
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

// Used is the count that stands against the limit at now.
func (r Rule) Used(s *State, now int64) uint64 {
	switch r.Algorithm {
	case SlidingLog:
		return r.usedLog(s, now)
	case TokenBucket, LeakyBucket:
		return r.usedBucket(s, now)
	}
	return r.usedWindows(s, now)
}

// NextFit is how long it takes until one more hit fits, if nobody asks before; 0 when one fits at now.
func (r Rule) NextFit(s *State, now int64) time.Duration {
	if r.Used(s, now) < uint64(r.Depth()) {
		return 0
	}
	return time.Duration(elapsed(now, r.resetAt(s, now, true)))
}

// reset is the Decision's.
func (r Rule) reset(s *State, now int64, over bool) (left time.Duration) {
	return WholeSeconds(elapsed(now, r.resetAt(s, now, over)))
}

// resetAt is the instant at which reset is over.
func (r Rule) resetAt(s *State, now int64, over bool) int64 {
	switch r.Algorithm {
	case SlidingLog:
		return r.resetLog(s, now, over)
	case TokenBucket, LeakyBucket:
		return r.resetBucket(s, now, over)
	}
	return r.resetWindows(s, now, over)
}

// Merge makes into what both know. It is commutative and idempotent, and never under-charges: the count is at least
// what all charges and refunds known to either would have left in one counter, as long as each State holds all that
// its writers had seen. Of two States of one history the later one comes out. It is associative, except for buckets,
// where another order may charge more.
func (r Rule) Merge(into, from *State) {
	switch r.Algorithm {
	case SlidingLog:
		r.mergeLog(into, from)
	case TokenBucket, LeakyBucket:
		r.mergeBuckets(into, from)
	default:
		for _, f := range from.Slots {
			into.slot(f.At, f.Writer).raise(f)
		}
	}
}

// Expires is the first instant from which s equals an empty counter; a member whose clock is behind may still need it
// for [Ahead] longer.
func (r Rule) Expires(s *State) int64 {
	if len(s.Slots) == 0 {
		return math.MinInt64
	}
	newest := s.Slots[len(s.Slots)-1].At
	switch r.Algorithm {
	case SlidingWindow:
		return r.start(addTime(newest, 2))
	case SlidingLog:
		return addTime(newest, r.width())
	case TokenBucket, LeakyBucket:
		return r.expiresBucket(s)
	}
	return r.start(addTime(newest, 1))
}

// Trim drops what no longer counts, keeping what a clock up to [Ahead] behind may still count in a window. A log of
// more than 64 slots becomes one of 64ths of the Window.
func (r Rule) Trim(s *State, now int64) {
	switch r.Algorithm {
	case SlidingLog:
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

// ChargedBy is what writer has charged, in hits: in its newest window; in what a log still holds; for buckets since
// some time before its first charge, so that only differences mean something.
func (r Rule) ChargedBy(s *State, writer uint64) (hits uint64) {
	for i := len(s.Slots) - 1; i >= 0; i-- {
		switch f := &s.Slots[i]; {
		case f.Writer != writer:
		case r.Algorithm == SlidingLog:
			hits = SaturatingAdd(hits, f.Charged)
		case r.Algorithm.Bucket():
			return f.Charged / uint64(r.interval())
		default:
			return f.Charged
		}
	}
	return hits
}

// raise makes both numbers at least those of f.
func (f *Slot) raise(g Slot) {
	f.Charged, f.Refunded = max(f.Charged, g.Charged), max(f.Refunded, g.Refunded)
}

func (f Slot) Compare(g Slot) int {
	return cmp.Or(cmp.Compare(f.At, g.At), cmp.Compare(f.Writer, g.Writer))
}

// find is where the slot of (at, writer) is or would be.
func (s *State) find(at int64, writer uint64) (i int, ok bool) {
	for i = len(s.Slots); i > 0; i-- { // what is looked for is nearly always the newest
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

// slot is the slot of (at, writer), made if there is none. It is valid until the next is made.
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
