package limit

import "math"

// Tally is one writer's count of one fixed window, as two numbers that only grow. The count is their difference, so
// that a refund can be sent and merged without removing another member's charge. It is the State of a counter that only
// one member has charged, without the slice. The zero Tally is an empty counter.
type Tally struct {
	Window   int64  // index of the window: Unix time divided by the rule's Window
	Charged  uint64 // hits charged in it, saturating
	Refunded uint64 // hits refunded; at most Charged
}

// Count returns the count in t's own window.
func (t Tally) Count() uint64 { return net(t.Charged, t.Refunded) }

// net returns the count of charged and refunded hits. A saturated charge may hide others, so refunds no longer lower
// it.
func net(charged, refunded uint64) uint64 {
	if charged == math.MaxUint64 {
		return charged
	}
	return charged - min(charged, refunded)
}

// TallyAt returns t at now: empty once its window has passed. A window ahead of now is kept, so that a clock that steps
// back does not lose charges.
func (r Rule) TallyAt(t Tally, now int64) Tally {
	if w := r.width(); uint64(now-t.Window*w) < uint64(w) {
		return t // the same window, without a division
	}
	if i := r.Index(now); i > t.Window || t == (Tally{}) {
		return Tally{Window: i}
	}
	return t
}

// TakeTally charges hits completely, even beyond the limit, and returns whether they fit. Taking 0 hits is a peek.
func (r Rule) TakeTally(t Tally, now int64, hits uint64) (Tally, Decision) {
	t = r.TallyAt(t, now)
	d := r.decideTally(t, now, hits)
	t.Charged = SaturatingAdd(t.Charged, hits)
	return t, d
}

// PeekTally returns the Decision that TakeTally would return, without charging.
func (r Rule) PeekTally(t Tally, now int64, hits uint64) Decision {
	return r.decideTally(r.TallyAt(t, now), now, hits)
}

// RefundTally refunds hits, at most what was charged. Its Decision is never Over.
func (r Rule) RefundTally(t Tally, now int64, hits uint64) (Tally, Decision) {
	t = r.TallyAt(t, now)
	before := t.Count()
	if t.Charged < math.MaxUint64 {
		t.Refunded += min(hits, before)
	}
	d := r.decideTally(t, now, 0)
	d.Before, d.Over = before, false
	return t, d
}

// decideTally returns the Decision for hits at t, whose window contains now.
func (r Rule) decideTally(t Tally, now int64, hits uint64) Decision {
	d := Decision{Before: t.Count()}
	d.After = SaturatingAdd(d.Before, hits)
	d.Over = d.After > uint64(r.Limit)
	if !d.Over {
		d.Remaining = uint32(uint64(r.Limit) - d.After)
	}
	d.Reset = WholeSeconds(r.End(t.Window) - now)
	return d
}
