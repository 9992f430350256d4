package quota

import (
	"math"
	"time"
)

// allotment divides what a sidecar holds of one key's windows.
type allotment struct {
	ledger *Ledger
	key    Key
	quota  KeyQuota
	lines  []*line

	window int64
	end    int64  // of the window
	held   uint64 // hits of the window that the holder has charged for this sidecar
	next   uint64 // the same of the next window

	charged uint64 // sum of the charges of the lines, and gone
	ahead   uint64 // what may be spent in the next window: what is alive of leases that reach into it
	gone    uint64 // charge of lines that are closed
	closed  []*closedLease

	roomy      bool  // all demands are well below the limit
	short      bool  // a line was offered less than it needs in this window
	dealt      bool  // the window's lots were offered
	dealAt     int64 // when they are offered, although leases may not reach into the next window
	gaveBack   bool  // hits of the window were given back
	lotAsked   bool  // the next window's lot was asked for
	shut       bool  // leases that may not reach into the next window were ended
	dropped    bool  // the ledger has forgotten it, and has given back what it had
	emptyUntil int64 // without lines, the ledger forgets it then
	askedAt    int64 // time of the last ask for the window
	nextAsked  int64 // the same for the next window
	scannedAt  int64
	scanFrom   int   // the line that is next when little is free
	scheduled  int64 // when step has something to do
	share      share
	needs      []float64
	weights    []float64
	restsOrder []*line
}

// closedLease is the unspent part of a lease whose stream is closed.
type closedLease struct {
	hits  uint64
	until int64 // when it ends at the latest
}

func newAllotment(l *Ledger, now int64, key Key, q KeyQuota) *allotment {
	a := &allotment{ledger: l, key: key, quota: q, scheduled: now}
	a.open(q.rule().Index(now))
	return a
}

// open sets the current window.
func (a *allotment) open(window int64) {
	a.window, a.end = window, a.quota.rule().End(window)
	a.short, a.dealt, a.gaveBack, a.lotAsked, a.shut = false, false, false, false, false
	a.askedAt, a.nextAsked = 0, 0
}

// settle brings the sums up to date with a line that has changed.
func (a *allotment) settle(l *line) {
	c := counted{charge: l.charge()}
	if max(l.endsAt, l.cutFrom) > a.end {
		c.ahead = l.alive()
	}
	a.charged += c.charge - l.counted.charge
	a.ahead += c.ahead - l.counted.ahead
	l.counted = c
}

// base returns what can be divided at most.
func (a *allotment) base() uint64 { return min(a.held, uint64(a.quota.Limit)) }

// free returns the hits of the window that are not charged to any line.
func (a *allotment) free() uint64 {
	if base := a.base(); base > a.charged {
		return base - a.charged
	}
	return 0
}

// finish counts the hits of the window that were not assigned. It ends now.
func (a *allotment) finish() { a.ledger.stats.Unassigned += a.held - min(a.held, a.charged) }

// freeAhead returns how many hits more may reach into the next window.
func (a *allotment) freeAhead() uint64 {
	if a.next > a.ahead {
		return a.next - a.ahead
	}
	return 0
}

// available returns the hits for larger leases: near the window's end all that are free, before that 1 % less, which
// smaller leases need until the larger ones that they replace are credited.
func (a *allotment) available(now int64) uint64 {
	free := a.free()
	if kept := a.base() / 100; a.end-now > int64(nearEnd) {
		return free - min(free, kept)
	}
	return free
}

// seconds returns the time until the window ends.
func (a *allotment) seconds(now int64) float64 { return time.Duration(a.end - now).Seconds() }

// ttl returns the longest TTL with which a lease ends endMargin before the time.
func ttl(now, end int64) time.Duration {
	return time.Duration(end - int64(endMargin) - now).Truncate(time.Second)
}

// nextEnd returns the end of the next window.
func (a *allotment) nextEnd() int64 { return a.end + int64(a.quota.Window) }

// firstLease returns the hits for an Envoy whose load is unknown.
func (a *allotment) firstLease(now int64) float64 {
	envoys := max(1, float64(a.quota.Envoys))
	if a.quota.Envoys == 0 {
		envoys = a.ledger.members * max(envoys, float64(len(a.lines)), float64(len(a.ledger.streams)))
	}
	left := a.seconds(now)
	if a.ledger.shared { // others may need more; this one gets more when its load is known
		left = max(min(left, pauseLease.Seconds()), left/4) * 0.6
	}
	part := 2 * float64(a.quota.Limit) / envoys * left / a.quota.Window.Seconds()
	return max(idleLease, min(part, float64(a.quota.Limit)/2))
}

// reserve returns the hits that a deal keeps back.
func (a *allotment) reserve(total float64) float64 {
	base := float64(a.base())
	if a.quota.Window < shortWindow && total > 1.1*base {
		return 0
	}
	return base / 50 * float64(len(a.lines)-1) / float64(len(a.lines))
}

// deal offers the window's lots.
func (a *allotment) deal(now int64) {
	total := a.demands(now, a.seconds(now))
	budget := max(0, float64(a.free())-a.reserve(total))
	for i, l := range a.lines {
		l.hungry = total > budget && a.needs[i] > 0
	}
	if total <= budget {
		total += a.addPauses(now, a.seconds(now), budget-total)
	}
	switch {
	case total <= budget && a.ledger.shared: // hits that are not needed here are needed elsewhere
	case total <= budget:
		// Half of the spare limit, so that what is unspent at the end of the window finds room in the next one.
		spread := 1 + min(1, (budget-total)/2/max(1, total))
		for i := range a.needs {
			a.needs[i] *= spread
		}
	default:
		fill(budget, a.needs, a.weights)
	}
	for i, l := range a.lines {
		if !l.stream.stalled(now) {
			a.order(l, Pair, uint64(a.needs[i]))
		}
	}
	a.dealt = true
	if total > budget {
		a.short = !a.roomy
		a.ask(now)
	}
}

// demands computes the needs of all lines, their weights and the sum.
func (a *allotment) demands(now int64, seconds float64) (total float64) {
	a.needs, a.weights = a.needs[:0], a.weights[:0]
	for _, l := range a.lines {
		n := l.demand(now, seconds)
		a.needs = append(a.needs, n)
		a.weights = append(a.weights, max(l.rate.perSecond, 0.1))
		total += n
	}
	return total
}

// order makes the next response to the line's Envoy contain a push.
func (a *allotment) order(l *line, kind PushKind, lot uint64) {
	if a.ledger.retiring {
		return
	}
	l.want, l.lot = kind, min(lot, math.MaxUint32)
	a.ledger.enqueue(l)
}

// granted adds hits of a window that the holder has charged.
func (a *allotment) granted(now, window int64, hits uint64) {
	switch window {
	case a.window:
		a.held += hits
		a.serve(now)
	case a.window + 1:
		a.next += hits
		a.endAwaits()
		if !a.dealt && a.held > 0 {
			a.deal(now)
		}
		a.cover(now)
	default:
		a.ledger.stats.Unassigned += hits
	}
}

// serve offers what is free to lines that need it.
func (a *allotment) serve(now int64) {
	if !a.dealt {
		a.deal(now)
		return
	}
	for _, l := range a.lines {
		if l.hungry && l.want == 0 && a.free() > 0 {
			a.refill(now, l)
		}
	}
}

// endClosed records that a closed lease has ended. What was spent of it before is not known, so it is charged to this window.
func (a *allotment) endClosed(now int64, c *closedLease) {
	if now > a.end-int64(ackMargin) || c.until <= now {
		return
	}
	if c.until > a.end {
		a.ahead -= c.hits
	}
	c.until = now
}

// remove removes a line; its charge remains until the window ends. It returns what is left of its lease, or nil.
func (a *allotment) remove(now int64, l *line) (c *closedLease) {
	l.removed, l.want = true, 0
	a.gone += l.counted.charge
	a.ahead -= l.counted.ahead
	if hits, until := l.alive(), l.latestEnd(now); hits > 0 && until > now {
		c = &closedLease{hits: hits, until: until}
		a.closed = append(a.closed, c)
		if until > a.end {
			a.ahead += hits
		}
	}
	last := len(a.lines) - 1
	a.lines[l.place] = a.lines[last]
	a.lines[l.place].place = l.place
	a.lines = a.lines[:last]
	a.ledger.stats.Stranded += l.charge() - l.spent + l.late
	if last == 0 {
		a.emptyUntil = now + int64(emptyLife)
		a.scheduled = min(a.scheduled, a.emptyUntil)
		a.ledger.due(a.scheduled)
	}
	return c
}
