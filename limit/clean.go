package limit

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// astray is how far the time of a bucket's charge or of a log's hit may be ahead. Cutting or dropping it takes from what
// was charged, so it is far more than clocks differ by, but for one that was just set.
const astray = 10 * time.Second

// Clean makes s, which another member sent, what a State must be: slots in order, none twice, none that no member
// should speak of at now. It says how many it dropped: windows other than the present one, the one before and the one
// after, and times of a log that are over or too far ahead. Times of buckets are never refused, they are cut to what
// is possible.
func (r Rule) Clean(s *State, now int64) (dropped int) {
	before := len(s.Slots)
	soon := later(now, int64(astray))
	s.Slots = slices.DeleteFunc(s.Slots, func(f Slot) bool {
		return f.Charged|f.Refunded == 0 || !r.timely(f.At, now)
	})
	dropped = before - len(s.Slots)
	if r.Algorithm.Bucket() {
		for i := range s.Slots {
			f := &s.Slots[i]
			f.At = min(f.At, soon)
			f.Refunded = min(f.Refunded, f.Charged)
		}
		slices.SortFunc(s.Slots, func(a, b Slot) int { return cmp.Or(cmp.Compare(a.Writer, b.Writer), order(a, b)) })
		s.unite(func(a, b Slot) bool { return a.Writer == b.Writer })
		s.sort()
		if s.TAT = min(s.TAT, s.most()); len(s.Slots) == 0 {
			s.TAT = 0
		}
	} else {
		s.TAT = 0
		s.sort()
		s.unite(func(a, b Slot) bool { return a.Writer == b.Writer && a.At == b.At })
	}
	return dropped
}

// timely says that a member may speak at now of slots at that time.
func (r Rule) timely(at, now int64) bool {
	switch r.Algorithm {
	case SlidingLog:
		return at > earlier(now, r.width()) && at <= r.horizon(now)
	case TokenBucket, LeakyBucket:
		return true
	}
	w := r.Index(now)
	return at >= earlier(w, 1) && (at <= later(w, 1) || r.start(at) <= later(now, int64(Ahead)))
}

// unite makes one slot of neighbours that are the same.
func (s *State) unite(same func(a, b Slot) bool) {
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

// most is the latest that a bucket's TAT can be: all that has not drained came with the last charge.
func (s *State) most() int64 {
	at, d := int64(math.MinInt64), uint64(0)
	for _, f := range s.Slots {
		at = max(at, f.At)
		d = saturatingAdd(d, f.Charged-f.Refunded)
	}
	return later(at, int64(min(d, math.MaxInt64)))
}
