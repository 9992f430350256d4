package sim

import (
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner"
)

// closedHits are the hits of a fail_closed rule that one member has admitted in a window without the owner.
type closedHits struct {
	by   *member
	hits uint64
	last int64  // time of the last of them
	base uint64 // hits that owners had admitted before the first
}

// closedReported is how long after a hit without the owner every owner must have counted it, if members crash and
// nothing else fails: a new owner does not decide before all others have adopted its ring, and they report at once. A
// decision may have been pending for a second.
const closedReported = int64(2 * time.Second)

// checkClosed checks decisions on a fail_closed rule with fixed windows. The successor of a failed owner admits no more
// than its share of what was left, and owners deduct what others have admitted.
func (o *oracle) checkClosed(a *account, x *span, q *request, v *decision) {
	if q.req.Op != owner.Take || a.rule.Algorithm != limit.FixedWindow || !o.crashesOnly() || o.w.o.Closed == 0 {
		return
	}
	switch {
	case v.result.Authority == owner.Closed && !v.result.Over && q.req.Hits > 0:
		c := x.closedBy(v.by)
		c.hits, c.last = c.hits+q.req.Hits, o.w.now
		left := x.limit - min(x.limit, c.base)
		known := x.lostState+x.allowance == 0 // else the replica may lack what owners have admitted
		if most := left/uint64(v.by.view.NRef) + 1; known && x.successor == v.by && c.hits > most {
			o.w.fail("I11: request #%d on %04x: successor %s has admitted %d without the owner in window %d, %d were left",
				q.id, a.key[0]>>48, v.by.name(), c.hits, x.index, left)
		}
	case v.result.Authority == owner.Full && v.onCounter() && x.lostState+x.allowance == 0:
		base, sum := uint64(0), uint64(0)
		for _, c := range x.closed {
			if !c.by.gone && o.w.now-c.last > closedReported {
				base, sum = max(base, c.base), sum+c.hits
			}
		}
		if sum += base - min(base, x.losses*a.slack(x.limit)); v.result.Before < sum {
			o.w.fail("I11: request #%d on %04x: %s counts %d in window %d, of which %d are admitted", q.id,
				a.key[0]>>48, v.by.name(), v.result.Before, x.index, sum)
		}
	}
}

// closedBy returns the hits that m has admitted in x without the owner.
func (x *span) closedBy(m *member) *closedHits {
	for i := range x.closed {
		if x.closed[i].by == m {
			return &x.closed[i]
		}
	}
	base := x.byOwner
	for _, c := range x.closed {
		base -= min(base, c.hits)
	}
	x.closed = append(x.closed, closedHits{by: m, base: base})
	return &x.closed[len(x.closed)-1]
}

// crashesOnly reports whether members crash and nothing else fails or changes.
func (o *oracle) crashesOnly() bool {
	p := o.w.o
	p.Crashes = 0
	return p.onlyPlanned() && p.Leaves+p.Joins+p.Rolls+p.Rules == 0 && !p.Refunds &&
		p.Loss+p.Reorder+p.Double+p.Breaks+p.Deaf == 0 && p.Skew == 0 && p.Drift == 0
}
