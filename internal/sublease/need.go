package sublease

import (
	"math"
	"time"
)

// need returns how many more tokens a line should have, which has at most most then.
func (b *TokenBook) need(now int64, l *line, most uint64) uint64 {
	if l.envoy.corrupt || now < l.fullTo || l.rate < keepRate*l.size || time.Duration(now-l.usedAt) >= l.idle {
		return 0
	}
	want := min(l.want(), most)
	// The lines of a slow key are filled when they are nearly empty: then a lot spares most calls.
	refill := want / 2
	if !l.account.free() {
		refill = min(refill, uint64(l.size+l.rate*1.5*horizon.Seconds()))
	}
	left := uint64(l.left)
	if left > refill || !l.pays(now, want) {
		return 0
	}
	if !l.has {
		if _, ok := b.room(now, l); !ok {
			return 0
		}
	}
	return want - left
}

// pays reports whether enough of a lot will be spent before the window ends, and before others have spent the limit: a lot
// of a slow line is not out for longer than a part of the time that the limit lasts, and is enough for several requests.
func (l *line) pays(now int64, lot uint64) bool {
	a := l.account
	if a.free() {
		return true
	}
	rest := time.Duration(a.limit.rule().End(a.window) - int64(EndMargin) - now).Seconds()
	if l.rate*rest < minSpent*l.size {
		return false
	}
	if !l.slow() {
		return true
	}
	if float64(lot) < leastLot*l.size {
		return false
	}
	if a.pace == 0 {
		return true
	}
	left, since := float64(a.limit.Hits), a.limit.rule().End(a.window-1)
	if a.known {
		left, since = float64(a.left), a.leftAt
	}
	lasts := left/a.pace - time.Duration(now-since).Seconds()
	return min(rest, float64(lot)/l.rate)*partsOfRest <= lasts
}

// measure updates the rate and the size of requests after a look that has found hits of calls, and hits that were taken.
//
// If requests come independently, a look at an interval finds none with the probability exp(-n), where n is the number of
// requests that come in it on average. That probability follows from the hits that looks find on average, and those that
// looks find which find some.
func (l *line) measure(called, taken uint64, elapsed time.Duration) {
	if taken > 0 {
		l.clump = max(1, l.clump+(float64(taken)-l.clump)/hitsMeasured)
	}
	mean := l.rate * elapsed.Seconds()
	l.size = 1
	if size := mean / -math.Log1p(-min(mean/l.clump, 0.99)); size >= sureSize {
		l.size = size
	}
	l.rate = smooth(l.rate, float64(called+taken)/elapsed.Seconds(), elapsed, l.size)
}

// slow reports whether a line has so few requests that its lots last for a number of them, instead of a time.
func (l *line) slow() bool { return l.rate < slowRate*l.size }

// enough returns how many tokens are enough for some time, or for some requests.
func (l *line) enough() uint64 {
	return max(firstLot, uint64(min(firstLot*l.size, l.rate*lotTime.Seconds())), uint64(l.rate*horizon.Seconds()))
}

// want returns how many tokens a line should have after it was filled: enough for its rate, and at most twice as many as
// the last time.
func (l *line) want() uint64 {
	if l.account.free() {
		return min(max(freeLot, uint64(max(l.rate*freeTime.Seconds(), firstLot*l.size))), maxLot)
	}
	first := firstLot
	if l.slow() {
		first = int(firstLot * l.size)
	}
	return min(l.enough(), max(uint64(first), 2*l.lot), maxLot)
}

// room reports whether there is room for a lease, or that of another line can be ended for it, which is returned: if others
// have all slots in which it could be, that with the lowest rate, if l's is muchBusier times as high. Otherwise, room is tried
// again later.
func (b *TokenBook) room(now int64, l *line) (slowest *line, ok bool) {
	taken := false
	l.envoy.words.Rivals(l.print, func(slot uint32) {
		taken = true
		if x := l.envoy.leases[slot]; x != nil && (slowest == nil || x.rate < slowest.rate) {
			slowest = x
		}
	})
	switch {
	case !taken:
		l.full = 0
		return nil, true
	case slowest != nil && slowest.rate*muchBusier < l.rate:
		return slowest, true
	}
	b.totals.Full++
	l.noRoom(now)
	return nil, false
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

// rest keeps a line without a lease for some time after a lease that was taken back and of which nothing was spent. Perhaps its
// requests have another descriptor that is never leased, and so cannot spend it.
func (l *line) rest(now int64) {
	if l.taken != l.before {
		return
	}
	l.unspent = min(max(fullAfter, 2*l.unspent), fullMost)
	l.fullTo = now + int64(l.unspent)
}
