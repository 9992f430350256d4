package quota

import (
	"cmp"
	"slices"
)

// step does what is due and schedules the next step.
func (a *allotment) step(now int64) {
	if now >= a.end {
		a.turn(now)
		a.look(now)
	}
	left := a.end - now
	if left <= int64(coverBefore) {
		a.askNext(now, left <= int64(lotBefore))
		a.cover(now) // a lease that was not acknowledged when the hits were granted
	}
	if !a.dealt && a.held > 0 && now >= a.dealAt {
		a.deal(now)
	}
	if left <= int64(denyBefore) && !a.shut {
		a.endLeases(now)
	}
	if !a.shut && now-a.scannedAt >= int64(scanInterval) {
		a.look(now)
		if now-a.nextAsked >= int64(coverWait) {
			a.endAwaits()
		}
		a.scan(now)
		a.giveBack(now)
		a.shareOut(now)
	}
	a.schedule(now)
}

// schedule determines when the next step is due.
func (a *allotment) schedule(now int64) {
	at := a.end
	for _, before := range []int64{int64(denyBefore), int64(lotBefore), int64(coverBefore)} {
		if t := a.end - before; t > now {
			at = min(at, t)
		}
	}
	if t := a.nextAsked + int64(askAgain); t > now && a.end-now <= int64(coverBefore) {
		at = min(at, t)
	}
	if !a.dealt && a.held > 0 {
		at = min(at, a.dealAt)
	}
	if !a.shut && len(a.lines) > 0 {
		at = min(at, a.scannedAt+int64(scanInterval))
	}
	if len(a.lines) == 0 {
		at = min(at, a.emptyUntil)
	}
	a.scheduled = max(at, now+1)
	a.ledger.due(a.scheduled)
}

// turn begins the window that contains now.
func (a *allotment) turn(now int64) {
	end := a.end
	a.finish()
	window := a.quota.rule().Index(now)
	a.held = a.next
	if window != a.window+1 {
		a.ledger.stats.Unassigned += a.next
		a.held = 0
	}
	a.next = 0
	a.open(window)
	a.closed = slices.DeleteFunc(a.closed, func(c *closedLease) bool { return c.until <= end })
	a.gone, a.ahead, a.charged = 0, 0, 0
	for _, c := range a.closed {
		a.gone += c.hits
		a.ledger.stats.Stranded += c.hits // the new window is charged as well
		if c.until > a.end {
			a.ahead += c.hits
		}
	}
	a.charged = a.gone
	for _, l := range a.lines {
		l.turn(end)
		l.counted = counted{}
		a.settle(l)
	}
	if a.dealAt = now; a.end-now <= int64(coverBefore) {
		a.dealAt += int64(coverWait)
	}
	if len(a.lines) > 0 && a.held == 0 {
		a.ask(now)
	}
}

// endLeases ends the leases that the next window has no room for. Their Envoys refuse until the window ends.
func (a *allotment) endLeases(now int64) {
	a.shut = true
	until := a.quota.Window.Seconds()
	if a.roomy && a.ledger.shared { // smaller leases do, until the first reports credit what they replace
		until = min(until, (reportInterval + settleAfter).Seconds())
	}
	room := float64(a.next) - a.demands(now, until)
	a.restsOrder = a.restsOrder[:0]
	for _, l := range a.lines {
		l.want = 0
		if l.alive() > 0 && !l.stream.stalled(now) {
			a.restsOrder = append(a.restsOrder, l)
		}
	}
	slices.SortFunc(a.restsOrder, func(x, y *line) int { // the most hits that are not refused, for the least room
		return cmp.Compare(float64(x.alive())*(y.rate.perSecond+1), float64(y.alive())*(x.rate.perSecond+1))
	})
	for _, l := range a.restsOrder {
		if room -= float64(l.alive()); room < 0 || l.endsAt <= a.end {
			a.order(l, Deny, 0)
		}
	}
}
