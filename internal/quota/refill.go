package quota

import "math"

// refill offers a line a larger or a smaller lease, if it needs one.
func (a *allotment) refill(now int64, l *line) {
	if a.closing(now) || l.stream.stalled(now) || l.serial != 0 && !l.acked {
		return
	}
	if l.forced {
		a.order(l, Pair, max(uint64(l.demand(now, a.seconds(now))), l.rest()))
		return
	}
	left := a.seconds(now)
	need := a.wish(now, l, left)
	rest := max(0, l.expected(now))
	soon := min(left, reportInterval.Seconds())
	next := min(need, max(l.demand(now, soon), lowLease*a.wish(now, l, soon)))
	available := a.available(now)
	plenty := available > a.base()/8 || a.roomy && float64(available) >= next
	switch {
	case rest < next && (rest <= 2 || plenty):
		if l.rate.known && !a.roomy {
			need = max(l.rate.need(left, 0.5), next)
		}
		a.enlarge(now, l, need, available)
	case rest < next && a.roomy:
		l.hungry = true
		a.ask(now)
	case left > nearEnd.Seconds():
		a.shrink(now, l, need, next)
	}
}

// closing reports whether leases that the next window has no room for are about to be ended, or were. A lease that is pushed
// now would delay that until after the window.
func (a *allotment) closing(now int64) bool { return a.shut || a.end-now <= int64(denyBefore+spacing) }

// enlarge offers a larger lease.
func (a *allotment) enlarge(now int64, l *line, need float64, available uint64) {
	lot := min(uint64(need), available)
	if l.hungry = lot < uint64(need); l.hungry {
		before := a.askedAt
		a.short = a.short || !a.roomy
		a.ask(now)
		if a.roomy && a.askedAt != before {
			return // the answer serves it
		}
	}
	if lot > 2 && float64(lot) > l.expected(now)+2 {
		a.order(l, Pair, lot)
	}
}

// shrink offers a smaller lease if others lack what this line does not need.
func (a *allotment) shrink(now int64, l *line, need, next float64) {
	rest, available := float64(l.rest()), float64(a.available(now))
	if l.idle() {
		switch free := float64(a.free()); {
		case rest <= need:
		case a.roomy && rest > 2*need && free >= need, !a.roomy && free > 0:
			a.order(l, Pair, min(uint64(need), a.free()))
		case !a.roomy:
			a.order(l, Deny, 0)
		}
		return
	}
	lot := min(need, max(available, next), float64(a.free()))
	spare := rest - min(rest, float64(l.doubt)) - need // a credit is less by the hits in doubt
	if (a.short || a.contended(now)) && spare > rest/10 && spare > 5 && available < float64(a.base())/20 && lot >= l.demand(now, settleAfter.Seconds()*5.2) {
		a.order(l, Pair, uint64(lot))
	}
}

// scan offers larger leases to the lines whose leases will not last, while much is free. If lines lack hits, it offers
// them also what little is free, in turn.
func (a *allotment) scan(now int64) {
	a.scannedAt = now
	if a.end-now < int64(lotBefore) {
		a.endExpiring(now)
	}
	if !a.dealt || a.closing(now) {
		return
	}
	for i := range a.lines {
		l := a.lines[(a.scanFrom+i)%len(a.lines)]
		available := a.available(now)
		much := available > a.base()/10
		if !a.roomy && !much && (!a.short || !a.ledger.shared || available <= max(2, a.base()/200)) {
			return
		}
		if l.kind != Pair || !l.rate.known || l.idle() || l.want != 0 || !l.acked || l.stream.stalled(now) ||
			l.expected(now) >= l.rate.need(0.5, 2) {
			continue
		}
		switch {
		case a.roomy:
			a.refill(now, l)
		case much:
			a.prolong(now, l, available/4)
		case l.spentUp(now):
			a.scanFrom = (a.scanFrom + i + 1) % len(a.lines)
			a.prolong(now, l, available)
			return
		}
	}
}

// prolong offers a line that has nearly spent its lease hits until its next report, at most as many.
func (a *allotment) prolong(now int64, l *line, most uint64) {
	margin := 2.0
	if a.short && a.end-now < int64(nearEnd) { // what is not spent is lost
		margin = 0
	}
	lot := min(most, uint64(l.rate.need(min(a.seconds(now), reportInterval.Seconds()), margin)))
	if float64(lot) > l.expected(now)+2 {
		a.order(l, Pair, lot)
	}
}

// endExpiring ends the leases whose TTL is about to end, because then the Envoy's fallback would decide.
func (a *allotment) endExpiring(now int64) {
	for _, l := range a.lines {
		if l.serial != 0 && l.endsAt <= a.end && l.endsAt-now < int64(2*scanInterval) && !l.stream.stalled(now) {
			a.order(l, Deny, 0)
		}
	}
}

// ask asks for more hits of the window, if lines need them.
func (a *allotment) ask(now int64) {
	if a.held >= uint64(a.quota.Limit) || a.askedAt != 0 && now-a.askedAt < int64(askAgain) {
		return
	}
	target, scant := float64(a.charged), a.dealt && a.contended(now)
	if !scant {
		target += a.margin()
	}
	for _, l := range a.lines {
		target += a.lacks(now, l, scant)
	}
	if target = min(math.Ceil(target), float64(a.quota.Limit)); uint64(target) > a.held {
		a.request(now, a.window, uint64(target)-a.held, &a.askedAt)
	}
}

// lacks returns how many hits the line needs in addition until the window ends. If all are scant, those are asked for that will
// be spent: others need the rest.
func (a *allotment) lacks(now int64, l *line, scant bool) float64 {
	left, rest := a.seconds(now), float64(l.rest())
	switch {
	case scant && l.rate.known && !l.idle() && l.spentUp(now):
		return l.rate.perSecond * left
	case scant && l.rate.known && !l.idle():
		return 0
	case a.roomy && l.hungry: // until it is credited, what a larger lease replaces is charged as well
		rest = 0
	}
	return max(0, a.ledger.wanted(a.wish(now, l, left))-rest)
}

// giveBack returns hits of the window that would not be needed if the load doubled, or if others need them, that are not
// needed now.
func (a *allotment) giveBack(now int64) {
	limit, left := uint64(a.quota.Limit), a.seconds(now)
	part := limit / 8
	if a.contended(now) || a.scarce(a.window) {
		part = limit / 100
	}
	if !a.dealt && len(a.lines) > 0 || a.free() <= 2*part || left < lotBefore.Seconds() {
		return
	}
	kept := float64(part)
	for _, l := range a.lines {
		lacks := max(0, a.ledger.wanted(a.wish(now, l, left))-float64(l.rest()))
		if l.want == Pair {
			lacks = max(lacks, float64(l.lot))
		}
		kept += lacks
	}
	if hits := a.free() - min(a.free(), uint64(kept)); hits > part {
		a.held -= hits
		a.ledger.giveBack(WindowHits{Key: a.key, Window: a.window, Hits: hits})
	}
}
