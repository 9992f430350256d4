package limit

import "slices"

// lostSteps is the number of parts in which a log's ghost leaves.
const lostSteps = 8

// ChargeLost charges for a State that is lost, so that what may be admitted until it would have mattered no more is the
// limit's share of the time that is left: as if the limit had been used up evenly until now. A bucket is full. A second
// call with the same now changes nothing; a later one may charge more. Slots grow by at most lostSteps.
func (r Rule) ChargeLost(s *State, now int64) {
	if r.Limit == 0 {
		return
	}
	limit := uint64(r.Limit)
	w := r.currentWindow(s, now)
	switch r.Algorithm {
	case SlidingLog:
		for i := range uint64(lostSteps) {
			at := subTime(now, int64(mulDivUp(uint64(r.width()), i, lostSteps)))
			r.lostSlot(s, at).raise(Slot{Charged: limit*(i+1)/lostSteps - limit*i/lostSteps})
		}
	case TokenBucket, LeakyBucket:
		r.fillBucket(s, now)
	case SlidingWindow:
		s.slot(subTime(w, 1), LostStateWriter).raise(Slot{Charged: limit})
		fallthrough
	default:
		gone := uint64(r.width()) - r.left(w, now)
		if n := mulDivUp(limit, gone, uint64(r.width())); n > 0 {
			s.slot(w, LostStateWriter).raise(Slot{Charged: n})
		}
	}
}

// lostSlot is the ghost's slot of a log for time t.
func (r Rule) lostSlot(s *State, t int64) *Slot {
	if end := r.segmentEnd(t); s.hasSlot(end, LostStateWriter) {
		t = end
	}
	return s.slot(t, LostStateWriter)
}

// fillBucket raises a bucket's level to its depth.
func (r Rule) fillBucket(s *State, now int64) {
	full := r.spanOf(uint64(r.Depth()))
	level := s.level(now)
	if level >= full {
		return
	}
	if level == 0 {
		s.TAT = now
	}
	s.chargeTime(LostStateWriter, now, full-level)
}

// DropLost takes the charges for a lost State out of s, for a member that knows that it was not lost, and reports whether there were any. It
// never under-charges: what remains of a bucket counts as if each writer had charged all of its hits with its last one.
func (r Rule) DropLost(s *State) bool {
	n := len(s.Slots)
	s.Slots = slices.DeleteFunc(s.Slots, func(f Slot) bool { return f.Writer == LostStateWriter })
	if len(s.Slots) == n {
		return false
	}
	if r.Algorithm.Bucket() {
		var empty State
		s.TAT = min(s.TAT, empty.fold(s))
	}
	return true
}
