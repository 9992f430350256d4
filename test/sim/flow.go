package sim

import (
	"math"
	"slices"
	"time"
)

// checkAdmitted checks what logs and buckets admit over time.
func (o *oracle) checkAdmitted(a *account, x *span, q *request, v *decision) {
	switch {
	case a.rule.Algorithm.Bucket():
		o.checkBucket(a, x, q, v)
	case a.rule.Algorithm.Log():
		a.log = append(a.log, admission{v.latest, q.req.Hits, v.latest - v.earliest})
	}
}

// checkBucket compares the decision with a bucket that loses nothing.
func (o *oracle) checkBucket(a *account, x *span, q *request, v *decision) {
	if v.byShare() {
		x.shared += q.req.Hits
	}
	switch {
	case !v.fromLease && !v.fromCopy:
		o.countedBy(a, v.by)
	case v.fromCopy:
		if a.by == nil {
			a.by = o.ownerByRing(a, v.by)
		}
		a.skew = max(a.skew, a.rate()*math.Abs(float64(v.by.clock()-a.by.clock())))
		v.earliest, v.latest = a.by.clock(), a.by.clock()
	}
	t := v.latest
	if dt := t - a.at; dt > 0 {
		a.level -= a.rate() * float64(dt)
		a.at = t
	}
	if a.level <= 0 {
		o.startBusyPeriod(a, x, q, v)
	}
	if !v.fromLease && !v.fromCopy {
		o.beforeRevocation(x, v, q.req.Hits)
	}
	hits := float64(q.req.Hits)
	free := min(a.credit, hits)
	a.credit -= free
	a.freed += free
	a.level += hits - free
	a.skew = max(a.skew, a.rate()*float64(v.latest-v.earliest))
	if x.faults&faultStep != 0 {
		// A member whose clock was set back considers a replica to be from the future, and limits it to the latest
		// possible time.
		a.skew = max(a.skew, a.rate()*1.1e9)
	}
	// A bucket charges in full if at least one hit fits, so the last request may exceed the limit. Its decision was
	// over the limit then.
	drift := a.rate() * 2e-4 * float64(o.w.now-x.start)
	if most := float64(x.limit) + float64(o.bound(a, x)) + a.skew + a.early + drift + 1e-6; a.level > most {
		o.w.fail("I8: request #%d brings the bucket %04x (%+v) to %.2f, above %d and %d more (%.2f for clocks): %s",
			q.id, a.key[0]>>48, a.rule, a.level, x.limit, o.bound(a, x), a.skew+a.early, x)
	}
	o.w.stats.approach(x, a.level, float64(x.limit), float64(o.bound(a, x)))
}

// startBusyPeriod resets the account and span of a bucket that was empty.
func (o *oracle) startBusyPeriod(a *account, x *span, q *request, v *decision) {
	a.level, a.skew, a.early, a.freed = 0, 0, a.freed, 0
	*x = span{
		start: o.w.now, end: math.MaxInt64, limit: x.limit, last: x.last, successor: x.successor,
		deciders: x.deciders[:0], leftAt: x.leftAt, balance: x.balance,
	}
	o.touch(x)
	if v.byShare() {
		x.shared = q.req.Hits
	} else if !v.fromLease && !v.fromCopy {
		x.deciders = append(x.deciders, v.by)
	}
	if v.fromCopy {
		o.addAhead(x, q, v)
	}
}

// ownerByRing returns the owner of a's key on m's ring, or m if it does not run.
func (o *oracle) ownerByRing(a *account, m *member) *member {
	if i := m.view.Ring.Owner(a.owner); i >= 0 {
		if p := o.w.slots[slotOf(m.view.Ring.At(i).ID)].now; p != nil {
			return p
		}
	}
	return m
}

// countedBy records which member decides a bucket, and so by which clock.
func (o *oracle) countedBy(a *account, m *member) {
	if a.by != nil && a.by != m {
		a.skew += a.rate() * math.Abs(float64((m.clock()-o.w.now)-(a.by.clock()-o.w.now)))
	}
	a.by = m
}

// before returns the window before x, or nil if nothing was decided in it.
func (a *account) before(x *span) *span {
	for _, y := range a.spans {
		if y.index == x.index-1 {
			return y
		}
	}
	return nil
}

// clocks returns the number of members whose clocks have counted x.
func (x *span) clocks() int {
	n := len(x.deciders)
	for _, m := range x.lenders {
		if !slices.Contains(x.deciders, m) {
			n++
		}
	}
	return n
}

// clockTolerance returns how far clocks may disagree about the time of a decision.
func (o *oracle) clockTolerance(x, y *span) int64 {
	d := int64(2 * time.Millisecond)
	if y != nil && (y.clocks() > 1 || x.clocks() > 1 || y.last != x.last) || x.shared+x.ahead > 0 || y != nil &&
		y.shared+y.ahead > 0 {
		d += 2*int64(o.w.o.Skew) + int64(2*o.w.o.Drift*float64(int64(o.w.o.Length+o.w.o.Leases.Lull+o.w.o.slowed(warmUp))))
	}
	return d
}

// checkLog checks that a log does not exceed its limit in the window that ends now.
func (o *oracle) checkLog(a *account, x *span, q *request, v *decision) {
	y := a.before(x)
	from := v.latest - int64(a.rule.Window) + o.clockTolerance(x, y)
	sum, kept := uint64(0), a.log[:0]
	for _, h := range a.log {
		if h.at > v.latest-3*int64(a.rule.Window) {
			kept = append(kept, h)
		}
		if h.at-h.slop > from && h.at <= v.latest {
			sum += h.n
		}
	}
	a.log = kept
	most := x.limit + x.refunded + o.bound(a, x)
	if y != nil {
		most += max(x.limit, y.limit) - x.limit + y.refunded + o.bound(a, y)
	}
	if sum > most {
		o.w.fail("I8: request #%d on log %04x: %d admitted in %v, limit %d, bound %d: %s", q.id, a.key[0]>>48, sum,
			a.rule.Window, x.limit, most-x.limit, x)
	}
}

// refunded records a refund. While a count remains, all refunded hits lower it. Those of the previous window lower it
// by their weight only, in integers, which may be 0.
func (o *oracle) refunded(x *span, q *request, v *decision) {
	back := v.result.Before - min(v.result.Before, v.result.After)
	x.refunds = true
	x.refunded += back
	if v.result.After > 0 {
		x.older += q.req.Hits - min(q.req.Hits, back)
	}
}

// checkSlidingWindow checks that two windows, the older one weighted, do not exceed their limit.
func (o *oracle) checkSlidingWindow(a *account, x *span, q *request, v *decision) {
	y := a.before(x)
	sum, most := float64(x.admitted), float64(x.limit+x.refunded+o.bound(a, x))
	ease := float64(o.clockTolerance(x, y)) / float64(a.rule.Window)
	if y != nil {
		x.latest = max(x.latest, v.latest) // replies overtake each other
		part := float64(x.end-x.latest) / float64(a.rule.Window)
		sum += float64(y.admitted-min(y.admitted, x.older)) * (part - ease)
		most += float64(max(x.limit, y.limit) - x.limit + y.refunded + o.bound(a, y))
	}
	// It is uncertain for as long as clocks differ which of two windows a request falls into.
	if sum > most+ease*float64(x.limit) {
		o.w.fail("I8: request #%d on windows %04x: %.1f admitted in %v, limit %d, bound %.1f: %s", q.id, a.key[0]>>48,
			sum, a.rule.Window, x.limit, most-float64(x.limit), x)
	}
}
