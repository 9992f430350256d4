package quota

import "time"

// Retire prepares the end of the sidecar: leases that reach into the next window shall end with this one, so that what the next
// window is charged can be given back. From then on, no leases are pushed and no hits are asked for. The caller calls Leave when
// Retired reports true, or when it cannot wait any longer.
func (b *Ledger) Retire(now int64) {
	for _, a := range b.list {
		if a.quota.Unlimited {
			continue
		}
		a.catchUp(now)
		for _, l := range a.lines {
			if l.want = 0; a.cuttable(now, l) {
				a.order(l, Same, 0)
			}
		}
	}
	b.retiring = true
}

// cuttable reports whether a lease that reaches into the next window can be made to end before.
func (a *allotment) cuttable(now int64, l *line) bool {
	return !a.quota.Outlasts && l.kind == Pair && l.outlives(now, a.end) && !l.stream.stalled(now) && ttl(now, a.end) >= time.Second
}

// Retired reports whether all Envoys have acknowledged what Retire has changed.
func (b *Ledger) Retired() bool {
	for _, a := range b.list {
		for _, l := range a.lines {
			if l.want != 0 || l.cutFrom != 0 {
				return false
			}
		}
	}
	return b.retiring
}

// Leave gives back all hits that no Envoy can spend. Hits that are granted later are given back at once.
func (b *Ledger) Leave(now int64) {
	for _, a := range b.list {
		if !a.quota.Unlimited {
			a.catchUp(now)
			a.release(now, a.latestAhead(now))
		}
	}
	b.left = true
}

// latestAhead returns what Envoys may spend in the next window if their leases end as late as they may.
func (a *allotment) latestAhead(now int64) (hits uint64) {
	for _, l := range a.lines {
		if l.outlives(now, a.end) {
			hits += l.alive()
		}
	}
	for _, c := range a.closed {
		if c.until > a.end {
			hits += c.hits
		}
	}
	return hits
}

// outlives reports whether the Envoy may have hits of its leases after end. A lease that it has read late ends late.
func (l *line) outlives(now, end int64) bool { return l.alive() > 0 && l.latestEnd(now) > end }

// cut records the push of a shorter TTL. Until that is acknowledged, the lease may live as long as before.
func (l *line) cut(now int64, serial uint64, ttl time.Duration) {
	from := l.latestEnd(now)
	l.extend(now, serial, ttl)
	l.cutFrom = from
}
