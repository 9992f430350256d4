package limit

import (
	"math"
	"slices"
)

// Buckets follow the generic cell rate algorithm. One hit takes interval nanoseconds to drain, and TAT is when all
// that was charged will have drained, so the level at now is TAT - now.
//
// TAT alone cannot be merged: the larger of two forgets what the other was charged. So each writer's slot says how
// much it charged in all, in nanoseconds, and when last; what another State lacks of that is added to its TAT as if
// it had all come with the last charge. As a later charge never ends earlier, neither sum is below the truth, so the
// smaller one is taken. A refund lowers TAT only: it ran in the same State as the charges it gives back, and other
// States' sums are at most too high.
//
// Two members that both decided for long owe each other more than a bucket holds. What is older than one Window is
// forgiven, as windows do: a merged level exceeds the two together by a Window at most.
//
// A new slot begins to count at its time (Refunded: what had drained by then). TAT is behind a writer's Charged by
// refunds at most, and a slot is kept until both have passed, so a writer that begins anew is never below what old
// copies say of it.

// interval is the nanoseconds that a hit takes to drain, rounded up: a bucket lets through at most Limit hits a
// Window, and too few by one in 10^9 for each hit a second.
func (r Rule) interval() int64 {
	w, n := r.width(), int64(max(1, r.Limit))
	return (w-1)/n + 1
}

// spanOf is how long hits take to drain, saturating.
func (r Rule) spanOf(hits uint64) int64 {
	t := r.interval()
	if hits > uint64(math.MaxInt64/t) {
		return math.MaxInt64
	}
	return int64(hits) * t
}

// level is the nanoseconds that the bucket still drains.
func (s *State) level(now int64) int64 {
	if len(s.Slots) == 0 {
		return 0
	}
	return elapsed(now, s.TAT)
}

// usedBucket is the level in hits, rounded up. A TAT at the ceiling may hide charges, so nothing fits any more.
func (r Rule) usedBucket(s *State, now int64) uint64 {
	if len(s.Slots) > 0 && s.TAT == math.MaxInt64 {
		return math.MaxUint64
	}
	t := uint64(r.interval())
	return (uint64(s.level(now)) + t - 1) / t
}

func (r Rule) chargeBucket(s *State, now int64, writer, hits uint64) {
	if s.level(now) == 0 {
		r.trimBucket(s, now)
		s.TAT = now
	}
	s.chargeTime(writer, now, r.spanOf(hits))
}

// chargeTime charges d nanoseconds on top of TAT, which is not before now.
func (s *State) chargeTime(writer uint64, now, d int64) {
	i := s.slotOf(writer)
	if i < 0 {
		i = len(s.Slots)
		base := uint64(max(0, now))
		s.Slots = append(s.Slots, Slot{Writer: writer, At: now, Charged: base, Refunded: base})
	}
	f := &s.Slots[i]
	f.Charged = SaturatingAdd(f.Charged, uint64(d))
	f.At = max(f.At, now)
	s.TAT = addTime(s.TAT, d)
	s.sort()
}

// slotOf is the index of writer's slot, negative if there is none.
func (s *State) slotOf(writer uint64) int {
	for i := range s.Slots {
		if s.Slots[i].Writer == writer {
			return i
		}
	}
	return -1
}

// sort puts the slots in order.
func (s *State) sort() { slices.SortFunc(s.Slots, Slot.Compare) }

func (r Rule) refundBucket(s *State, now int64, hits uint64) {
	if level := s.level(now); level > 0 && s.TAT < math.MaxInt64 {
		s.TAT -= min(level, r.spanOf(hits))
	}
}

// mergeBuckets is not associative to the nanosecond: in another order more may come out.
func (r Rule) mergeBuckets(into, from *State) {
	switch {
	case len(from.Slots) == 0:
		return
	case len(into.Slots) == 0:
		into.TAT = from.TAT
	default:
		into.TAT = min(into.fold(from), from.fold(into), r.maxMergedTAT(into, from))
	}
	for _, g := range from.Slots {
		if i := into.slotOf(g.Writer); i < 0 {
			into.Slots = append(into.Slots, g)
		} else {
			into.Slots[i].At = max(into.Slots[i].At, g.At)
			into.Slots[i].raise(g)
		}
	}
	into.sort()
}

// fold is s's TAT with all that o has and s lacks, oldest first. It is an upper bound of what one counter's would be.
func (s *State) fold(o *State) int64 {
	tat := s.TAT
	for _, g := range o.Slots {
		from := g.Refunded
		if i := s.slotOf(g.Writer); i >= 0 {
			from = max(from, s.Slots[i].Charged)
		}
		if g.Charged > from {
			tat = addTime(max(tat, g.At), int64(min(g.Charged-from, math.MaxInt64)))
		}
	}
	return tat
}

// maxMergedTAT is the most that both together may owe: their levels at the last charge, and a Window.
func (r Rule) maxMergedTAT(a, b *State) int64 {
	last := max(a.Slots[len(a.Slots)-1].At, b.Slots[len(b.Slots)-1].At)
	return addTime(addTime(addTime(last, a.level(last)), b.level(last)), r.width())
}

func (r Rule) expiresBucket(s *State) int64 {
	at := s.TAT
	for _, f := range s.Slots {
		at = max(at, int64(min(f.Charged, math.MaxInt64)))
	}
	return at
}

// trimBucket keeps for a Window what other copies may lack.
func (r Rule) trimBucket(s *State, now int64) {
	if s.level(now) > 0 {
		return
	}
	soon := uint64(max(0, subTime(now, int64(ClockTolerance))))
	past := subTime(now, max(int64(ClockTolerance), r.width()))
	s.Slots = slices.DeleteFunc(s.Slots, func(f Slot) bool { return f.Charged <= soon && f.At <= past })
	if len(s.Slots) == 0 {
		s.TAT = 0
	}
}

// resetBucket is when a hit fits, or if there is room, when the bucket is whole again.
func (r Rule) resetBucket(s *State, now int64, over bool) int64 {
	switch {
	case over && r.Depth() == 0:
		return addTime(now, r.width())
	case over && len(s.Slots) > 0:
		return subTime(s.TAT, r.spanOf(uint64(r.Depth())-1))
	case len(s.Slots) > 0:
		return s.TAT
	}
	return now
}
