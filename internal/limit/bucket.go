package limit

import (
	"math"
	"slices"
)

// Buckets use the generic cell rate algorithm. A hit takes interval nanoseconds to drain. TAT is when everything that
// was charged will have drained, so the level at now is TAT - now.
//
// TATs cannot be merged by taking the larger one, because that ignores what the other member charged. Each writer's
// slot therefore contains the total that it charged, in nanoseconds, and the time of its last charge. Merge adds the
// charges that one State lacks to its TAT, as if all of them had come with the last charge. A later charge never ends
// earlier, so neither of the two sums is too low, and Merge uses the smaller one. A refund lowers only TAT: it happened
// in the same State as the charges that it refunds, and the sums of other States can only be too high.
//
// If two members decided separately for a long time, each lacks more charges than a bucket holds. Charges older than
// one Window are ignored, as for windows: a merged level exceeds the two levels together by at most one Window.
//
// A new slot starts to count at its time (Refunded: what had drained by then). TAT is behind a writer's Charged only by
// refunds, and a slot is kept until both have passed. So a writer that starts again is never below what old copies
// contain for it.

// interval returns the nanoseconds in which one hit drains, rounded up. Because of the rounding, a bucket admits at
// most Limit hits per Window, and less by a factor of at most 10^-9 for each hit per second.
func (r Rule) interval() int64 {
	w, n := r.width(), int64(max(1, r.Limit))
	return (w-1)/n + 1
}

// spanOf returns the nanoseconds in which hits drain, saturating.
func (r Rule) spanOf(hits uint64) int64 {
	t := r.interval()
	if hits > uint64(math.MaxInt64/t) {
		return math.MaxInt64
	}
	return int64(hits) * t
}

// level returns the nanoseconds until the bucket is empty.
func (s *State) level(now int64) int64 {
	if len(s.Slots) == 0 {
		return 0
	}
	return elapsed(now, s.TAT)
}

// usedBucket returns the level in hits, rounded up. A saturated TAT may hide charges, so then nothing fits.
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

// chargeTime adds d nanoseconds to TAT, which is not before now.
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

// slotOf returns the index of writer's slot, or -1.
func (s *State) slotOf(writer uint64) int {
	for i := range s.Slots {
		if s.Slots[i].Writer == writer {
			return i
		}
	}
	return -1
}

// sort restores the order of the slots.
func (s *State) sort() { slices.SortFunc(s.Slots, Slot.Compare) }

func (r Rule) refundBucket(s *State, now int64, hits uint64) {
	if level := s.level(now); level > 0 && s.TAT < math.MaxInt64 {
		s.TAT -= min(level, r.spanOf(hits))
	}
}

// mergeBuckets is not associative to the nanosecond: another order may give a higher level.
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

// fold returns s's TAT with all charges that o has and s lacks, oldest first. It is an upper bound of the TAT of a
// single counter with all charges.
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

// maxMergedTAT returns the upper bound of a merged TAT: both levels at the last charge, plus a Window.
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

// trimBucket drops slots that are empty. It keeps them for a Window for copies that may lack them.
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

// resetBucket returns when a hit fits, or if one fits now, when the bucket is empty.
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
