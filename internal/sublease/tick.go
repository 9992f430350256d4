package sublease

import (
	"math"
	"slices"
	"time"
)

// Tick looks at all leases, and returns what has to be done. It has to be called at Next, and may be called at any time.
func (b *TokenBook) Tick(now int64) *BookWork {
	if elapsed := time.Duration(now - b.ticked); elapsed < 0 || elapsed >= TickInterval/2 {
		for _, a := range b.order {
			b.look(now, a)
		}
		b.ticked = now
	}
	for i := len(b.order) - 1; i >= 0; i-- { // drop removes from the list
		if a := b.order[i]; len(a.lines) == 0 {
			b.drop(now, a)
		} else {
			b.fill(now, a)
		}
	}
	b.work, b.done = BookWork{
		Asks: b.done.Asks[:0], Returns: b.done.Returns[:0], Spent: b.done.Spent[:0], Corrupt: b.done.Corrupt[:0],
	}, b.work
	return &b.done
}

// look reads the leases of an account, and ends those that are not used.
func (b *TokenBook) look(now int64, a *account) {
	b.turn(now, a)
	for i := len(a.lines) - 1; i >= 0; i-- { // end removes from the list
		l := a.lines[i]
		hits := l.called
		l.called = 0
		if l.has {
			if left, ok := l.envoy.words.Left(l.slot); ok {
				hits += b.count(l, left)
			} else {
				b.lose(l, 0)
			}
		}
		elapsed := min(max(TickInterval/2, time.Duration(now-l.lookedAt)), time.Second)
		l.rate, l.lookedAt = smooth(l.rate, float64(hits)/elapsed.Seconds(), elapsed), now
		if hits > 0 {
			l.usedAt = now
		}
		switch idle := time.Duration(now - l.usedAt); {
		case idle >= forgetAfter:
			b.end(l)
		case l.has && (idle >= idleAfter || now >= l.renewAt):
			b.takeBack(l)
		}
	}
}

// turn ends the leases of a window that has ended, or soon will.
func (b *TokenBook) turn(now int64, a *account) {
	r := a.limit.rule()
	w := r.Index(now)
	if a.window == w && now < r.End(w)-int64(EndMargin) {
		return
	}
	if a.window != math.MinInt64 {
		for _, l := range a.lines {
			b.takeBack(l)
		}
		if now < r.End(a.window) {
			b.giveBack(KeyHits{a.key, a.window, a.stock})
		} else {
			b.totals.Expired += a.stock
		}
	}
	a.window, a.stock, a.known, a.retry = w, 0, false, 0
}

// count accounts for what was spent of a lease of which left tokens are left, and returns how much is new.
func (b *TokenBook) count(l *line, left uint32) (hits uint64) {
	spent := l.given - left
	if spent < l.counted { // a request has given tokens back that it could not use
		b.totals.Spent -= uint64(l.counted - spent)
		l.taken -= uint64(l.counted - spent)
	} else if hits = uint64(spent - l.counted); hits > 0 {
		b.totals.Spent += hits
		l.taken += hits
		b.work.Spent = append(b.work.Spent, KeyHits{l.account.key, l.account.window, hits})
	}
	l.counted, l.left = spent, left
	return hits
}

// lose counts all of a lease as spent, and more tokens that were added to it, because its memory is corrupt.
func (b *TokenBook) lose(l *line, more uint32) {
	b.totals.Lost += uint64(l.given-l.counted) + uint64(more)
	l.has, l.given, l.counted, l.left = false, 0, 0, 0
	if e := l.envoy; !e.corrupt {
		e.corrupt = true
		b.work.Corrupt = append(b.work.Corrupt, e.id)
	}
}

// takeBack ends a lease. What is left of it is free again.
func (b *TokenBook) takeBack(l *line) {
	if !l.has {
		return
	}
	left, ok := l.envoy.words.Remove(l.slot)
	if !ok {
		b.lose(l, 0)
		return
	}
	b.count(l, left)
	l.account.stock += uint64(left)
	l.has, l.given, l.counted, l.left = false, 0, 0, 0
}

// end removes a line, with its lease.
func (b *TokenBook) end(l *line) {
	b.takeBack(l)
	delete(l.envoy.lines, l.print)
	l.account.lines = slices.DeleteFunc(l.account.lines, func(x *line) bool { return x == l })
}

// drop removes an account that has no lines.
func (b *TokenBook) drop(now int64, a *account) {
	r := a.limit.rule()
	if a.stock > 0 && now >= r.End(a.window) {
		b.totals.Expired += a.stock
	} else {
		b.giveBack(KeyHits{a.key, a.window, a.stock})
	}
	a.stock = 0
	delete(b.accounts, a.key)
	b.order = slices.DeleteFunc(b.order, func(x *account) bool { return x == a })
}

// need returns how many more tokens a line should have, which has at most most then.
func (l *line) need(now int64, most uint64) uint64 {
	if l.envoy.corrupt || now < l.fullTo || l.rate < keepRate || time.Duration(now-l.usedAt) >= idleAfter {
		return 0
	}
	want := min(l.want(), most)
	if left := uint64(l.left); left <= want/2 {
		return want - left
	}
	return 0
}

// want returns how many tokens a line should have after it was filled: enough for its rate, and at most twice as many as
// the last time.
func (l *line) want() uint64 {
	return min(max(firstLot, uint64(l.rate*horizon.Seconds())), max(firstLot, 2*l.lot), maxLot)
}

// fill gives the lines of an account what they need, asks for more, and returns what they do not need.
func (b *TokenBook) fill(now int64, a *account) {
	r := a.limit.rule()
	if now >= r.End(a.window)-int64(EndMargin) || a.window == math.MinInt64 {
		return // the leases have ended; the next look begins a new window
	}
	most, missing := a.most(b.members()), uint64(0)
	for i := range a.lines {
		l := a.lines[(i+a.first)%len(a.lines)]
		n := l.need(now, most)
		if given := min(n, a.stock); given > 0 {
			b.give(now, l, given)
			l.lot = uint64(l.left)
			n -= given
		}
		missing += n
	}
	a.first++
	if most < minLot && a.known {
		a.known, a.retry = false, now+int64(retryAfter)
	}
	if missing > 0 {
		b.ask(now, a, min(missing, most))
		return
	}
	if a.asking {
		return // the rest may be needed with it
	}
	b.giveBack(KeyHits{a.key, a.window, a.stock})
	a.stock = 0
}

// give adds tokens of the account to the lease of a line, if there is room for it.
func (b *TokenBook) give(now int64, l *line, n uint64) {
	a, tokens := l.account, uint32(n)
	if !l.has {
		expires := min(a.limit.rule().End(a.window)-int64(EndMargin), now+int64(leaseLife))
		slot, ok := l.envoy.words.Put(l.print, tokens, expires)
		if !ok {
			b.totals.Full++
			l.fullTo = now + int64(time.Second)
			return
		}
		a.stock -= n
		l.has, l.slot, l.given, l.counted, l.left, l.renewAt = true, slot, tokens, 0, tokens, now+int64(leaseLife)/2
		return
	}
	a.stock -= n
	left, ok := l.envoy.words.Add(l.slot, tokens)
	if !ok {
		b.lose(l, tokens)
		return
	}
	b.count(l, left)
	l.given, l.counted, l.left = left+tokens, 0, left+tokens
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

// ask asks the owner for a lot.
func (b *TokenBook) ask(now int64, a *account, hits uint64) {
	if !a.asking && now >= a.retry && a.limit.asks(a.window, now) {
		a.asking = true
		b.work.Asks = append(b.work.Asks, KeyHits{a.key, a.window, hits})
	}
}
