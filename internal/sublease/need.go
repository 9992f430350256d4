package sublease

import "time"

// need returns how many more tokens a line should have, which has at most most then.
func (b *TokenBook) need(now int64, l *line, most uint64) uint64 {
	if l.envoy.corrupt || now < l.fullTo || l.rate < keepRate || time.Duration(now-l.usedAt) >= l.idle {
		return 0
	}
	want := min(l.want(), most)
	// The lines of a slow key are filled when they are nearly empty: then a lot spares most calls.
	refill := want / 2
	if !l.account.free() {
		refill = min(refill, 1+uint64(l.rate*1.5*horizon.Seconds()))
	}
	if left := uint64(l.left); left > refill || !l.pays(now) {
		return 0
	} else if l.has || b.room(now, l) {
		return want - left
	}
	return 0
}

// pays reports whether enough of a lot will be spent before the window ends, and before others have spent the limit: a lot
// of a slow line is not out for longer than a part of the time that the limit lasts.
func (l *line) pays(now int64) bool {
	a := l.account
	if a.free() {
		return true
	}
	rest := time.Duration(a.limit.rule().End(a.window) - int64(EndMargin) - now).Seconds()
	if l.rate*rest < minSpent {
		return false
	}
	if l.rate >= slowRate || a.pace == 0 {
		return true
	}
	left, since := float64(a.limit.Hits), a.limit.rule().End(a.window-1)
	if a.known {
		left, since = float64(a.left), a.leftAt
	}
	lasts := left/a.pace - time.Duration(now-since).Seconds()
	return min(rest, firstLot/l.rate)*partsOfRest <= lasts
}

// want returns how many tokens a line should have after it was filled: enough for its rate, and at most twice as many as
// the last time.
func (l *line) want() uint64 {
	if l.account.free() {
		return min(max(freeLot, uint64(l.rate*freeTime.Seconds())), maxLot)
	}
	return min(max(firstLot, uint64(l.rate*horizon.Seconds())), max(firstLot, 2*l.lot), maxLot)
}

// room reports whether there is room for a lease. If others have all slots in which it could be, it ends that with the lowest
// rate if l's is muchBusier times as high. Otherwise, room is tried again later.
func (b *TokenBook) room(now int64, l *line) bool {
	var slowest *line
	taken := false
	l.envoy.words.Rivals(l.print, func(slot uint32) {
		taken = true
		if x := l.envoy.leases[slot]; x != nil && (slowest == nil || x.rate < slowest.rate) {
			slowest = x
		}
	})
	if !taken {
		l.full = 0
		return true
	}
	b.totals.Full++
	if slowest == nil || slowest.rate*muchBusier >= l.rate {
		l.noRoom(now)
		return false
	}
	b.takeBack(slowest)
	slowest.noRoom(now)
	b.touch(slowest.account)
	return true
}

// noRoom keeps a line without a lease for some time.
func (l *line) noRoom(now int64) {
	l.full = min(max(fullAfter, 2*l.full), fullMost)
	l.fullTo = now + int64(l.full)
}

// most returns the most hits that a lot, and a lease, may have now. It is small compared with what is left of the limit, so
// that other members and the callers of the rate limit service can use nearly all of it.
func (a *account) most(members int) uint64 {
	left := uint64(a.limit.Hits)
	if a.known {
		left = a.left
	}
	return left / uint64(partsOfRest*max(1, members))
}
