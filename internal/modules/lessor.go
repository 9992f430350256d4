// Package modules leases parts of limits to the dynamic modules in the Envoys of this pod: it has the owners of keys charge
// hits, and puts them into the memory that the Envoys share.
package modules

import (
	"log/slog"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/keyward/keyward/envoy/module"
	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/internal/assign/lots"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/sublease"
)

// Options configure a Lessor. All fields without a default are required.
type Options struct {
	Charger lots.Charger
	Rules   func() rls.RuleMatcher
	Members func() int       // of the ring
	Logger  *slog.Logger     // default slog.Default
	Now     func() time.Time // default time.Now
}

// Lessor leases hits to Envoys. It implements module.LeaseBook, and is safe for concurrent use.
type Lessor struct {
	charger lots.Charger
	rules   func() rls.RuleMatcher
	now     func() time.Time
	wake    chan struct{}
	stop    chan struct{}
	running sync.WaitGroup
	asks    chan struct{} // a place for each request to an owner that is open

	// returned and unreturned count hits that the book has given back: those that the owner has confirmed, and the others.
	returned, unreturned atomic.Uint64

	mu       sync.Mutex
	book     *sublease.TokenBook
	matcher  rls.RuleMatcher // with which keys was matched
	keys     map[string]*leasedKey
	conns    map[*module.EnvoyConn]*connection
	byID     map[uint64]*connection
	serial   uint64
	closed   bool
	sleeping bool
	key      []byte               // scratch
	counters module.SpendCounters // sums of all connections
}

// leasedKey describes a key that has leases.
type leasedKey struct {
	domain  string
	entries []config.Entry
	match   rls.RuleMatch
	by      rls.RuleMatcher // that has matched it
	lots    []lot
	free    bool // nothing limits it: its leases are not charged
	ended   bool // its rule has changed: it has no leases, but lots to return
}

// connection is one Envoy.
type connection struct {
	id       uint64
	conn     *module.EnvoyConn
	counters module.SpendCounters // at the last look
	since    time.Time
}

// maxAsks is the most requests to owners that are open at a time.
const maxAsks = 512

// maxKey is the length in bytes of the longest key that is leased.
const maxKey = 1024

// New returns a Lessor. The caller must Close it, after the server whose LeaseBook it is.
func New(o Options) *Lessor {
	l := &Lessor{
		charger: o.Charger, rules: o.Rules, now: o.Now, wake: make(chan struct{}, 1), stop: make(chan struct{}),
		asks: make(chan struct{}, maxAsks), keys: map[string]*leasedKey{}, conns: map[*module.EnvoyConn]*connection{},
		byID: map[uint64]*connection{}, book: sublease.NewBook(sublease.Options{Members: o.Members}),
	}
	if l.now == nil {
		l.now = time.Now
	}
	l.running.Go(l.run)
	return l
}

// Close waits until owners have the hits that were not spent, or do not answer.
func (l *Lessor) Close() {
	l.mu.Lock()
	if !l.closed {
		l.tick(l.now().UnixNano())
		l.closed = true
		close(l.stop)
	}
	l.mu.Unlock()
	l.running.Wait()
}

// Opened implements module.LeaseBook.
func (l *Lessor) Opened(c *module.EnvoyConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.serial++
	x := &connection{id: l.serial, conn: c, since: l.now()}
	l.conns[c], l.byID[x.id] = x, x
	l.book.Opened(x.id, words{c.Segment, l.now})
}

// Closed implements module.LeaseBook.
func (l *Lessor) Closed(c *module.EnvoyConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.conns[c]
	l.addCounters(x)
	l.book.Closed(x.id)
	delete(l.conns, c)
	delete(l.byID, x.id)
	l.tick(l.now().UnixNano())
}

// Interested implements module.LeaseBook.
func (l *Lessor) Interested(c *module.EnvoyConn, i *module.Interest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var ok bool
	if l.key, ok = module.AppendKey(l.key[:0], i.Domain, i.Entries); !ok || len(l.key) > maxKey {
		return
	}
	x, now := l.conns[c], l.now().UnixNano()
	if l.refresh(now) {
		l.tick(now) // first: what was spent counts in the statistics of the former rule
	}
	f := c.Segment.Fingerprint(l.key)
	p := sublease.Print{f.Lo, f.Hi}
	if !l.book.Interest(now, x.id, p, i.Hits) {
		return
	}
	key := string(l.key)
	k := l.keys[key]
	if k == nil || k.ended {
		made := l.newKey(i)
		if made == nil {
			l.book.Refuse(now, x.id, p)
			return
		}
		if k != nil && k.match.Request.Key == made.match.Request.Key { // else they cannot be given back for hits of the new counter
			made.lots = k.lots
		}
		k, l.keys[key] = made, made
	}
	l.book.Lease(now, x.id, p, key, k.limit())
	l.tick(now)
	if l.sleeping {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}

// newKey returns the key of a descriptor, or nil if its limit cannot be leased. It keeps no part of i.
func (l *Lessor) newKey(i *module.Interest) *leasedKey {
	k := &leasedKey{domain: strings.Clone(i.Domain)}
	for _, e := range i.Entries {
		k.entries = append(k.entries, config.Entry{Key: strings.Clone(e.Key), Value: strings.Clone(e.Value)})
	}
	k.match, k.by = l.matcher.Match(k.domain, k.entries), l.matcher
	k.free = l.matcher.Unlimited(k.domain, k.entries, &k.match)
	if !k.free && (!l.matcher.Leasable(&k.match) || !k.limit().Eligible()) {
		return nil
	}
	return k
}

// limit returns the limit of a key that can be leased: the zero value if nothing limits it.
func (k *leasedKey) limit() sublease.Limit {
	if k.free {
		return sublease.Limit{}
	}
	return sublease.Limit{Hits: k.match.Match.Limit.Limit, Window: k.match.Match.Limit.Window}
}

// refresh matches all keys again if the rules have changed. It reports whether leases have ended.
func (l *Lessor) refresh(now int64) (ended bool) {
	m := l.rules()
	if m == l.matcher {
		return false
	}
	l.matcher = m
	l.book.Reconsider()
	for key, k := range l.keys {
		if k.ended {
			continue
		}
		old, match := &k.match.Request, m.Match(k.domain, k.entries)
		if k.free && m.Unlimited(k.domain, k.entries, &match) || !k.free && m.Leasable(&match) && match.Request.Key == old.Key && match.Request.Rule == old.Rule {
			k.match, k.by = match, m
			continue
		}
		k.ended, ended = true, true
		l.book.Forget(now, key)
	}
	return ended
}

// tick does what is due.
func (l *Lessor) tick(now int64) {
	if l.closed {
		return
	}
	l.refresh(now)
	w := l.book.Tick(now)
	for _, h := range w.Returns {
		l.giveBack(now, h)
	}
	for _, h := range w.Asks {
		l.ask(h)
	}
	for _, h := range w.Spent {
		if k := l.keys[h.Key]; k != nil {
			k.by.CountUsage(k.domain, k.entries, &k.match.Match, h.Hits, 0)
		}
	}
	for _, id := range w.Corrupt {
		if x := l.byID[id]; x != nil {
			x.conn.Close()
		}
	}
}

// run ticks while there are leases.
func (l *Lessor) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	sweep := int64(0)
	for {
		l.mu.Lock()
		now := l.now().UnixNano()
		l.tick(now)
		next := l.book.Next()
		l.sleeping = next == math.MaxInt64
		if now-sweep > int64(sweepInterval) {
			sweep = now
			l.sweep(now)
		}
		l.mu.Unlock()
		timer.Reset(min(max(0, time.Duration(next-now)), sweepInterval))
		select {
		case <-l.stop:
			return
		case <-l.wake:
		case <-timer.C:
		}
	}
}

const sweepInterval = 5 * time.Second

// addCounters adds what a module has counted since the last look. Its numbers may be anything.
func (l *Lessor) addCounters(x *connection) {
	now, old := x.conn.Segment.Counters(), x.counters
	x.counters = now
	add := func(to *uint64, now, old uint64) {
		if more := now - old; now > old && more < maxCounted {
			*to += more
		}
	}
	add(&l.counters.Misses, now.Misses, old.Misses)
	add(&l.counters.Empty, now.Empty, old.Empty)
	add(&l.counters.Corrupt, now.Corrupt, old.Corrupt)
	add(&l.counters.Taken, now.Taken, old.Taken)
}

// maxCounted is the most that a module can have counted between two looks.
const maxCounted = 1 << 40

// sweep forgets lots that cannot be returned any more, and keys without leases.
func (l *Lessor) sweep(now int64) {
	for _, x := range l.conns {
		l.addCounters(x)
	}
	leased := map[string]bool{}
	l.book.Keys(func(key string) { leased[key] = true })
	for key, k := range l.keys {
		if k.dropLots(now); len(k.lots) == 0 && !leased[key] {
			delete(l.keys, key)
		}
	}
}

// words is the memory of one Envoy, with leases that expire by this member's clock.
type words struct {
	segment *module.LeaseSegment
	now     func() time.Time
}

// Put implements sublease.Words.
func (w words) Put(p sublease.Print, tokens uint32, expires int64) (uint32, bool) {
	m := int64(module.MonotonicNow()) // first: a lease must not end later if the process is stopped between the two clocks
	return w.segment.Put(module.Fingerprint{Lo: p[0], Hi: p[1]}, tokens, m+expires-w.now().UnixNano())
}

// Left implements sublease.Words.
func (w words) Left(slot uint32) (uint32, bool) {
	left, err := w.segment.Left(slot)
	return left, err == nil
}

// Add implements sublease.Words.
func (w words) Add(slot, tokens uint32) (uint32, bool) {
	left, err := w.segment.Add(slot, tokens)
	return left, err == nil
}

// Rivals implements sublease.Words.
func (w words) Rivals(p sublease.Print, see func(slot uint32)) {
	w.segment.Rivals(module.Fingerprint{Lo: p[0], Hi: p[1]}, see)
}

// Remove implements sublease.Words.
func (w words) Remove(slot uint32) (uint32, bool) {
	left, err := w.segment.Remove(slot)
	return left, err == nil
}
