package sublease

import (
	"math"
	"slices"
	"time"
)

// Tick looks at all leases, and returns what has to be done. It has to be called at Next, and may be called at any time.
func (b *TokenBook) Tick(now int64) *BookWork {
	if now < b.ticked {
		b.rewind(b.ticked - now)
	}
	if elapsed := time.Duration(now - b.ticked); elapsed < 0 || elapsed >= TickInterval/2 {
		b.order = slices.DeleteFunc(b.order, func(a *account) bool { return a.dropped })
		for _, a := range b.order {
			if a.lookAt <= now || a.lookAt > now+fullTicks*int64(TickInterval) {
				b.look(now, a)
				b.touch(a)
			}
		}
		b.ticked = now
	}
	for i := 0; i < len(b.touched); i++ { // fill may touch others
		a := b.touched[i]
		a.touched = false
		switch {
		case a.dropped:
		case len(a.lines) == 0:
			b.drop(now, a)
		default:
			b.fill(now, a)
		}
	}
	clear(b.touched)
	b.touched = b.touched[:0]
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
		called, taken := l.called, uint64(0)
		l.called = 0
		if l.has {
			if left, ok := l.envoy.words.Left(l.slot); ok {
				taken = b.count(l, left)
			} else {
				b.lose(l, 0)
			}
		}
		elapsed := min(max(TickInterval/2, time.Duration(now-l.lookedAt)), 2*time.Second)
		l.lookedAt = now
		l.measure(called, taken, elapsed)
		if called+taken > 0 {
			l.used(now)
		}
		switch unused := time.Duration(now - l.usedAt); {
		case unused >= forgetAfter:
			b.end(l)
		case l.has && (unused >= l.idle || now >= l.renewAt || now-l.filledAt >= int64(oldAfter) || l.surplus()):
			b.takeBack(l)
			l.rest(now)
		}
	}
	a.setLook(now)
}

// setLook sets when the next look is due. Slow leases are looked at less often, and not all of them at the same time.
func (a *account) setLook(now int64) {
	a.lookAt = now
	every := int64(fullTicks)
	for _, l := range a.lines {
		if l.rate >= slowRate/2*l.size {
			return
		}
		if l.has || now >= l.fullTo {
			every = slowTicks
		}
	}
	next := now/int64(TickInterval) + 1
	slow := (next + ((a.phase-next)%every+every)%every) * int64(TickInterval)
	if a.free() {
		a.lookAt = slow
	} else if end := a.limit.rule().End(a.window) - int64(EndMargin); now < end { // else the window ends now
		a.lookAt = min(slow, end)
	}
}

// used records that the line has hits.
func (l *line) used(now int64) {
	l.usedAt, l.idle = now, inHits(hitsIdle*l.size, l.rate, idleAfter, longIdle)
}

// rate returns the rate of all lines.
func (a *account) rate() (sum float64) {
	for _, l := range a.lines {
		sum += l.rate
	}
	return sum
}

// surplus reports whether a line has far more tokens than its rate needs, because its rate has decreased.
func (l *line) surplus() bool {
	return !l.account.free() && (uint64(l.left) > l.enough()*surplusLots ||
		l.left > firstLot && float64(l.left) > l.rate*surplusTime.Seconds())
}

// turn ends the leases of a window that has ended, or soon will.
func (b *TokenBook) turn(now int64, a *account) {
	if a.free() {
		return
	}
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
	if w != a.window && a.window != math.MinInt64 && a.leftAt < r.End(a.window-1) {
		a.pace /= 2 // nothing was reported in the window that has ended
	}
	a.window, a.stock, a.known, a.retry = w, 0, false, 0
}

// count accounts for what was spent of a lease of which left tokens are left, and returns how much is new.
func (b *TokenBook) count(l *line, left uint32) (hits uint64) {
	a, spent := l.account, l.given-left
	if spent < l.counted { // a request has given tokens back that it could not use
		b.undo(a, int64(l.counted-spent))
		l.taken -= uint64(l.counted - spent)
	} else {
		hits = uint64(spent - l.counted)
		l.taken += hits
		if hits > 0 {
			l.unspent = 0
		}
		again := min(hits, a.undone) // were reported before
		b.undo(a, -int64(again))
		if n := hits - again; n > 0 && a.free() {
			b.totals.Free += n
		} else if n > 0 {
			b.totals.Spent += n
			b.work.Spent = append(b.work.Spent, KeyHits{a.key, a.window, n})
		}
	}
	l.counted, l.left = spent, left
	return hits
}

// undo adds to the hits that were reported as spent and have come back. Totals never decrease, so the next hits that are
// spent of the key are not reported again instead.
func (b *TokenBook) undo(a *account, n int64) {
	a.undone += uint64(n)
	if !a.free() {
		b.undone += uint64(n)
	}
}

// lose counts all of a lease as spent, and more tokens that were added to it, because its memory is corrupt.
func (b *TokenBook) lose(l *line, more uint32) {
	if !l.account.free() {
		b.totals.Lost += uint64(l.given-l.counted) + uint64(more)
	}
	l.over()
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
	if !l.account.free() {
		l.account.stock += uint64(left)
	}
	l.over()
}

// over records that the line has no lease any more.
func (l *line) over() {
	delete(l.envoy.leases, l.slot)
	l.has, l.given, l.counted, l.left = false, 0, 0, 0
}

// end removes a line, with its lease.
func (b *TokenBook) end(l *line) {
	b.takeBack(l)
	delete(l.envoy.lines, l.print)
	l.account.lines = slices.DeleteFunc(l.account.lines, func(x *line) bool { return x == l })
	b.touch(l.account)
}

// drop removes an account that has no lines.
func (b *TokenBook) drop(now int64, a *account) {
	if a.stock > 0 && now >= a.limit.rule().End(a.window) {
		b.totals.Expired += a.stock
	} else {
		b.giveBack(KeyHits{a.key, a.window, a.stock})
	}
	a.stock, a.dropped = 0, true
	delete(b.accounts, a.key)
}

// fill gives the lines of an account what they need, asks for more, and returns what they do not need.
func (b *TokenBook) fill(now int64, a *account) {
	if a.free() {
		for _, l := range a.lines {
			if n := b.need(now, l, maxLot); n > 0 {
				b.give(now, l, n)
			}
		}
		return
	}
	r := a.limit.rule()
	if now >= r.End(a.window)-int64(EndMargin) || a.window == math.MinInt64 {
		return // the leases have ended; the next look begins a new window
	}
	most, missing := a.most(b.members()), uint64(0)
	for i := range a.lines {
		l := a.lines[(i+a.first)%len(a.lines)]
		n := b.need(now, l, most)
		if given := min(n, a.stock); given > 0 {
			b.give(now, l, given)
			l.lot = uint64(l.left)
			n -= given
		}
		missing += n
	}
	a.first++
	if most < minLot && a.known {
		a.known, a.retry = false, now+int64(inHits(firstLot, a.rate(), retryAfter, forgetAfter))
	}
	if missing > 0 {
		if most >= minLot {
			b.ask(now, a, min(missing, most))
		}
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
		expires, life := now+int64(freeLife), freeLife
		if !a.free() {
			expires, life = min(a.limit.rule().End(a.window)-int64(EndMargin), now+int64(leaseLife)), leaseLife
		}
		slot, ok := b.put(now, l, tokens, expires)
		if !ok {
			return
		}
		a.charge(n)
		l.envoy.leases[slot] = l
		l.has, l.slot, l.given, l.counted, l.left, l.filledAt, l.renewAt = true, slot, tokens, 0, tokens, now, now+int64(life)/2
		l.before = l.taken
		return
	}
	a.charge(n)
	l.filledAt = now
	left, ok := l.envoy.words.Add(l.slot, tokens)
	if !ok {
		b.lose(l, tokens)
		return
	}
	b.count(l, left)
	l.given, l.counted, l.left = left+tokens, 0, left+tokens
}

// put makes a lease, perhaps in the room of another one.
func (b *TokenBook) put(now int64, l *line, tokens uint32, expires int64) (slot uint32, ok bool) {
	other, ok := b.room(now, l)
	if !ok {
		return 0, false
	}
	if other != nil {
		b.totals.Full++
		b.takeBack(other)
		other.noRoom(now)
		b.touch(other.account)
	}
	if slot, ok = l.envoy.words.Put(l.print, tokens, expires); !ok {
		b.totals.Full++
		l.noRoom(now)
	}
	return slot, ok
}

// charge takes hits of a key with a limit from its stock.
func (a *account) charge(n uint64) {
	if !a.free() {
		a.stock -= n
	}
}

// ask asks the owner for a lot.
func (b *TokenBook) ask(now int64, a *account, hits uint64) {
	if a.asking || now < a.retry || !a.limit.asks(a.window, now) {
		return
	}
	a.asking = true
	life := busyLife
	if slices.ContainsFunc(a.lines, func(l *line) bool { return l.slow() }) {
		life = slowLife
	}
	b.work.Asks = append(b.work.Asks, LotAsk{KeyHits{a.key, a.window, hits}, life})
}
