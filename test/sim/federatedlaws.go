package sim

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner"
)

// beforeFederated records, before m's node processes a request, how much it may admit from the region's floor now.
func (m *member) beforeFederated(q *request) {
	if q.req.Federation != nil {
		m.w.oracle.floorLimit(m, q, q.req.Rule.Index(m.clock()))
	}
}

// beforeResumed records the same for the requests that wait at m, which its node may now decide because the coordinator
// is away. A reply of the coordinator may come before they are answered: they wait for a second member to have the charge.
func (m *member) beforeResumed() {
	byID := func(a, b *request) int { return cmp.Compare(a.id, b.id) }
	for _, q := range slices.SortedFunc(maps.Keys(m.waiting), byID) {
		if q.req.Federation == nil {
			continue
		}
		k, _ := m.w.federal.ruleOf(q.req.Key)
		index := q.req.Rule.Index(m.clock())
		if m.federated.link(m.authority(k, index)).mayBeAway() {
			m.w.oracle.floorLimit(m, q, index)
		}
	}
}

// floorLimit returns how much m may admit from the region's floor in the window with that index, in all, if it is the
// owner of q's key and decides now.
func (o *oracle) floorLimit(m *member, q *request, index int64) uint64 {
	f := o.w.federal
	k, x := f.ruleOf(q.req.Key)
	p := f.books.window(k, index)
	r := &p.regions[o.w.region]
	own := m.budget(k, index)
	n := uint64(own.Floor)
	if link := m.federated.link(m.authority(k, index)); !link.mayBeAway() || x.terms.Floor >= 100 {
		return o.raise(q, index, n)
	}
	r.away = true
	switch b, ok := m.node.EscrowBalance(q.req.Key); x.terms.Outage {
	case federation.RegionalOnly:
		had := uint64(0)
		if ok && b.Window == index {
			had = b.Have
		}
		n = max(n, uint64(own.Slice)-min(uint64(own.Slice), had))
	case federation.Snapshot:
		if x := m.federated.rests[q.req.Key]; x != nil {
			n += uint64(own.Slice) * x.rest / uint64(max(1, q.req.Rule.Limit))
		}
	}
	return o.raise(q, index, n)
}

// raise makes n the limit of the span of q's floor, if it is higher.
func (o *oracle) raise(q *request, index int64, n uint64) uint64 {
	x := o.at(o.account(q), index)
	x.limit = max(x.limit, n)
	return n
}

// decidedFederated processes a decision about a limit that several regions share, when it is made.
func (o *oracle) decidedFederated(q *request, v *decision) {
	f := o.w.federal
	k, rule := f.ruleOf(q.req.Key)
	m, a := v.by, o.account(q)
	if o.probing {
		return
	}
	index := a.index(v)
	switch v.result.Authority {
	case owner.Full, owner.Overflow:
		o.floorLimit(m, q, index)
		o.decidedBy(o.at(a, index), m, q.req.RingPos)
		if q.req.Op == owner.Refund {
			p := f.books.window(k, index)
			p.refunded += q.req.Hits
			o.at(a, index).refunded += q.req.Hits
		}
	case owner.Escrow:
		o.floorLimit(m, q, index)
		if x := o.at(a, index); !slices.Contains(x.deciders, m) { // it has the floor's counter, which has no room
			x.deciders = append(x.deciders, m)
		}
		if q.req.Op == owner.Take && !v.result.Over {
			o.spent(k, q, v)
		}
		m.keep(q.req.Key, q.req.Rule)
	case owner.Open:
		if rule.terms.Outage != federation.FailOpen {
			f.fail("#%d: %s of %s decides %04x by fail_open, and its rule has %v", q.id, m.name(), regionName(o.w.region),
				q.req.Key[0]>>48, rule.terms.Outage)
		}
		if q.req.Op == owner.Take && !v.result.Over {
			o.spentOpen(k, q, v)
		}
	case owner.Closed:
		if q.req.Op == owner.Take && !v.result.Over {
			f.fail("#%d: %s of %s admits %04x without a floor or an escrow", q.id, m.name(), regionName(o.w.region), q.req.Key[0]>>48)
		}
	default:
		f.fail("#%d: %s of %s decides %04x with authority %d", q.id, m.name(), regionName(o.w.region), q.req.Key[0]>>48, v.result.Authority)
	}
}

// spent records hits of an escrow, and checks that its window has not ended, by the owner's clock or by more than the
// tolerance by the coordinator's.
func (o *oracle) spent(k int, q *request, v *decision) {
	f, m := o.w.federal, v.by
	b, ok := m.node.EscrowBalance(q.req.Key)
	if q.forged != 0 {
		b.Window = q.forged
	} else if !ok {
		f.fail("#%d: %s of %s admits %04x from an escrow that it does not have", q.id, m.name(), regionName(o.w.region), q.req.Key[0]>>48)
		return
	}
	p, r := f.books.window(k, b.Window), &q.req.Rule
	p.escrowed += q.req.Hits
	s := f.layouts.slowest(k, b.Window)
	if end := r.End(b.Window); v.earliest >= end || s.offset+f.now >= end+int64(limit.ClockTolerance)+int64(40*time.Millisecond) && !f.clocksChanged() {
		f.fail("F1: #%d: %s of %s spends hits of window %d of %04x %v after its end by its own clock, and %v by the coordinator's", q.id,
			m.name(), regionName(o.w.region), b.Window, q.req.Key[0]>>48, time.Duration(v.earliest-end), time.Duration(s.offset+f.now-end))
	}
	o.checkPool(p, q)
	o.checkLimit(p, q)
}

// clocksChanged reports whether a coordinator may have changed its clock, or members of a region differ by more than the
// region and the coordinator.
func (f *federal) clocksChanged() bool { return f.o.Federation.Failovers > 0 }

// checkPool checks that what is admitted from escrows is at most the pool, and for sliding windows that two windows
// are, of which the older one is weighted.
func (o *oracle) checkPool(p *poolWindow, q *request) {
	f := o.w.federal
	pool := uint64(f.layouts.pool(p.key, p.index))
	most := pool + p.lostWrites + p.emptied + p.forgot
	if p.escrowed > most {
		f.fail("F1: #%d: %d admitted from escrows in window %d of %04x, pool %d, lost writes %d, lost stores %d and %d", q.id, p.escrowed,
			p.index, q.req.Key[0]>>48, pool, p.lostWrites, p.emptied, p.forgot)
	}
	y := f.books.windows[windowKey{p.key, p.index - 1}]
	if q.req.Rule.Algorithm != limit.SlidingWindow || y == nil {
		return
	}
	left := max(0, q.req.Rule.End(p.index)-f.weightClock(p))
	weight := float64(left) / float64(q.req.Rule.Window)
	sum := float64(p.escrowed) + weight*float64(y.escrowed)
	unknown := y.lostLent
	if p.trusting {
		// The new coordinator does not know what a former one has lent that had not read the layout in time, and a region
		// that read it in time, or has started since, cannot know that another process was late. The table allows a pool.
		unknown += min(y.lateLent, pool)
	}
	if sum > float64(most)+weight*float64(unknown)+1e-6 {
		f.fail("F1: #%d: %d admitted from escrows in window %d of %04x, and %d in the one before, which weigh %.3f: pool %d, lost %d and %d, late %d",
			q.id, p.escrowed, p.index, q.req.Key[0]>>48, y.escrowed, weight, pool, most-pool, y.lostLent, y.lateLent)
	}
}

// weightClock returns the time by which the weight of the window before p falls: the coordinator's. If another coordinator
// lent that window, the regions compute its weight, by their own clocks and with a margin of the tolerance. It does not
// suffice for clocks that differ by more: such a region borrows what the limit allows, and earlier by the difference.
func (f *federal) weightClock(p *poolWindow) int64 {
	at := f.layouts.latestClock(p.key, p.index)
	if f.layouts.home(p.key, p.index) != f.layouts.home(p.key, p.index-1) {
		for _, w := range f.regions {
			at = max(at, w.now+int64(w.o.Skew-limit.ClockTolerance))
		}
	}
	return at
}

func (s *poolStore) latestClock() int64 {
	s.latest = max(s.latest, s.clock())
	return s.latest
}

// spentOpen records hits that a member has admitted by fail_open: in a window at most local_cap.
func (o *oracle) spentOpen(k int, q *request, v *decision) {
	f := o.w.federal
	p := f.books.window(k, o.account(q).index(v))
	p.open[v.by] += q.req.Hits
	if most := uint64(f.rules[k].localCap); p.open[v.by] > most {
		f.fail("#%d: %s of %s has admitted %d in window %d of %04x by fail_open, and local_cap is %d", q.id, v.by.name(),
			regionName(o.w.region), p.open[v.by], p.index, q.req.Key[0]>>48, most)
	}
	o.checkLimit(p, q)
}

// answeredFederated processes a decision that a client receives.
func (o *oracle) answeredFederated(q *request, v *decision) {
	if o.probing || q.req.Op != owner.Take || q.req.Hits == 0 {
		return
	}
	f := o.w.federal
	k, _ := f.ruleOf(q.req.Key)
	a := o.account(q)
	p := f.books.window(k, a.rule.Index(o.w.now))
	p.requests++
	if p.offered += q.req.Hits; v.result.Over && p.offered*10 <= uint64(q.req.Rule.Limit)*8 {
		p.wrong++
	}
	if v.result.Over || v.result.Authority != owner.Full && v.result.Authority != owner.Overflow {
		return
	}
	x := o.at(a, o.floorWindow(a, q, v))
	p = f.books.window(k, x.index)
	x.admitted += q.req.Hits
	p.regions[o.w.region].floors += q.req.Hits
	o.beforeRevocation(x, v, q.req.Hits)
	o.floorRows(a, x, p)
	b := o.floorBound(a, x)
	if x.admitted > x.limit+x.refunded+b {
		f.fail("F6: #%d: %d admitted from the floor of %s in window %d of %04x: floor %d, limit now %d, refunded %d, bound %d: %s", q.id,
			x.admitted, regionName(o.w.region), x.index, q.req.Key[0]>>48, p.regions[o.w.region].budget.Floor, x.limit, x.refunded, b, x)
	}
	o.checkLimit(p, q)
}

// floorWindow returns the window of a floor that v, a decision about q, has charged. A request that waited while its member
// paused may have been decided in several; it belongs to one that has room.
func (o *oracle) floorWindow(a *account, q *request, v *decision) int64 {
	first := a.index(v)
	if last := a.rule.Index(v.latest); first < last && wholeSeconds(a.rule.End(last)-v.latest) == v.result.Reset {
		o.floorLimit(v.by, q, last)
		if x := o.at(a, first); x.admitted+q.req.Hits > x.limit+x.refunded {
			return last
		}
	}
	return first
}

// floorBound returns how much may be admitted in x beyond the floor: what an ordinary rule of that limit allows whose
// parts of a cluster admit nothing unless they are complete.
func (o *oracle) floorBound(a *account, x *span) uint64 {
	if x.limit == 0 {
		return 0
	}
	b := x.losses*a.slack(x.limit) + x.lostState + x.allowance
	if o.policyOf(a) == policy.PartAvailable || o.decays+o.joins > 0 {
		b += x.limit * x.split
	}
	return b
}

// floorRows sets what the rows of the table allow for x, a window of the region's floor.
func (o *oracle) floorRows(a *account, x *span, p *poolWindow) {
	r := &p.regions[o.w.region]
	if x.limit == 0 {
		return
	}
	r.unreplicated, r.lost = x.losses*a.slack(x.limit), x.lostState+x.allowance
	r.parts = o.floorBound(a, x) - r.unreplicated - r.lost
	p.events[eventCrash] = p.events[eventCrash] || x.faults&faultCrash != 0
	p.events[eventMoved] = p.events[eventMoved] || len(x.deciders) > 1
}

// checkLimit checks that all that is admitted in p is within the limit, and what the rows of the table allow.
func (o *oracle) checkLimit(p *poolWindow, q *request) {
	f := o.w.federal
	for i := range f.regions {
		w := f.regions[i]
		if a := w.oracle.accounts[q.req.Key]; a != nil {
			for _, x := range a.spans {
				if x.index == p.index {
					w.oracle.floorRows(a, x, p)
				}
			}
		}
	}
	n, l := p.admitted(), uint64(q.req.Rule.Limit)+p.refunded
	more, rows := f.licensed(p)
	if n > l+more {
		f.fail("F1: #%d: %d admitted in window %d of %04x, limit %d, refunded %d, and the table allows %d more: %s", q.id, n, p.index,
			q.req.Key[0]>>48, q.req.Rule.Limit, p.refunded, more, strings.Join(rows, "; "))
	}
	f.stats.approachRow(rows, n, l, more)
}

// finish checks all windows at the end of the run.
func (f *federal) finish() {
	if f.failure != "" {
		return
	}
	for _, w := range f.regions {
		w.oracle.finish()
		if f.failure == "" {
			f.failure = w.failure
		}
	}
	for _, p := range f.books.order {
		f.finishWindow(p)
	}
}

func (f *federal) finishWindow(p *poolWindow) {
	more, _ := f.licensed(p)
	r := f.books.rule(p.key)
	n := p.admitted()
	for e, on := range p.events {
		if on && more == 0 && n > 0 {
			f.stats.count("row of 0: " + eventNames[e])
			if n >= uint64(r.Limit) {
				f.stats.count("row of 0, limit reached: " + eventNames[e])
			}
		}
	}
	begin, end := r.End(p.index-1), r.End(p.index)
	safe := f.regions[0]
	if !f.o.Federation.Calm || r.Algorithm != limit.FixedWindow || begin < safe.safetySince-safe.offset+int64(time.Second) ||
		end > safe.safetySince-safe.offset+int64(f.o.Length) {
		return
	}
	f.checkUse(p, r, n)
}

// checkUse checks that a window without faults is used: almost the complete limit if more is requested, and almost
// nothing is refused if much less is.
func (f *federal) checkUse(p *poolWindow, r *limit.Rule, n uint64) {
	l := uint64(r.Limit)
	floorOnly := f.rules[p.key].terms.Floor >= 100
	switch {
	case floorOnly:
	case p.offered*10 >= l*15:
		f.stats.count("calm: windows with more requests than the limit")
		f.stats.Calm.add(&calmUse{Admitted: n, Limit: l})
		if n*100 < l*75 {
			f.fail("liveness: %d of %d admitted in window %d, %d requested, rule %+v", n, l, p.index, p.offered, f.rules[p.key])
		}
	case p.offered*10 <= l*8:
		f.stats.count("calm: windows with fewer requests than the limit")
		f.stats.Calm.add(&calmUse{Requests: p.requests, Wrong: p.wrong})
		if p.wrong > 5+p.requests/10 {
			f.fail("liveness: %d of %d requests refused in window %d of %+v, of which %d of %d hits were requested, rule %+v", p.wrong, p.requests, p.index, r, p.offered, l, f.rules[p.key])
		}
	}
}
