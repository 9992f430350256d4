package limit

import (
	"math"
	"slices"
)

// logSlots is the number of hits that a log keeps individually. Beyond it, the hits of each writer in one segment, a
// 64th of the Window, are joined into one slot at the end of the segment: later than the hits, so that no hit expires
// too early.
//
// Once a writer has a slot at the end of a segment, its further hits in that segment are added to it. So what it has
// charged in a segment is one number that only grows, whether it is kept as individual hits or joined. Copies of both
// kinds merge exactly: as joined slots, by the larger sum.
const logSlots = 64

// segmentWidth returns the length of a segment.
func (r Rule) segmentWidth() int64 { return (r.width() + logSlots - 1) / logSlots }

// segmentEnd returns the end of the segment that contains t. A segment contains its end, not its start.
func (r Rule) segmentEnd(t int64) int64 {
	q := r.segmentWidth()
	switch m := t % q; {
	case m == 0:
		return t
	case m < 0:
		return t - m
	default:
		return addTime(t, q-m)
	}
}

// countedSlots returns the range of slots that count at now: not older than Window, and not beyond the horizon.
func (r Rule) countedSlots(s *State, now int64) (from, to int) {
	return s.after(subTime(now, r.width())), s.after(r.horizon(now))
}

// horizon returns the latest time that a slot of a log may have at now. Slots that are ahead by more than
// [ClockTolerance] count immediately as well: hits that were already made must not leave room for others until their
// time comes.
func (r Rule) horizon(now int64) int64 {
	return addTime(addTime(now, int64(maxClockError)), r.segmentWidth())
}

// after returns the index of the first slot later than at.
func (s *State) after(at int64) int {
	i, _ := slices.BinarySearchFunc(s.Slots, at, func(f Slot, at int64) int {
		if f.At <= at {
			return -1
		}
		return 1
	})
	return i
}

// netAt returns the net count of the slots with the same time as slot i, and the index after them.
func (s *State) netAt(i int) (next int, n uint64) {
	var charged, refunded uint64
	for next = i; next < len(s.Slots) && s.Slots[next].At == s.Slots[i].At; next++ {
		charged = SaturatingAdd(charged, s.Slots[next].Charged)
		refunded = SaturatingAdd(refunded, s.Slots[next].Refunded)
	}
	return next, net(charged, refunded)
}

func (r Rule) usedLog(s *State, now int64) (used uint64) {
	for i, to := r.countedSlots(s, now); i < to; {
		var n uint64
		i, n = s.netAt(i)
		used = SaturatingAdd(used, n)
	}
	return used
}

func (r Rule) chargeLog(s *State, now int64, writer, hits uint64) {
	at, end := now, r.segmentEnd(now)
	if s.hasSlot(end, writer) {
		at = end
	} else if len(s.Slots) >= logSlots {
		r.dropSegments(s, now)
		if from, to := r.countedSlots(s, now); to-from >= logSlots {
			r.joinSegments(s)
			at = end
		}
	}
	s.charge(at, writer, hits)
}

// refundLog refunds the newest hits, each at its own time, so that a refund expires together with the hit.
func (r Rule) refundLog(s *State, now int64, writer, hits uint64) {
	from, to := r.countedSlots(s, now)
	for i := to - 1; i >= from && hits > 0; i-- {
		if i > from && s.Slots[i-1].At == s.Slots[i].At {
			continue
		}
		_, n := s.netAt(i)
		back := min(hits, n)
		if back == 0 || n == math.MaxUint64 {
			continue
		}
		f := s.slot(s.Slots[i].At, writer)
		f.Refunded = SaturatingAdd(f.Refunded, back)
		hits -= back
	}
}

func (r Rule) trimLog(s *State, now int64) {
	r.dropSegments(s, now)
	if from, to := r.countedSlots(s, now); to-from > logSlots {
		r.joinSegments(s)
	}
}

// dropSegments drops expired segments, but only complete ones: the sum of an incomplete segment would be lower than
// that of an older copy.
func (r Rule) dropSegments(s *State, now int64) {
	if gone := s.after(subTime(r.segmentEnd(subTime(now, r.width())), r.segmentWidth())); gone > 0 {
		s.Slots = slices.Delete(s.Slots, 0, gone)
	}
}

// joinSegments joins the slots of each writer in each segment.
func (r Rule) joinSegments(s *State) {
	kept := s.Slots[:0]
	begin := 0 // start of the current segment in kept
	for _, f := range s.Slots {
		f.At = r.segmentEnd(f.At)
		if begin < len(kept) && kept[begin].At != f.At {
			begin = len(kept)
		}
		i := begin
		for i < len(kept) && kept[i].Writer < f.Writer {
			i++
		}
		if i < len(kept) && kept[i].Writer == f.Writer {
			kept[i].add(f)
		} else {
			kept = slices.Insert(kept, i, f) // behind the reading position: kept never gets longer than what was read
		}
	}
	s.Slots = kept
}

func (f *Slot) add(g Slot) {
	f.Charged, f.Refunded = SaturatingAdd(f.Charged, g.Charged), SaturatingAdd(f.Refunded, g.Refunded)
}

func (r Rule) mergeLog(into, from *State) {
	for _, f := range from.Slots {
		end := r.segmentEnd(f.At)
		if sum := from.sum(subTime(end, r.segmentWidth()), end, f.Writer); sum.At == end || into.hasSlot(end, f.Writer) {
			sum.At = end
			sum.raise(into.sum(subTime(end, r.segmentWidth()), end, f.Writer))
			into.collapse(subTime(end, r.segmentWidth()), sum)
		} else {
			into.slot(f.At, f.Writer).raise(f)
		}
	}
}

// hasSlot reports whether writer has a slot at end, the end of a segment.
func (s *State) hasSlot(end int64, writer uint64) bool {
	_, ok := s.find(end, writer)
	return ok
}

// sum adds up writer's slots after begin and up to end. The result has the time of the latest one.
func (s *State) sum(begin, end int64, writer uint64) (sum Slot) {
	sum.Writer = writer
	for i := s.after(begin); i < len(s.Slots) && s.Slots[i].At <= end; i++ {
		if f := &s.Slots[i]; f.Writer == writer {
			sum.add(*f)
			sum.At = f.At
		}
	}
	return sum
}

// collapse replaces all slots of sum's writer after begin and up to sum.At with sum.
func (s *State) collapse(begin int64, sum Slot) {
	i := s.after(begin)
	kept := s.Slots[:i]
	for _, f := range s.Slots[i:] {
		if f.Writer != sum.Writer || f.At > sum.At {
			kept = append(kept, f)
		}
	}
	s.Slots = kept
	*s.slot(sum.At, sum.Writer) = sum
}

// resetLog returns when a hit fits, or if one fits now, when the oldest hit expires.
func (r Rule) resetLog(s *State, now int64, over bool) int64 {
	full := addTime(now, r.width())
	if over && r.Limit == 0 {
		return full
	}
	used := r.usedLog(s, now)
	for i, to := r.countedSlots(s, now); i < to; {
		at := s.Slots[i].At
		if !over {
			return addTime(at, r.width())
		}
		var n uint64
		if i, n = s.netAt(i); used < math.MaxUint64 || n == used {
			used -= n
		}
		if used < uint64(r.Limit) {
			return addTime(at, r.width())
		}
	}
	return full
}
