package quota

import "time"

// catchUp begins the window that contains now, if the allotment is in an earlier one.
func (a *allotment) catchUp(now int64) {
	if now >= a.end && !a.quota.Unlimited {
		a.step(now)
	}
}

// report processes what an Envoy has reported.
func (a *allotment) report(now int64, l *line, r BucketReport) {
	l.observe(now, r)
	l.count(r.Allowed)
	if l.settles(now) {
		a.ledger.stats.Credited += l.credit()
	}
	if l.forced = l.lost(now, r); r.Denied > 0 && !l.forced {
		l.refused(now)
	}
	a.settle(l)
	switch {
	case l.idle() && now-l.hitAt >= int64(abandonAfter):
		a.order(l, Abandon, 0)
	case !a.dealt: // the deal includes the line
		a.ask(now)
	case l.want == 0 || l.want == Same:
		a.refill(now, l)
	}
}

// lost reports whether an Envoy reports the id as a new one, so it has lost its assignment. Within a second of the report
// before, it may be its report of all ids.
func (l *line) lost(now int64, r BucketReport) bool {
	soon := l.before != 0 && now-l.before < int64(time.Second)
	return l.serial != 0 && r.Elapsed == 0 && r.Allowed+r.Denied > 0 && !soon
}

// observe measures the line's rate.
func (l *line) observe(now int64, r BucketReport) {
	hits := r.Allowed + r.Denied
	switch {
	case l.reportedAt != 0:
		l.rate.measure(hits, time.Duration(now-l.reportedAt))
	case r.Elapsed >= time.Second:
		l.rate.measure(hits, r.Elapsed)
	}
	part := 1.0 // of the hits that are of the live lease
	if l.sentAt > l.reportedAt {
		part = min(1, float64(now-l.sentAt)/max(1, float64(now-l.reportedAt)))
	}
	l.guess += part * float64(r.Allowed)
	l.before, l.reportedAt = l.reportedAt, now
	if l.lastHits = hits; hits == 0 {
		l.quiet++
		return
	}
	if l.idle() { // the measurements of the pause say nothing about the load
		l.rate.known = l.rate.perSecond > 0
	}
	l.quiet, l.back, l.hitAt = 0, l.quiet > 0, now
	if l.peak *= peakFades; l.rate.known {
		l.peak = max(l.peak, l.rate.perSecond)
	}
}

// change applies another quota.
func (a *allotment) change(now int64, q KeyQuota) {
	old := a.quota
	if old.Unlimited == q.Unlimited && old.Window == q.Window && old.Counter == q.Counter {
		a.quota = q
		return
	}
	a.release(now, a.ahead)
	a.quota = q
	// Hits of other windows or counters are of no use. What Envoys may spend is carried, as at the turn of a window.
	end := a.end
	a.finish()
	a.ledger.stats.Unassigned += a.next
	for _, c := range a.closed {
		c.until = 0 // they are charged to the counter before
	}
	a.held, a.next, a.charged, a.ahead, a.gone, a.closed = 0, 0, 0, 0, 0, nil
	if !q.Unlimited {
		a.open(q.rule().Index(now))
	}
	for _, l := range a.lines {
		l.turn(min(end, now))
		l.counted = counted{}
		a.settle(l)
		l.want = 0
		if q.Unlimited {
			a.order(l, Allow, 0)
		}
	}
	a.scheduled = now
	a.ledger.due(now)
}

// release returns the hits of the window that no Envoy has, and those of the next one, of which Envoys may spend ahead.
func (a *allotment) release(now int64, ahead uint64) {
	if now >= a.end {
		return
	}
	free, next := a.held-min(a.held, a.charged), a.next-min(a.next, ahead)
	a.held, a.next = a.held-free, a.next-next
	a.ledger.giveBack(WindowHits{Key: a.key, Window: a.window, Hits: free})
	a.ledger.giveBack(WindowHits{Key: a.key, Window: a.window + 1, Hits: next})
}

// allow makes an Envoy admit everything.
func (a *allotment) allow(now int64, l *line) {
	l.hitAt = now
	if l.kind != Allow || l.endsAt-now < int64(allowTTL/2) {
		a.order(l, Allow, 0)
	}
}
