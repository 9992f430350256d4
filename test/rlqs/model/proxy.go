// Package model is Envoy's RLQS client (envoy.filters.http.rate_limit_quota) on a virtual clock: what it admits, refuses and
// reports, for the same hits and responses. It is pure: times are parameters, in nanoseconds, and so is all randomness. The
// tests of test/rlqs compare it with real Envoys.
//
// Envoy's main thread has the assignments and reports the usage. It publishes each change to the workers, which decide
// requests: a worker may decide by what was published before for a while. The counts of usage and the token buckets are
// shared by all workers.
package model

import (
	"container/heap"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// reportInterval is the time between the reports of all ids, whatever reporting_interval says.
const reportInterval = 5 * time.Second

// ProxyOptions configures a Proxy.
type ProxyOptions struct {
	Workers      int           // worker threads; 0 means 1
	NoAssignment Strategy      // decides ids without an assignment; the zero value admits. A token bucket crashes Envoy
	Expired      Strategy      // replaces an expired assignment; the zero value is none: NoAssignment does
	ExpiredFor   time.Duration // how long Expired decides, in whole seconds; then NoAssignment does

	// Delay returns how long after a publication a worker uses it. Nil means no delay. See RandomDelay.
	Delay func(worker int) time.Duration
}

// RandomDelay returns delays of publications that are uniform between zero and longest.
func RandomDelay(r *rand.Rand, longest time.Duration) func(worker int) time.Duration {
	return func(int) time.Duration { return time.Duration(r.Int64N(int64(longest) + 1)) }
}

// Action is the part of a response about one id.
type Action struct {
	ID       string
	Strategy Strategy
	TTL      time.Duration // cut to whole seconds; zero ends at once
	Abandon  bool          // the id is forgotten, with the usage that no report had yet; the other fields do not matter
}

// Pair returns the two assignments that replace whatever an id has by a lease of exactly n, or of none.
func Pair(id string, n uint32, ttl time.Duration) []Action {
	deny := Action{ID: id, Strategy: Strategy{Kind: DenyAll}, TTL: ttl}
	if n == 0 {
		return []Action{deny}
	}
	return []Action{deny, Same(id, n, ttl)}
}

// Same returns the assignment that extends a lease of n and keeps the rest of it.
func Same(id string, n uint32, ttl time.Duration) Action {
	return Action{ID: id, Strategy: Lease(n), TTL: ttl}
}

// ReportedUsage is the part of a report about one id.
type ReportedUsage struct {
	ID              string
	Allowed, Denied uint64
	Elapsed         time.Duration // since the last report of the id, sent or lost; cut to whole seconds
}

// UsageReport is a message to the server.
type UsageReport struct {
	At     int64
	Stream int // number of the stream, from 1; the first message of a stream opens it
	Usages []ReportedUsage
}

// Proxy is the client of one Envoy for one server and domain. Times must not decrease from call to call.
type Proxy struct {
	o       ProxyOptions
	main    map[string]*bucket // the main thread's
	workers []worker
	expiry  expiries
	tick    int64 // when the next report of all ids is due; 0: no id was seen yet
	stream  int   // the open stream; 0: none is open
	opened  int   // streams opened so far
	refused bool
	paused  bool
	crashed bool
	sent    []UsageReport
}

// bucket is an id's state that does not change but for usage and limiter: a change makes a new one.
type bucket struct {
	usage    *usage
	assigned Strategy // Unset: none, and NoAssignment decides
	limiter  *limiter // nil: assigned is no token bucket
}

type usage struct {
	allowed, denied uint64
	reported        int64 // time of the last report
}

type worker struct {
	buckets map[string]*bucket
	pending []publication // in order
}

// publication is a change that the main thread sends to a worker.
type publication struct {
	at      int64
	changed map[string]*bucket // nil: the id is gone
}

// NewProxy returns the client of an Envoy that has just started.
func NewProxy(o ProxyOptions) *Proxy {
	o.Workers = max(1, o.Workers)
	p := &Proxy{o: o, main: map[string]*bucket{}, workers: make([]worker, o.Workers)}
	for i := range p.workers {
		p.workers[i].buckets = map[string]*bucket{}
	}
	return p
}

// Hit decides one request of an id at a worker and reports whether it is admitted. An Envoy that has crashed admits
// nothing. A paused one must not be asked.
func (p *Proxy) Hit(now int64, worker int, id string) bool {
	p.Advance(now)
	if p.crashed {
		return false
	}
	b := p.workers[worker].buckets[id]
	if b == nil {
		ok := p.o.NoAssignment.Kind != DenyAll
		p.create(now, id, ok)
		return ok
	}
	ok := p.allows(now, b)
	if !p.crashed {
		b.usage.add(ok)
	}
	return ok
}

// allows decides by a bucket that the worker has.
func (p *Proxy) allows(now int64, b *bucket) bool {
	strategy := b.assigned
	if strategy.Kind == Unset {
		strategy = p.o.NoAssignment
	}
	switch strategy.Kind {
	case DenyAll:
		return false
	case TokenBucket:
		if b.limiter == nil {
			p.crashed = true
			return false
		}
		return b.limiter.take(now)
	}
	return true
}

func (u *usage) add(ok bool) {
	if ok {
		u.allowed++
	} else {
		u.denied++
	}
}

// create is the main thread's work for a request that a worker has decided without a bucket: it counts the request, and
// reports an id that is new.
func (p *Proxy) create(now int64, id string, ok bool) {
	if p.tick == 0 {
		p.tick = now + int64(reportInterval)
		p.open()
	}
	if b := p.main[id]; b != nil { // another worker was first
		b.usage.add(ok)
		return
	}
	b := &bucket{usage: &usage{reported: now}}
	b.usage.add(ok)
	p.main[id] = b
	p.send(now, []ReportedUsage{p.take(now, id)}) // without a stream the hit is lost
	p.publish(now, map[string]*bucket{id: b})
}

// Receive processes one response. It returns the time by which all workers use it: the answer to a PING behind the
// response comes no earlier. That of a real Envoy under heavy load may, by some milliseconds, while other ids are busy
// (TestPingAmongOtherIds of test/rlqs); a simulation can subtract a delay for that.
func (p *Proxy) Receive(now int64, response ...Action) int64 {
	p.Advance(now)
	changed := map[string]*bucket{}
	for _, a := range response {
		old := p.main[a.ID]
		switch {
		case old == nil: // an id that Envoy has not seen
			continue
		case a.Abandon:
			delete(p.main, a.ID)
			changed[a.ID] = nil
			continue
		case a.Strategy.Kind == Unset || a.Strategy.Kind == PerUnit:
			continue
		}
		b := old.with(now, a.Strategy)
		p.main[a.ID], changed[a.ID] = b, b
		heap.Push(&p.expiry, expiry{at: now + int64(a.TTL.Truncate(time.Second)), id: a.ID, bucket: b})
	}
	used := p.publish(now, changed)
	p.Advance(now) // a TTL of zero
	return used
}

// with returns a bucket with another assignment. An equal token bucket goes on.
func (b *bucket) with(now int64, s Strategy) *bucket {
	next := &bucket{usage: b.usage, assigned: s}
	switch {
	case s.Kind != TokenBucket:
	case b.assigned.equals(s):
		next.limiter = b.limiter
	default:
		next.limiter = newLimiter(now, s, b.limiter)
	}
	return next
}

// publish sends changes to the workers and returns when all of them use them.
func (p *Proxy) publish(now int64, changed map[string]*bucket) int64 {
	used := now
	for i := range p.workers {
		w := &p.workers[i]
		at := now
		if p.o.Delay != nil {
			at += int64(p.o.Delay(i))
		}
		if n := len(w.pending); n > 0 {
			at = max(at, w.pending[n-1].at)
		}
		w.pending = append(w.pending, publication{at: at, changed: changed})
		w.use(now)
		used = max(used, at)
	}
	return used
}

// use puts the publications that are due in use.
func (w *worker) use(now int64) {
	for len(w.pending) > 0 && w.pending[0].at <= now {
		for id, b := range w.pending[0].changed {
			if b == nil {
				delete(w.buckets, id)
			} else {
				w.buckets[id] = b
			}
		}
		w.pending = w.pending[1:]
	}
}

// Advance does what is due by now: reports, the ends of assignments, publications.
func (p *Proxy) Advance(now int64) {
	for !p.paused && !p.crashed {
		at := p.Next()
		if at > now {
			return
		}
		for i := range p.workers {
			p.workers[i].use(at)
		}
		switch {
		case len(p.expiry) > 0 && p.expiry[0].at <= at:
			p.expire(at)
		case p.tick > 0 && p.tick <= at:
			p.reportAll(at)
		}
	}
}

// Next returns when Advance has something to do, or math.MaxInt64. It is meaningless while paused.
func (p *Proxy) Next() int64 {
	next := int64(math.MaxInt64)
	if p.tick > 0 {
		next = p.tick
	}
	if len(p.expiry) > 0 {
		next = min(next, p.expiry[0].at)
	}
	for i := range p.workers {
		if w := &p.workers[i]; len(w.pending) > 0 {
			next = min(next, w.pending[0].at)
		}
	}
	return next
}

// expire ends the assignment that ends first, unless it was replaced.
func (p *Proxy) expire(now int64) {
	e := heap.Pop(&p.expiry).(expiry)
	if p.main[e.id] != e.bucket {
		return
	}
	next := &bucket{usage: e.bucket.usage}
	if p.o.Expired.Kind != Unset && !e.fallback {
		next = e.bucket.with(now, p.o.Expired)
		heap.Push(&p.expiry, expiry{at: now + int64(p.o.ExpiredFor.Truncate(time.Second)), id: e.id, bucket: next, fallback: true})
	}
	p.main[e.id] = next
	p.publish(now, map[string]*bucket{e.id: next})
}

// reportAll reports all ids and opens a stream if none is open.
func (p *Proxy) reportAll(now int64) {
	p.tick = now + int64(reportInterval)
	usages := make([]ReportedUsage, 0, len(p.main))
	for _, id := range slices.Sorted(maps.Keys(p.main)) {
		usages = append(usages, p.take(now, id))
	}
	if p.stream == 0 {
		p.open()
	}
	p.send(now, usages)
}

// take returns the usage of an id since its last report and starts to count again.
func (p *Proxy) take(now int64, id string) ReportedUsage {
	u := p.main[id].usage
	b := ReportedUsage{ID: id, Allowed: u.allowed, Denied: u.denied, Elapsed: time.Duration(now - u.reported).Truncate(time.Second)}
	*u = usage{reported: now}
	return b
}
