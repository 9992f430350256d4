// Package assign lets Envoys spend parts of limits: it has the owners of keys charge them, and divides them between the
// streams of Envoys.
package assign

import (
	"sync"
	"time"

	"github.com/keyward/keyward/envoy/rlqs"
	"github.com/keyward/keyward/internal/assign/lots"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/quota"
	"github.com/keyward/keyward/owner"
)

// Options configure an Assigner. All fields without a default are required.
type Options struct {
	Charger lots.Charger
	// Send sends a response to an Envoy, as rlqs.QuotaServer does. It must not block, and must not call the Assigner.
	Send func(stream, serial uint64, as []rlqs.Assignment) error
	// Members returns the number of members of the ring.
	Members func() int
	// Calls calls see with the hits of calls for each key since it was called before, as rls.Service.CollectCalls does; nil:
	// there are no calls.
	Calls func(see func(r *owner.Request, hits uint64))
	Now   func() time.Time // default time.Now
	IDs   int              // buckets of one Envoy, at most; default 1,000
}

// Assigner assigns parts of limits to Envoys. It is safe for concurrent use.
type Assigner struct {
	charger lots.Charger
	send    func(stream, serial uint64, as []rlqs.Assignment) error
	members func() int
	calls   func(see func(r *owner.Request, hits uint64))
	now     func() time.Time
	wake    chan struct{}
	stop    chan struct{}
	retired chan struct{} // closed when Envoys have acknowledged that their assignments end earlier
	running sync.WaitGroup
	metrics metrics

	mu     sync.Mutex
	ledger *quota.Ledger
	keys   map[quota.Key]*counter
	closed bool
	// requests is how many requests to owners are in progress, and idle is signaled when none is.
	requests int
	idle     sync.Cond
	retiring bool
	pushes   []rlqs.Assignment // scratch
	// superseded are the keys whose rule has changed in this step.
	superseded []*counter
	// waitsUntil is the Next for which run waits.
	waitsUntil int64

	callers  map[owner.Key]*caller
	calledAt int64 // when calls were measured
}

// counter describes one key.
type counter struct {
	request owner.Request
	bucket  *rlqs.QuotaBucket // as it was last reported
	lots    []lots.HeldLot    // that may be returned, of the current window and the next one
	note    lots.Note         // of the demand
	noting  bool              // a request about it is in progress
	usedAt  int64
	before  *superseded // until the end of the step in which the rule has changed; else nil
}

// superseded has what was charged to the counter that a key had before its rule changed.
type superseded struct {
	request owner.Request
	lots    []lots.HeldLot
}

// New returns an Assigner. The caller must Close it.
func New(o Options) *Assigner {
	a := &Assigner{
		charger: o.Charger, send: o.Send, members: o.Members, calls: o.Calls, now: o.Now, wake: make(chan struct{}, 1), stop: make(chan struct{}), retired: make(chan struct{}),
		ledger: quota.NewLedger(quota.Options{IDs: o.IDs, Shared: true}), keys: map[quota.Key]*counter{}, callers: map[owner.Key]*caller{},
	}
	a.idle.L = &a.mu
	if a.now == nil {
		a.now = time.Now
	}
	a.metrics.init(a)
	a.running.Go(a.run)
	return a
}

// Close stops the Assigner, and waits for requests to owners. Hits that Envoys were assigned stay charged.
func (a *Assigner) Close() {
	a.mu.Lock()
	if !a.closed {
		a.closed = true
		close(a.stop)
	}
	a.mu.Unlock()
	a.running.Wait()
	a.awaitRequests()
}

// request runs a request to owners in a goroutine. a.mu is locked.
func (a *Assigner) request(do func()) {
	a.requests++
	go func() {
		do()
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.requests--; a.requests == 0 {
			a.idle.Broadcast()
		}
	}()
}

// awaitRequests waits until no request to an owner is in progress.
func (a *Assigner) awaitRequests() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.requests > 0 {
		a.idle.Wait()
	}
}

// Retire gives back, before this member leaves, what Envoys need not have: assignments that reach into the next window end with
// this one, if Envoys acknowledge that within wait, and the next window's hits are free for the other members. It then waits
// for owners. From then on nothing is assigned; the caller ends the streams and calls Close.
func (a *Assigner) Retire(wait time.Duration) {
	a.step(func(now int64) {
		a.retiring = true
		a.ledger.Retire(now)
	})
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-a.retired:
	case <-timer.C:
	case <-a.stop:
	}
	a.awaitRequests()
	a.step(func(now int64) {
		a.ledger.Leave(now)
		a.withdraw(now)
	})
	a.awaitRequests()
}

// Opened implements rlqs.QuotaBook.
func (a *Assigner) Opened(_ time.Time, stream uint64, e rlqs.EnvoyStream) {
	a.step(func(now int64) { a.ledger.Opened(now, stream, e.Name) })
}

// Closed implements rlqs.QuotaBook.
func (a *Assigner) Closed(_ time.Time, stream uint64) {
	a.step(func(now int64) { a.ledger.Closed(now, stream) })
}

// Acked implements rlqs.QuotaBook.
func (a *Assigner) Acked(_ time.Time, stream, serial uint64) {
	a.step(func(now int64) {
		if took := a.ledger.Acked(now, stream, serial); took > 0 {
			a.metrics.acks.Observe(took.Seconds())
		}
	})
}

// Reported implements rlqs.QuotaBook.
func (a *Assigner) Reported(_ time.Time, stream uint64, us []rlqs.BucketUsage) {
	a.metrics.reports.Inc()
	a.step(func(now int64) {
		for i := range us {
			u, b := &us[i], us[i].Bucket
			a.metrics.admitted.Add(float64(u.Allowed))
			a.metrics.refused.Add(float64(u.Denied))
			u.Declined = !a.ledger.Report(now, quota.BucketReport{
				Stream: stream, Key: b.Key, Allowed: u.Allowed, Denied: u.Denied, Elapsed: u.Elapsed,
			}, quotaOf(b))
			if !u.Declined {
				a.keep(now, b)
			}
		}
	})
}

// keep records the bucket of a key that the ledger has, in the step in which it was reported.
func (a *Assigner) keep(now int64, b *rlqs.QuotaBucket) {
	c := a.keys[b.Key]
	if c == nil {
		c = new(counter)
		a.keys[b.Key] = c
	}
	if c.request.Key != b.Request.Key {
		a.supersede(c)
	}
	c.request, c.bucket, c.usedAt = b.Request, b, now
}

// supersede notes that the key's counter changes. What the ledger returns in this step is of the old one.
func (a *Assigner) supersede(c *counter) {
	if len(c.lots) > 0 {
		c.before, c.lots = &superseded{c.request, c.lots}, nil
		a.superseded = append(a.superseded, c)
	}
}

// quotaOf returns the limit of a bucket. Without one, Envoys admit everything. Of a rule that has become one whose limit is
// not assigned to Envoys, they admit nothing.
func quotaOf(b *rlqs.QuotaBucket) quota.KeyQuota {
	if b.Fit == rlqs.FitOwner {
		return quota.KeyQuota{Window: time.Minute}
	}
	q := quota.KeyQuota{
		Limit: b.Match.Limit.Limit, Window: b.Match.Limit.Window, Unlimited: !b.Limited(), Counter: b.Request.Key,
	}
	if b.Match.Rule != nil {
		all, share := b.Match.Rule.QuotaExpired()
		q.Outlasts = all || share > 0
	}
	if t := b.Match.Extension().Quota; t != nil {
		q.Envoys, q.FirstAllow = t.Envoys, t.First == config.FirstAllow
	}
	return q
}

// step changes the ledger, and then does what has become due.
func (a *Assigner) step(change func(now int64)) {
	a.mu.Lock()
	now := a.now().UnixNano()
	change(now)
	a.tick(now)
	sooner := a.ledger.Next() < a.waitsUntil
	a.mu.Unlock()
	if sooner {
		select {
		case a.wake <- struct{}{}:
		default:
		}
	}
}

// tick does what is due.
func (a *Assigner) tick(now int64) {
	if a.closed {
		return
	}
	a.ledger.SetMembers(a.members())
	w := a.ledger.Tick(now)
	if a.ledger.Retired() {
		select {
		case <-a.retired:
		default:
			close(a.retired)
		}
	}
	for i := range w.Responses {
		a.respond(&w.Responses[i])
	}
	for _, h := range w.Asks {
		if c := a.keys[h.Key]; c != nil {
			r := c.request
			a.request(func() { a.charge(r, h) })
		}
	}
	for _, d := range w.Demands {
		a.announce(now, d)
	}
	for _, h := range w.Returns {
		a.giveBack(now, h)
	}
	for _, c := range a.superseded {
		c.before = nil
	}
	a.superseded = a.superseded[:0]
}

// respond sends a response. A stream on which it cannot be sent is over, and will be closed.
func (a *Assigner) respond(r *quota.Response) {
	a.pushes = a.pushes[:0]
	for _, p := range r.Pushes {
		a.pushes = append(a.pushes, rlqs.Assignment{Key: p.Key, Kind: kinds[p.Kind], Tokens: p.Tokens, TTL: p.TTL})
	}
	if a.send(r.Stream, r.Serial, a.pushes) != nil {
		a.metrics.unsent.Inc()
	}
}

var kinds = [...]rlqs.AssignmentKind{
	quota.Pair: rlqs.AssignPair, quota.Same: rlqs.AssignSame, quota.Deny: rlqs.AssignDeny, quota.Allow: rlqs.AssignAllow,
	quota.Abandon: rlqs.AssignAbandon,
}

// run ticks the ledger when it is due.
func (a *Assigner) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	sweep := int64(0)
	for {
		a.mu.Lock()
		now := a.now().UnixNano()
		a.tick(now)
		next := a.ledger.Next()
		a.waitsUntil = next
		if now-sweep > int64(sweepInterval) {
			sweep = now
			a.sweep(now)
		}
		longest := sweepInterval
		if a.calls != nil {
			longest = callsInterval
			if a.callsDue(now) && !a.retiring {
				a.measureCalls(now)
			}
		}
		a.mu.Unlock()
		wait := time.Duration(0)
		if next > now { // it may be math.MinInt64
			wait = min(time.Duration(next-now), longest)
		}
		timer.Reset(wait)
		select {
		case <-a.stop:
			return
		case <-a.wake:
		case <-timer.C:
		}
	}
}

const (
	sweepInterval = 10 * time.Second
	forgetAfter   = time.Minute // without reports
)

// sweep forgets keys that no Envoy has reported for long and of which the ledger has nothing, and lots of windows that have ended.
func (a *Assigner) sweep(now int64) {
	for k, c := range a.keys {
		if c.usedAt < now-int64(forgetAfter) && !a.ledger.Has(k) {
			delete(a.keys, k)
			continue
		}
		lots.Drop(&c.lots, now)
	}
}
