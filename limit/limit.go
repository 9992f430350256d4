// Package limit decides whether hits fit a limit.
//
// Everything here is a value: a [Rule] looks at a [State] and a time and returns the next State with a [Decision].
// There is no clock, no lock and no I/O; times are nanoseconds since the Unix epoch and come from the caller.
package limit

import (
	"math"
	"time"
)

// Algorithm says how a rule spends its limit over time. The numbers are part of the peer protocol and of the
// counter's key, so they never change.
type Algorithm uint8

// FixedWindow counts hits in windows aligned to the Unix epoch, as envoyproxy/ratelimit does.
const FixedWindow Algorithm = 0

// Rule is one limit: at most Limit hits in a Window. It is comparable and immutable.
type Rule struct {
	Window    time.Duration // length of a window; one that is not positive counts as a second
	Limit     uint32        // hits a window; 0 refuses everything
	Burst     uint32        // reserved for the bucket algorithms
	Algorithm Algorithm
}

// State is what one writer knows of one counter: two monotone numbers of one window. Their difference is the count,
// so that a refund can travel and be merged without ever un-counting somebody else's charge.
// The zero State is an empty counter.
type State struct {
	Window   int64  // index of the window: Unix time divided by the rule's Window
	Charged  uint64 // hits charged in it, saturating
	Refunded uint64 // hits given back; at most Charged
}

// Count is the hits that stand against the limit in s's own window. Charges that have reached the ceiling may hide
// others, so no refund lowers them any more.
func (s State) Count() uint64 {
	if s.Charged == math.MaxUint64 {
		return math.MaxUint64
	}
	return s.Charged - s.Refunded
}

// Decision is the answer to one question.
type Decision struct {
	Before    uint64        // count before the hits
	After     uint64        // count with the hits, saturating at math.MaxUint64
	Reset     time.Duration // until the window ends, in whole seconds, rounded up; at least one
	Remaining uint32        // hits left; 0 when over
	Over      bool          // After exceeds the limit
}

func (r Rule) width() int64 {
	if r.Window <= 0 {
		return int64(time.Second)
	}
	return int64(r.Window)
}

// Index is the window that now lies in.
func (r Rule) Index(now int64) int64 {
	w := r.width()
	i := now / w
	if now%w < 0 {
		i--
	}
	return i
}

// End is the first instant after window index, in Unix nanoseconds.
func (r Rule) End(index int64) int64 { return (index + 1) * r.width() }

// At is s as it stands at now: empty once its window has passed. A window ahead of now is kept, so that a clock that
// steps back never forgets charges.
func (r Rule) At(s State, now int64) State {
	if w := r.width(); uint64(now-s.Window*w) < uint64(w) {
		return s // the same window, without a division
	}
	if i := r.Index(now); i > s.Window || s == (State{}) {
		return State{Window: i}
	}
	return s
}

// Take charges hits in full, also past the limit, and says whether they fitted. Taking 0 hits is a Peek.
func (r Rule) Take(s State, now int64, hits uint64) (State, Decision) {
	s = r.At(s, now)
	d := r.decide(s, now, hits)
	s.Charged = saturatingAdd(s.Charged, hits)
	return s, d
}

// Peek answers as Take would, and charges nothing.
func (r Rule) Peek(s State, now int64, hits uint64) Decision {
	return r.decide(r.At(s, now), now, hits)
}

// Refund gives hits back, never more than were charged, and is never over.
func (r Rule) Refund(s State, now int64, hits uint64) (State, Decision) {
	s = r.At(s, now)
	before := s.Count()
	if s.Charged < math.MaxUint64 {
		s.Refunded += min(hits, before)
	}
	d := r.decide(s, now, 0)
	d.Before, d.Over = before, false
	return s, d
}

// Merge joins what two holders know of one writer's counter. It is commutative, associative and idempotent, and never
// under-charges: of two windows the newer stands, within one each number is the larger, so that of two states of one
// history the later one comes out.
func (r Rule) Merge(a, b State) State {
	switch {
	case a == State{}:
		return b
	case b == State{}:
		return a
	case a.Window > b.Window:
		return a
	case a.Window < b.Window:
		return b
	}
	return State{a.Window, max(a.Charged, b.Charged), max(a.Refunded, b.Refunded)}
}

func (r Rule) decide(s State, now int64, hits uint64) Decision {
	d := Decision{Before: s.Count()}
	d.After = saturatingAdd(d.Before, hits)
	d.Over = d.After > uint64(r.Limit)
	if !d.Over {
		d.Remaining = uint32(uint64(r.Limit) - d.After)
	}
	// Windows far from now come only of broken clocks; the clamp keeps their Reset positive.
	left := min(max(1, r.End(s.Window)-now), math.MaxInt64-int64(time.Second))
	d.Reset = (time.Duration(left) + time.Second - 1).Truncate(time.Second)
	return d
}

func saturatingAdd(a, b uint64) uint64 {
	if s := a + b; s >= a {
		return s
	}
	return math.MaxUint64
}
