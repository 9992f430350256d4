package quota

import (
	"cmp"
	"math"
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
		a.shedCover(now)
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

// askNext asks for hits of the next window: first for what the leases that reach into it may spend there, then for the
// next window's lot as well.
func (a *allotment) askNext(now int64, lot bool) {
	if len(a.lines) == 0 || a.quota.Unlimited || now >= a.end-int64(endMargin) {
		return
	}
	if again := now-a.nextAsked >= int64(askAgain); !again && (a.lotAsked || !lot) {
		return
	}
	target := a.held
	if a.ledger.shared {
		target = min(target, max(a.alive(), a.planned(now)))
	}
	if lot {
		target = a.lotTarget(now)
		a.lotAsked = true
		a.giveBackNext(now, target)
	}
	if target = min(target, uint64(a.quota.Limit)); target > a.next {
		a.request(now, a.window+1, target-a.next, &a.nextAsked)
	}
}

// lotTarget returns how many hits of the next window are needed: for its lot, and for what leases of this window may spend
// in it. While there is room, it is limited to the sidecar's part, so that what others need is left, but not below what is
// needed until the first reports credit the leases of this window.
func (a *allotment) lotTarget(now int64) uint64 {
	alive, window := a.alive(), a.quota.Window.Seconds()
	needs := func(seconds float64) float64 {
		return a.demands(now, seconds) + a.addPauses(now, seconds, math.Inf(1))
	}
	target := alive + uint64(math.Ceil(a.ledger.wanted(needs(window)))) + uint64(a.margin())
	if !a.roomy || !a.ledger.shared {
		return target
	}
	least := alive + uint64(math.Ceil(needs(min(window, (reportInterval+settleAfter).Seconds()))))
	return min(target, max(least, uint64(lotPart*a.part(now))))
}

// planned returns the hits of the leases with which the window will begin, if it has not begun with them.
func (a *allotment) planned(now int64) uint64 {
	if a.dealt {
		return 0
	}
	total := a.demands(now, a.seconds(now))
	return uint64(total + a.addPauses(now, a.seconds(now), math.Inf(1)))
}

// awaitCover reports whether a lease of the line waits for hits of the next window, which were asked for: after is what
// would be alive of the line. Otherwise it would be extended later, or if little is left of the window, end before it.
func (a *allotment) awaitCover(now int64, l *line, after uint64) bool {
	if l.awaits >= awaitsMost || a.end-now > int64(lateCover) || a.shut {
		return false
	}
	lacks := a.ahead - l.counted.ahead + after
	for _, x := range a.lines {
		if x != l && x.awaits > 0 && x.want == Pair {
			lacks += x.charge() - x.spent + x.lot - x.counted.ahead
		}
	}
	if lacks -= min(lacks, a.next); lacks == 0 {
		return false
	}
	if now-a.nextAsked >= int64(coverWait) {
		before := a.nextAsked
		if a.request(now, a.window+1, lacks, &a.nextAsked); a.nextAsked == before {
			return false
		}
	}
	l.awaits++
	l.want = Pair
	return true
}

// endAwaits sends the leases that have waited for hits of the next window.
func (a *allotment) endAwaits() {
	for _, l := range a.lines {
		if l.awaits > 0 && l.want == Pair {
			a.ledger.enqueue(l)
		}
	}
}

// giveBackNext returns hits of the next window above what is needed there, if others need them.
func (a *allotment) giveBackNext(now int64, needed uint64) {
	if needed = max(needed, a.ahead); (a.contended(now) || a.scarce(a.window+1)) && a.next > needed+uint64(a.quota.Limit)/100 {
		a.ledger.giveBack(WindowHits{Key: a.key, Window: a.window + 1, Hits: a.next - needed})
		a.next = needed
	}
}

// shedCover returns hits of the next window that covered what is spent by now. They would be lost with this process.
func (a *allotment) shedCover(now int64) {
	if a.lotAsked || !a.ledger.shared || !a.contended(now) {
		return
	}
	if kept := max(a.ahead, a.alive()); a.next > kept+uint64(a.quota.Limit)/shedPart {
		a.ledger.giveBack(WindowHits{Key: a.key, Window: a.window + 1, Hits: a.next - kept})
		a.next = kept
	}
}

// alive returns what all Envoys may admit from now on with the leases that they have.
func (a *allotment) alive() (hits uint64) {
	for _, l := range a.lines {
		hits += l.alive()
	}
	for _, c := range a.closed {
		hits += c.hits
	}
	return hits
}

// cover extends the leases that end before the window into the next one, if they can be charged to it.
func (a *allotment) cover(now int64) {
	if a.shut {
		return
	}
	for _, l := range a.lines {
		if l.kind == Pair && l.want == 0 && l.endsAt <= a.end && l.expected(now) > 0 && l.endsAt-now >= int64(extendBefore) {
			a.order(l, Same, 0)
		}
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
