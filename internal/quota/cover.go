package quota

import "math"

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

// awaitCover reports whether a lease of the line waits for hits of the next window, which were asked for. With the lease, after
// hits of the line would be alive. A lease that does not wait is extended later, or if little is left of the window, ends before it.
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
	if needed = max(needed, a.latestAhead(now)); (a.contended(now) || a.scarce(a.window+1)) && a.next > needed+uint64(a.quota.Limit)/100 {
		a.ledger.giveBack(WindowHits{Key: a.key, Window: a.window + 1, Hits: a.next - needed})
		a.next = needed
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
