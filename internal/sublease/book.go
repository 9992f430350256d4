package sublease

import (
	"maps"
	"math"
	"slices"
	"time"
)

// Options configure a TokenBook.
type Options struct {
	// Members is the number of members that may lease hits of one limit; 0: 1.
	Members func() int
}

// TokenBook divides the hits of keys between connections. It is for one goroutine at a time.
type TokenBook struct {
	members  func() int
	accounts map[string]*account
	conns    map[uint64]*envoy
	order    []*account // those of accounts, in the order of their creation, and since the last look also dropped ones
	serial   int64      // of the last account
	touched  []*account // that have changed since the last Tick
	undone   uint64     // of all accounts that were
	work     BookWork   // for the next Tick
	done     BookWork   // of the last one
	totals   BookTotals
	ticked   int64
}

// account is the account of one key.
type account struct {
	key    string
	limit  Limit
	window int64  // of stock and of the leases
	stock  uint64 // charged, and in no lease
	lines  []*line
	asking bool
	retry  int64 // no lot is asked for before
	left   uint64
	known  bool    // the owner has reported left, for window
	leftAt int64   // when it was left
	pace   float64 // hits per second of all callers that count in the limit, at the last reports; 0: unknown
	lookAt int64   // when the next look is due
	phase  int64   // the tick of fullTicks in which slow leases are looked at
	undone uint64  // hits that were reported as spent, and have come back
	first  int     // index of the line that is served first

	touched, dropped bool
}

// free reports whether nothing limits the key.
func (a *account) free() bool { return a.limit == Limit{} }

// line is one Envoy's share of an account.
type line struct {
	account   *account
	envoy     *envoy
	print     Print
	has       bool // a lease, in slot
	slot      uint32
	given     uint32  // tokens of the lease when it was last written
	left      uint32  // of them, at the last look
	counted   uint32  // of them, that BookWork.Spent has reported
	called    uint64  // hits without a token since the last look
	rate      float64 // hits per second
	clump     float64 // hits that a look has found, if there were some, smoothed
	size      float64 // hits of a request, at least 1, estimated
	lot       uint64  // of the last filling
	usedAt    int64
	messageAt int64 // of the last message about hits without a token
	lookedAt  int64
	idle      time.Duration // after usedAt, the lease is idle
	filledAt  int64
	renewAt   int64         // the lease is made again then
	fullTo    int64         // there is no room for a lease until then
	full      time.Duration // until the last one; 0: there was room

	taken, noLease, empty uint64 // for LeaseView
}

// envoy is one connection.
type envoy struct {
	id         uint64
	words      Words
	lines      map[Print]*line
	leases     map[uint32]*line // by slot
	candidates map[Print]*candidate
	period     int64 // in which candidates are counted
	corrupt    bool
}

// candidate is a descriptor without a lease.
type candidate struct {
	hits, before uint64 // of this period, and of the one before
	since        int64  // when the first of them came, or the period before began
	refused      int64  // it cannot be leased until then
}

// NewBook returns an empty TokenBook.
func NewBook(o Options) *TokenBook {
	b := &TokenBook{members: o.Members, accounts: map[string]*account{}, conns: map[uint64]*envoy{}}
	if b.members == nil {
		b.members = func() int { return 1 }
	}
	return b
}

// Opened adds a connection.
func (b *TokenBook) Opened(conn uint64, w Words) {
	b.conns[conn] = &envoy{id: conn, words: w, lines: map[Print]*line{}, leases: map[uint32]*line{}, candidates: map[Print]*candidate{}}
}

// Closed removes a connection. What is unspent in its memory is free again.
func (b *TokenBook) Closed(conn uint64) {
	e := b.conns[conn]
	if e == nil {
		return
	}
	delete(b.conns, conn)
	for _, l := range slices.SortedFunc(maps.Values(e.lines), func(x, y *line) int {
		return slices.Compare(x.print[:], y.print[:])
	}) {
		b.end(l)
	}
}

// Interest counts hits for which an Envoy had no tokens. It returns true if the descriptor has no line and a lease would
// pay: then the caller should call Lease, or Refuse.
func (b *TokenBook) Interest(now int64, conn uint64, p Print, hits uint32) bool {
	e := b.conns[conn]
	if e == nil || e.corrupt {
		return false
	}
	if l := e.lines[p]; l != nil {
		l.called += uint64(hits)
		// A message after a pause has the hits of one request or two, and those that had no tokens just before the pause.
		const recent = 2 * messageInterval
		if size := float64(hits) / 2; now-l.messageAt > int64(recent) && size > l.rate*recent.Seconds() {
			l.clump = max(l.clump, size)
		}
		l.messageAt = now
		if l.has || now >= l.fullTo {
			l.account.lookAt = now
		}
		if l.has {
			l.empty += uint64(hits)
		} else {
			l.noLease += uint64(hits)
		}
		return false
	}
	e.turn(now)
	c := e.candidates[p]
	if c == nil {
		if len(e.candidates) >= maxCandidates {
			return false
		}
		c = &candidate{since: now}
		e.candidates[p] = c
	}
	c.hits += uint64(hits)
	return now >= c.refused && c.hits+c.before >= hitsProved && c.rate(now) >= MinRate
}

// turn begins a new period for the candidates if it is time.
func (e *envoy) turn(now int64) {
	switch passed := now - e.period; {
	case passed >= 0 && passed < int64(interestPeriod):
		return
	case passed >= 2*int64(interestPeriod) || passed < 0:
		maps.DeleteFunc(e.candidates, func(_ Print, c *candidate) bool { c.hits = 0; return c.refused <= now })
		e.period = now
	}
	before := e.period
	e.period = now
	for p, c := range e.candidates {
		if c.hits == 0 && c.refused <= now {
			delete(e.candidates, p)
			continue
		}
		c.before, c.hits, c.since = c.hits, 0, max(c.since, before)
	}
}

// rate returns the rate of a candidate. The first hit of a descriptor proves none.
func (c *candidate) rate(now int64) float64 {
	n := c.hits + c.before
	return float64(n-min(1, n)) / max(leastMeasure, time.Duration(now-c.since)).Seconds()
}

// Refuse makes Interest return false for the descriptor for some time.
func (b *TokenBook) Refuse(now int64, conn uint64, p Print) {
	if e := b.conns[conn]; e != nil && e.candidates[p] != nil {
		e.candidates[p].refused = now + int64(forgetAfter)
	}
}

// Reconsider ends the effect of Refuse, because limits have changed.
func (b *TokenBook) Reconsider() {
	for _, e := range b.conns {
		for _, c := range e.candidates {
			c.refused = 0
		}
	}
}

// Lease begins to lease hits of a key to a connection, without charges if the limit is the zero value.
func (b *TokenBook) Lease(now int64, conn uint64, p Print, key string, limit Limit) {
	e := b.conns[conn]
	if e == nil || e.corrupt || e.lines[p] != nil {
		return
	}
	a := b.accounts[key]
	if a == nil {
		b.serial++
		a = &account{key: key, limit: limit, window: math.MinInt64, phase: b.serial % fullTicks}
		b.accounts[key] = a
		b.order = append(b.order, a)
	}
	l := &line{account: a, envoy: e, print: p, lookedAt: now, messageAt: now, rate: MinRate, clump: 1, size: 1}
	if c := e.candidates[p]; c != nil {
		l.rate = max(MinRate, c.rate(now))
		delete(e.candidates, p)
	}
	l.used(now)
	a.lookAt = now
	e.lines[p] = l
	a.lines = append(a.lines, l)
	b.touch(a)
}

// touch makes the next Tick fill the account, whether or not it is time for a look.
func (b *TokenBook) touch(a *account) {
	if !a.touched {
		a.touched = true
		b.touched = append(b.touched, a)
	}
}

// Forget ends all leases of a key, because its limit has changed.
func (b *TokenBook) Forget(now int64, key string) {
	a := b.accounts[key]
	if a == nil {
		return
	}
	for _, l := range slices.Clone(a.lines) {
		b.end(l)
	}
	b.drop(now, a)
}

// Granted adds a lot that the owner has charged, or reports that there is none.
func (b *TokenBook) Granted(now int64, l Lot) {
	b.totals.Granted += l.Hits
	a := b.accounts[l.Key]
	if a != nil {
		b.touch(a)
	}
	if a == nil || a.window != l.Window {
		b.giveBack(l.KeyHits)
		if a != nil {
			a.asking = false
		}
		return
	}
	a.asking, a.left, a.known = false, l.Left, l.Known
	if l.Known {
		a.leftAt = now
		if since := time.Duration(now - a.limit.rule().End(a.window-1)); since >= horizon {
			a.pace = float64(uint64(a.limit.Hits)-min(uint64(a.limit.Hits), l.Left)) / since.Seconds()
		}
	} else if l.Hits == 0 {
		a.retry = now + int64(inHits(1, a.rate(), faultAfter, longIdle))
	}
	a.stock += l.Hits
}

func (b *TokenBook) giveBack(h KeyHits) {
	if h.Hits > 0 {
		b.totals.Returned += h.Hits
		b.work.Returns = append(b.work.Returns, h)
	}
}

// Keys calls see with each key that has an account.
func (b *TokenBook) Keys(see func(key string)) {
	for key := range b.accounts {
		see(key)
	}
}

// Totals returns the sums.
func (b *TokenBook) Totals() BookTotals {
	t := b.totals
	t.Keys = len(b.accounts)
	t.Held = t.Granted + b.undone - t.Spent - t.Returned - t.Expired - t.Lost
	return t
}

// Next returns when Tick has to be called.
func (b *TokenBook) Next() int64 {
	if len(b.accounts) == 0 {
		return math.MaxInt64
	}
	return b.ticked + int64(TickInterval)
}
