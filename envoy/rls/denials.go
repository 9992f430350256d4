package rls

import (
	"hash/maphash"
	"sync/atomic"
	"time"
)

// denials reports some of the denials: a bounded number per second and rule, so that the log stays readable during an
// attack. Rules share 256 cells by their hash. Rules in the same cell share its rate and its count of suppressed
// denials.
type denials struct {
	report func(DecisionSample, uint64)
	gap    int64 // nanoseconds between two reports
	seed   maphash.Seed
	cells  [256]struct {
		next   atomic.Int64 // time of the next report, Unix time in ns
		missed atomic.Uint64
	}
}

func newDenials(o Options) *denials {
	if o.Denials == nil {
		return nil
	}
	if o.DenialRate <= 0 {
		o.DenialRate = 1
	}
	return &denials{report: o.Denials, gap: int64(float64(time.Second) / o.DenialRate), seed: maphash.MakeSeed()}
}

// observe reports an over-limit call, if a report is due. A suppressed report costs an atomic load and an addition.
func (d *denials) observe(c *Call, now time.Time) {
	for i := range c.slots {
		if c.Response.Statuses[i].Code == OverLimit {
			d.reportOne(c, i, now.UnixNano())
		}
	}
}

func (d *denials) reportOne(c *Call, i int, now int64) {
	l := &c.slots[i]
	x := DecisionSample{Limit: l.match.Limit.Limit, Owner: l.match.Owner}
	if r := l.match.Rule; r != nil {
		x.Rule = r.FullKey
	}
	at := &d.cells[maphash.String(d.seed, x.Rule)%uint64(len(d.cells))]
	next := at.next.Load()
	if now < next || !at.next.CompareAndSwap(next, now+d.gap) {
		at.missed.Add(1)
		return
	}
	x.Domain = c.Request.Domain
	if l.counted() {
		a := &c.results[l.request]
		x.Path, x.Authority = a.Path, a.Authority
	}
	d.report(x, at.missed.Swap(0))
}
