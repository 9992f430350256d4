package limit

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// maxClockError is how far in the future the time of a bucket's charge or of a log's hit may be. Later times are cut or
// dropped, which removes charges, so the value is far above the usual difference of clocks.
const maxClockError = 10 * time.Second

// Clean makes a State that another member sent valid: slots are in order, unique and count at now. It returns the
// number of dropped slots that no correct member sends: empty slots, those of writer 0 or math.MaxUint64, windows after the
// next one by any member's clock, and log times too far in the future. It also drops windows before the previous one and expired log times, which are not wrong, because
// members send slots before they trim them. Times of buckets are not dropped but limited to what is possible.
func (r Rule) Clean(s *State, now int64) (wrong int) {
	soon := addTime(now, int64(maxClockError))
	s.Slots = slices.DeleteFunc(s.Slots, func(f Slot) bool {
		if f.Charged|f.Refunded == 0 || f.Writer+1 <= 1 || !r.inTime(f.At, now) {
			wrong++
			return true
		}
		return r.expired(f.At, now)
	})
	if r.Algorithm.Bucket() {
		for i := range s.Slots {
			f := &s.Slots[i]
			f.At = min(f.At, soon)
			f.Refunded = min(f.Refunded, f.Charged)
		}
		slices.SortFunc(s.Slots, func(a, b Slot) int { return cmp.Or(cmp.Compare(a.Writer, b.Writer), a.Compare(b)) })
		s.uniteSlots(func(a, b Slot) bool { return a.Writer == b.Writer })
		s.sort()
		if s.TAT = min(s.TAT, s.latestTAT()); len(s.Slots) == 0 {
			s.TAT = 0
		}
	} else {
		s.TAT = 0
		s.sort()
		s.uniteSlots(func(a, b Slot) bool { return a.Writer == b.Writer && a.At == b.At })
	}
	return wrong
}

// expired reports whether slots with that time no longer count at now.
func (r Rule) expired(at, now int64) bool {
	switch r.Algorithm {
	case SlidingLog, InFlight:
		return at <= subTime(now, r.width())
	case TokenBucket, LeakyBucket:
		return false
	}
	return at < subTime(r.Index(now), 1)
}

// inTime reports whether slots with that time are not too far ahead of now.
func (r Rule) inTime(at, now int64) bool {
	switch r.Algorithm {
	case SlidingLog, InFlight:
		return at <= r.horizon(now)
	case TokenBucket, LeakyBucket:
		return true
	}
	return at <= addTime(r.Index(addTime(now, int64(ClockTolerance))), 1)
}

// uniteSlots merges adjacent slots that are the same.
func (s *State) uniteSlots(same func(a, b Slot) bool) {
	kept := s.Slots[:0]
	for _, f := range s.Slots {
		if n := len(kept); n > 0 && same(kept[n-1], f) {
			f.raise(kept[n-1])
			kept[n-1] = f
		} else {
			kept = append(kept, f)
		}
	}
	s.Slots = kept
}

// latestTAT returns the upper bound of a bucket's TAT: everything that has not drained came with the last charge.
func (s *State) latestTAT() int64 {
	at, d := int64(math.MinInt64), uint64(0)
	for _, f := range s.Slots {
		at = max(at, f.At)
		d = SaturatingAdd(d, f.Charged-f.Refunded)
	}
	return addTime(at, int64(min(d, math.MaxInt64)))
}
