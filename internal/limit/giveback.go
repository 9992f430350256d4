package limit

import "math"

// ChargedAt returns where writer's hits are that Take or Charge has just charged at now: the index of their window, the
// time of their slot in a log, or for buckets the TAT. [Rule.GiveBack] finds them there.
func (r Rule) ChargedAt(s *State, now int64, writer uint64) int64 {
	switch r.Algorithm {
	case SlidingLog, InFlight:
		if end := r.segmentEnd(now); s.hasSlot(end, writer) {
			return end
		}
		return now
	case TokenBucket, LeakyBucket:
		return s.TAT
	}
	return r.currentWindow(s, now)
}

// GiveBack gives back up to hits that were charged at the place that [Rule.ChargedAt] returned, as that writer, and
// returns how many. It changes only that place: in a window or a slot of a log it gives back at most the count there.
// It gives back nothing if the charge no longer counts at now. Slots grow by at most one.
//
// For a bucket, at is the TAT after the charge, minus the time in which the hits drain that were given back since then.
// The caller keeps both. At most the hits come back that have not drained completely.
func (r Rule) GiveBack(s *State, now int64, writer uint64, at int64, hits uint64) (back uint64) {
	switch r.Algorithm {
	case SlidingLog, InFlight:
		slot, counts := r.chargedSlot(s, now, at)
		if !counts {
			return 0
		}
		back = s.refund(slot, writer, hits)
		if end := r.segmentEnd(at); back < hits && end != slot { // only other writers' hits of that time were not joined
			back += s.refund(end, writer, hits-back)
		}
		return back
	case TokenBucket, LeakyBucket:
		return r.giveBackBucket(s, now, at, hits)
	}
	if !r.windowCounts(at, now) {
		return 0
	}
	return s.refund(at, writer, hits)
}

// Extend moves hits of an InFlight rule from the slot that [Rule.ChargedAt] returned to now, so that they count for
// another Window. It returns their new slot, or false if they no longer count or r has another algorithm. If less than
// hits counts there, it nevertheless charges all of them at now. Slots grow by at most two.
func (r Rule) Extend(s *State, now int64, writer uint64, at int64, hits uint64) (newAt int64, ok bool) {
	slot, counts := r.chargedSlot(s, now, at)
	if r.Algorithm != InFlight || !counts || hits == 0 || s.windowCount(slot) == 0 {
		return at, false
	}
	if slot >= now { // the end of the current segment, or from a clock that is ahead
		return slot, true
	}
	if s.refund(slot, writer, hits) == 0 {
		return at, false
	}
	r.chargeLog(s, now, writer, hits)
	return r.ChargedAt(s, now, writer), true
}

// chargedSlot returns the time of the slot with the hits that were charged at the given time to a log: that time, or
// the end of its segment if the slots of the segment were joined. It returns false if they have expired.
func (r Rule) chargedSlot(s *State, now, at int64) (slot int64, counts bool) {
	if at <= subTime(now, r.width()) {
		return at, false
	}
	if charged, _ := s.sums(at); charged > 0 {
		return at, true
	}
	return r.segmentEnd(at), true
}

// windowCounts reports whether window w may count: the current one and the previous one of a sliding window, or the current one and
// the next of a fixed window, which can be charged ahead, and a later one that starts within [ClockTolerance], or is the next then.
func (r Rule) windowCounts(w, now int64) bool {
	oldest, newest := r.Index(now), r.Index(addTime(now, int64(ClockTolerance)))
	if r.Algorithm == SlidingWindow {
		oldest = subTime(oldest, 1)
	} else {
		newest = addTime(newest, 1)
	}
	return w >= oldest && w <= newest
}

// giveBackBucket gives back hits of a bucket whose last hit drains at the given time. A hit that has begun to drain does
// not come back.
func (r Rule) giveBackBucket(s *State, now, at int64, hits uint64) (back uint64) {
	if s.TAT == math.MaxInt64 {
		return 0
	}
	t := r.interval()
	back = min(hits, uint64(min(elapsed(now, at), s.level(now))/t))
	s.TAT -= int64(back) * t
	return back
}
