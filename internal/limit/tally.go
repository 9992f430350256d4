package limit

import "math"

// Tally is what one writer knows of one fixed window: two monotone numbers. Their difference is the count, so that a
// refund can travel and be merged without ever un-counting somebody else's charge. It is the State of a counter that
// one member alone has charged, without the slice. The zero Tally is an empty counter.
type Tally struct {
	Window   int64  // index of the window: Unix time divided by the rule's Window
	Charged  uint64 // hits charged in it, saturating
	Refunded uint64 // hits given back; at most Charged
}

// Count is the hits that stand against the limit in t's own window.
func (t Tally) Count() uint64 { return net(t.Charged, t.Refunded) }

// net is what stands of charged hits. Charges that have reached the ceiling may hide others, so no refund lowers them
// any more.
func net(charged, refunded uint64) uint64 {
	if charged == math.MaxUint64 {
		return charged
	}
	return charged - min(charged, refunded)
}

// TallyAt is t as it stands at now: empty once its window has passed. A window ahead of now is kept, so that a clock
// that steps back never forgets charges.
func (r Rule) TallyAt(t Tally, now int64) Tally {
	if w := r.width(); uint64(now-t.Window*w) < uint64(w) {
		return t // the same window, without a division
	}
	if i := r.Index(now); i > t.Window || t == (Tally{}) {
		return Tally{Window: i}
	}
	return t
}

// TakeTally charges hits in full, also past the limit, and says whether they fitted. Taking 0 hits is a peek.
func (r Rule) TakeTally(t Tally, now int64, hits uint64) (Tally, Decision) {
	t = r.TallyAt(t, now)
	d := r.decideTally(t, now, hits)
	t.Charged = SaturatingAdd(t.Charged, hits)
	return t, d
}

// PeekTally answers as TakeTally would, and charges nothing.
func (r Rule) PeekTally(t Tally, now int64, hits uint64) Decision {
	return r.decideTally(r.TallyAt(t, now), now, hits)
}

// RefundTally gives hits back, never more than were charged, and is never over.
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

// MergeTally joins what two holders know of one writer's counter. It is commutative, associative and idempotent, and
// never under-charges: of two windows the newer stands, within one each number is the larger, so that of two tallies
// of one history the later one comes out.
func (r Rule) MergeTally(a, b Tally) Tally {
	switch {
	case a == Tally{}:
		return b
	case b == Tally{}:
		return a
	case a.Window > b.Window:
		return a
	case a.Window < b.Window:
		return b
	}
	return Tally{a.Window, max(a.Charged, b.Charged), max(a.Refunded, b.Refunded)}
}

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
