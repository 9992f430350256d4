package limit

import (
	"math"
	"slices"
)

// A log keeps hits one by one while there are at most logSlots, then joins those of each writer in one step of
// Window/64 (a bucket) to one slot at the bucket's end: later than the hits, so that a hit never leaves too early.
//
// Once a writer has a slot at the end of a bucket, its further hits in the bucket go there. So what it has charged in
// a bucket is one number that only grows, whether kept as single hits or joined, and copies of both kinds merge
// exactly: as joined, by the larger sum.
const logSlots = 64

// segmentWidth is the length of a bucket.
func (r Rule) segmentWidth() int64 { return (r.width() + logSlots - 1) / logSlots }

// segmentEnd is the end of the bucket that t lies in. Buckets hold their end, not their beginning.
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

// countedSlots is the range of the slots that count at now: not older than Window, and not further ahead than a clock may be
// that is set right again.
func (r Rule) countedSlots(s *State, now int64) (from, to int) {
	return s.after(subTime(now, r.width())), s.after(r.horizon(now))
}

// horizon is the latest time that a slot of a log may have at now. What one is ahead by more than [Ahead] counts at once, too:
// hits that were made already must not leave room for others until their time comes.
func (r Rule) horizon(now int64) int64 {
	return addTime(addTime(now, int64(maxClockError)), r.segmentWidth())
}

// after is the index of the first slot later than at.
func (s *State) after(at int64) int {
	i, _ := slices.BinarySearchFunc(s.Slots, at, func(f Slot, at int64) int {
		if f.At <= at {
			return -1
		}
		return 1
	})
	return i
}

// netAt is the index after the slots that are as old as slot i, and what stands of them.
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

// refundLog gives back the newest hits, each at its own time, so that what is given back leaves with the hit.
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

// dropSegments forgets whole buckets: of a part of one the sum would be too small beside that of an older copy.
func (r Rule) dropSegments(s *State, now int64) {
	if gone := s.after(subTime(r.segmentEnd(subTime(now, r.width())), r.segmentWidth())); gone > 0 {
		s.Slots = slices.Delete(s.Slots, 0, gone)
	}
}

// joinSegments makes one slot of what each writer has in a bucket.
func (r Rule) joinSegments(s *State) {
	kept := s.Slots[:0]
	begin := 0 // of the present bucket in kept
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
			kept = slices.Insert(kept, i, f) // behind what was read: kept is never longer than that
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

// hasSlot says that writer has a slot at end, which is the end of a bucket.
func (s *State) hasSlot(end int64, writer uint64) bool {
	_, ok := s.find(end, writer)
	return ok
}

// sum is what writer did later than begin and until end, at the time of the latest.
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

// collapse puts sum in the place of all that its writer did later than begin and until sum.At.
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

// resetLog is when a hit fits, or if there is room, when the oldest leaves.
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
