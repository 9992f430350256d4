package limit

import (
	"math"
	"math/bits"
)

// currentWindow returns the window that counts at now: the one that contains now, or the newest one that starts within
// ClockTolerance, which a member with a faster clock has opened. Slots further ahead stay until their time comes.
func (r Rule) currentWindow(s *State, now int64) int64 {
	w := r.Index(now)
	for i := len(s.Slots) - 1; i >= 0 && s.Slots[i].At > w; i-- {
		if r.start(s.Slots[i].At) <= addTime(now, int64(ClockTolerance)) {
			return s.Slots[i].At
		}
	}
	return w
}

// windowCount returns the count of window w.
func (s *State) windowCount(w int64) uint64 { return net(s.sums(w)) }

// CountAt returns the count of window w alone. The state is of a rule with windows.
func (s *State) CountAt(w int64) uint64 { return s.windowCount(w) }

// sums returns what all writers charged and refunded at one time.
func (s *State) sums(at int64) (charged, refunded uint64) {
	for i := len(s.Slots) - 1; i >= 0 && s.Slots[i].At >= at; i-- {
		if f := &s.Slots[i]; f.At == at {
			charged = SaturatingAdd(charged, f.Charged)
			refunded = SaturatingAdd(refunded, f.Refunded)
		}
	}
	return charged, refunded
}

// charge adds hits at one time. Refunds of charges that are unknown here, or that two members made, must not pay for
// these hits, so the difference is charged in addition.
func (s *State) charge(at int64, writer, hits uint64) {
	if charged, refunded := s.sums(at); refunded > charged {
		hits = SaturatingAdd(hits, refunded-charged)
	}
	f := s.slot(at, writer)
	f.Charged = SaturatingAdd(f.Charged, hits)
}

func (r Rule) usedWindows(s *State, now int64) uint64 {
	w := r.currentWindow(s, now)
	used := s.windowCount(w)
	if r.Algorithm == SlidingWindow {
		used = SaturatingAdd(used, r.overlapping(s.windowCount(subTime(w, 1)), r.left(w, now)))
	}
	return used
}

// left returns how much of window w remains at now: all of it if it has not started.
func (r Rule) left(w, now int64) uint64 {
	return uint64(r.width() - min(elapsed(r.start(w), now), r.width()))
}

// overlapping returns the part of n that overlaps the remaining time left of the next window, rounded up.
func (r Rule) overlapping(n, left uint64) uint64 {
	if n == math.MaxUint64 && left > 0 {
		return n
	}
	return mulDivUp(n, left, uint64(r.width()))
}

// mulDivUp returns a * b / c, rounded up; b <= c.
func mulDivUp(a, b, c uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	q, rem := bits.Div64(hi, lo, c)
	if rem > 0 {
		q++
	}
	return q
}

func (r Rule) chargeWindow(s *State, now int64, writer, hits uint64) {
	w := r.currentWindow(s, now)
	if _, ok := s.find(w, writer); !ok {
		r.Trim(s, now)
	}
	s.charge(w, writer, hits)
}

// TakeNext charges hits to the window after that of now if they fit there, and otherwise charges nothing. The time until
// Reset begins at now. Slots grow by at most one. Only a FixedWindow has a next window: another algorithm counts hits of
// the current one, of which more may come, against the next.
func (r Rule) TakeNext(s *State, now int64, writer, hits uint64) Decision {
	next := addTime(r.Index(now), 1)
	d := r.Peek(s, r.start(next), hits)
	d.Reset += WholeSeconds(elapsed(now, r.start(next)))
	if d.Over = d.Over || r.Algorithm != FixedWindow; !d.Over {
		r.Trim(s, now)
		s.charge(next, writer, hits)
	}
	return d
}

// refundWindows refunds from the current window, then from the previous one if that still counts.
func (r Rule) refundWindows(s *State, now int64, writer, hits uint64) {
	w := r.currentWindow(s, now)
	hits -= s.refund(w, writer, hits)
	if r.Algorithm == SlidingWindow && r.left(w, now) > 0 {
		s.refund(subTime(w, 1), writer, hits)
	}
}

// RefundAt refunds up to hits of window w, as that writer, and returns how many. The state is of a rule with windows.
func (s *State) RefundAt(w int64, writer, hits uint64) uint64 { return s.refund(w, writer, hits) }

// refund refunds up to hits from window w and returns how many.
func (s *State) refund(w int64, writer, hits uint64) uint64 {
	v := s.windowCount(w)
	back := min(hits, v)
	if back == 0 || v == math.MaxUint64 {
		return 0
	}
	f := s.slot(w, writer)
	f.Refunded = SaturatingAdd(f.Refunded, back)
	return back
}

// resetWindows returns when the window ends, or, for a sliding window that is over the limit, when a hit fits.
func (r Rule) resetWindows(s *State, now int64, over bool) int64 {
	w := r.currentWindow(s, now)
	end := r.start(addTime(w, 1))
	if r.Algorithm != SlidingWindow || !over || r.Limit == 0 {
		return end
	}
	room := uint64(r.Limit) - 1
	if v := s.windowCount(w); v > room {
		// Only when this window's count weighs little enough on the next one.
		return subTime(r.start(addTime(w, 2)), r.overlapFor(v, room))
	} else if before := s.windowCount(subTime(w, 1)); before > room-v {
		return subTime(end, r.overlapFor(before, room-v))
	}
	return now
}

// overlapFor returns how much of the next window may remain for n to count as at most room; n > room.
func (r Rule) overlapFor(n, room uint64) int64 {
	if n == math.MaxUint64 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(r.width()), room)
	q, _ := bits.Div64(hi, lo, n)
	return int64(q)
}
