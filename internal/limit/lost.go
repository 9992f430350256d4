package limit

import "slices"

// lostSteps is the number of steps in which the charges for a lost log expire.
const lostSteps = 8

// ChargeLost adds charges for a State that was lost, as if the limit had been used evenly until now. Until the lost
// State would have expired, the rule then admits the limit's share of the remaining time. A bucket becomes full. A
// second call with the same now changes nothing; a later call may charge more. Slots grow by at most lostSteps.
func (r Rule) ChargeLost(s *State, now int64) {
	if r.Limit == 0 {
		return
	}
	limit := uint64(r.Limit)
	w := r.currentWindow(s, now)
	switch r.Algorithm {
	case SlidingLog, InFlight:
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

// lostSlot returns the slot for lost state in a log at time t.
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

// DropLost removes the charges that ChargeLost added, for a member that has the State after all, and reports whether
// there were any. It never under-charges: the rest of a bucket counts as if each writer had charged all its hits with
// its last one.
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
