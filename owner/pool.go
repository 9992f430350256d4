package owner

import (
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/owner/internal/lending"
	"github.com/keyward/keyward/owner/internal/writeback"
	"github.com/keyward/keyward/ring"
)

// A cluster coordinates pools with its ordinary counters. What is lent of a pool is the count of a key that is made
// from the pool's. So it is replicated, handed over and written to the journal like every other count, and a grant
// leaves only after the successor has its charge. What each region has is only known to the counter's
// owner: the next owner learns it from the regions' next requests, because they report all that they have.

const (
	// maxPools is the most pools of one shard. Requests for others are refused.
	maxPools = 2048
	// poolLife is how long after its last request a pool is kept in addition to two windows, and poolLongest how long at
	// most: the next request adds it again.
	poolLife    = time.Minute
	poolLongest = time.Hour
	// inheritedFor is how long an owner that has a pool's counter without the regions' lines credits nothing. In that
	// time, the previous owner's messages end: what it has credited could be credited again.
	inheritedFor = 10 * time.Second
	// poolDomain is the domain of the counters of pools, for the quotas of domains.
	poolDomain = 0x6b77_706f_6f6c_7300
)

// poolTerms are the requests' settings for the counters of pools.
var poolTerms = Request{Domain: poolDomain, Strict: true}

// pools holds the pools of one shard that this member lends. The shard's mu guards it.
type pools struct {
	keys map[Key]*pool
}

// pool contains what the owner of a pool's counter knows in addition to the count.
type pool struct {
	rule        limit.Rule
	ringPos     uint64
	window      int64
	lines       federation.PoolLines
	past        federation.PoolLines // of the window before, for sliding windows
	inherited   bool                 // the counter is older than the lines
	madeAt      int64
	requestedAt int64
}

// PoolResult is the result of a PoolRequest.
type PoolResult struct {
	Kind   ResultKind           // Decided; Forward to Member, or try again soon if there is none; Pending: a PoolDone follows
	Member ring.ID              // with Forward
	Grant  federation.PoolGrant // with Decided
	Lent   bool                 // with Decided: the request was processed; without, it is refused
}

// PoolDone is the result of a PoolRequest that was pending.
type PoolDone struct {
	Waiter Waiter
	Grant  federation.PoolGrant
	Lent   bool // without, the request has no reply
}

// pendingPool is a grant of a pool that waits until its charge is confirmed.
type pendingPool struct {
	waiter Waiter
	grant  federation.PoolGrant
}

// poolOf returns the key and the ring position of the counter of a pool.
func poolOf(k federation.Key) (Key, uint64) {
	key := Key{counter.Mix(k[0] ^ poolDomain), counter.Mix(k[1] ^ poolDomain)}
	return key, key[0]
}

// StepPool processes r, a request of that region for a part of a pool, if this member owns the pool's counter. With
// Pending, the result comes with that waiter in the PoolsDone of a later Ready. It refuses requests that are late or
// invalid.
func (n *Node) StepPool(now int64, region string, r *federation.PoolRequest, to Waiter) (res PoolResult, fx Ready) {
	n.serial.Lock()
	defer n.serial.Unlock()
	defer n.finish(&fx)
	key, ringPos := poolOf(r.Key)
	s, hash := n.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	extent, _, _ := n.authority(now, s.view, 0)
	if !r.Valid() || r.Extended() || r.Pool == 0 {
		return res, fx
	}
	if extent != handoff.ExtentFull {
		return PoolResult{Kind: Forward}, fx
	}
	e := s.counters.Owned.Find(hash, key)
	switch o := s.view.Ownership(ringPos, e.OwnedEpoch(ringPos)); o.State {
	case handoff.OwnedElsewhere:
		return PoolResult{Kind: Forward, Member: o.Member}, fx
	case handoff.InHandoff:
		return PoolResult{Kind: Forward}, fx
	}
	op := &poolLend{n: n, s: s, region: region, PoolRequest: r, waiter: to}
	op.charge.Ref = counter.Ref{Key: key, Hash: hash, RingPos: ringPos, Domain: poolDomain, Table: counter.TableOwned, Now: s.clock(now)}
	op.charge.Rule = r.Rule
	op.charge.Rule.Limit = uint32(r.Pool)
	op.charge.Full = op.charge.Rule
	return op.process(), fx
}

// poolLend is one PoolRequest while the owner of the pool's counter processes it.
type poolLend struct {
	*federation.PoolRequest
	n      *Node
	s      *shard
	region string
	waiter Waiter
	charge lending.Charge
	pool   *pool
	window int64
	count  uint64 // hits that count against the pool
}

// process processes the request.
func (op *poolLend) process() (res PoolResult) {
	op.decide()
	op.window = op.currentWindow()
	if !op.n.federation.place.Load().lends(op.PoolRequest, op.charge.Rule.End(op.window-1)) {
		return res // F7
	}
	if op.pool = op.find(); op.pool == nil || op.PoolRequest.Window > op.window || op.window < op.pool.window {
		return res
	}
	op.pool.roll(op.window)
	if !op.receive() {
		return res
	}
	return op.lend()
}

// decide sets the charge's entry and its count.
func (op *poolLend) decide() {
	c := &op.charge
	c.Hits = 0
	c.Entry = op.s.counters.Owned.Find(c.Hash, c.Key)
	(&lendingOwner{op.n, op.s}).Charge(c)
	c.Entry = op.s.counters.Owned.Find(c.Hash, c.Key)
	op.count = c.Before
}

// currentWindow returns the window in which a charge counts.
func (op *poolLend) currentWindow() int64 {
	c := &op.charge
	w := c.Rule.Index(c.Now)
	if c.Entry != nil {
		if x := op.s.counters.Newest(c.Entry, c.Rule); x > w && c.Rule.End(x-1) <= c.Now+int64(limit.ClockTolerance) {
			return x
		}
	}
	return w
}

// find returns the pool of the request, which it adds if there is none. It returns nil if there are too many.
func (op *poolLend) find() *pool {
	ps, c := &op.s.pools, &op.charge
	p := ps.keys[c.Key]
	if p == nil || p.rule.Window != c.Rule.Window || p.rule.Algorithm != c.Rule.Algorithm {
		if p == nil && len(ps.keys) >= maxPools {
			op.s.counts.PoolsRefused++
			return nil
		}
		if ps.keys == nil {
			ps.keys = map[Key]*pool{}
		}
		p = &pool{ringPos: c.RingPos, window: op.window, madeAt: c.Now, inherited: c.Entry != nil}
		ps.keys[c.Key] = p
	}
	p.rule, p.requestedAt = c.Rule, c.Now
	return p
}

// roll begins window w, if it is not the present one. Of a window that begins here, all lines are known.
func (p *pool) roll(w int64) {
	if w == p.window {
		return
	}
	p.past = federation.PoolLines{}
	if w == p.window+1 && p.rule.Algorithm == limit.SlidingWindow {
		p.past = p.lines
	}
	p.window, p.lines, p.inherited = w, federation.PoolLines{}, false
}

// receive changes the count by what the region has returned or has in addition. It returns false if the request is late.
func (op *poolLend) receive() bool {
	p, c := op.pool, &op.charge
	change, ok := p.lines.Receive(c.Now, op.region, op.PoolRequest, op.window)
	if !ok {
		return false
	}
	if p.inherited && change.First {
		change.Charge = 0 // the counter contains it
	}
	if p.inherited && c.Now-p.madeAt < int64(inheritedFor) {
		change.Credit = 0
	}
	op.refund(op.window, change.Credit)
	op.refund(op.window-1, p.past.Settle(op.region, op.window-1, op.PoolRequest))
	op.take(min(change.Charge, op.room()))
	return true
}

// room returns the hits that can still be lent.
func (op *poolLend) room() uint64 {
	return saturatingSub(uint64(op.charge.Rule.Limit), op.count)
}

// used returns the count of the present window alone.
func (op *poolLend) used() uint64 {
	c := &op.charge
	if c.Entry == nil {
		return 0
	}
	st := &op.s.state
	op.s.counters.Load(c.Entry, c.Rule, st)
	return st.CountAt(op.window)
}

// refund refunds hits of a window, and at most what was charged then.
func (op *poolLend) refund(window int64, hits uint64) {
	c, s := &op.charge, op.s
	if hits == 0 || c.Entry == nil {
		return
	}
	st := &s.state
	s.counters.Load(c.Entry, c.Rule, st)
	st.RefundAt(window, s.bootID, hits)
	c.Rule.Trim(st, c.Now)
	if !s.counters.Store(c.Entry, c.Rule, st) {
		s.counts.RefundsDropped++
		return
	}
	if s.view.copies {
		op.n.trackUnreplicated(s, c.Entry, c.Rule, 0)
	}
	if op.n.journalsEntry(s, c.Entry) {
		op.n.trackUnwritten(s, c.Entry, c.Rule, &writeback.Hits{Now: c.Now})
	}
	op.decide()
}

// take charges hits, for which there is room. It returns false, and charges nothing, if there is no place for the counter.
func (op *poolLend) take(hits uint64) bool {
	c := &op.charge
	if hits == 0 {
		return true
	}
	if c.Entry == nil {
		if c.Entry = op.s.counters.Insert(c.Ref, false, &op.s.state); c.Entry == nil {
			return false
		}
	}
	c.Hits = hits
	(&lendingOwner{op.n, op.s}).Charge(c)
	if c.Overflow || c.Over {
		op.decide()
		return false
	}
	op.count = limit.SaturatingAdd(op.count, hits)
	return true
}

// lend charges what the region gets, and returns the grant, or Pending until the charge is confirmed.
func (op *poolLend) lend() PoolResult {
	c := &op.charge
	size := min(op.Tokens, op.room())
	if size > 0 && !op.take(size) {
		size = 0
	}
	used := op.used()
	g := federation.PoolGrant{
		Key: op.Key, Seq: op.Seq, Window: op.window, Total: op.pool.lines.Lend(op.region, size),
		Used: used, Usable: op.Pool - min(op.Pool, saturatingSub(op.count, used)), Left: time.Duration(min(c.Rule.End(op.window)-c.Now, c.Rule.End(0))),
		Others: op.pool.lines.Others(c.Now, op.region),
	}
	if size == 0 {
		return PoolResult{Grant: g, Lent: true}
	}
	op.s.counts.PoolLent += size
	req := poolTerms
	req.Key, req.RingPos, req.Rule, req.Op, req.Hits = c.Key, c.RingPos, c.Full, Take, size
	lent := Result{Decision: c.Decision, Kind: Decided, Authority: Full}
	x := &shardOp{Request: &req, now: c.Now, hash: c.Hash, table: counter.TableOwned, rule: c.Rule, grant: true}
	if w := op.n.awaitConfirmation(op.s, x, c.Entry, &lent); w != nil {
		w.pool = &pendingPool{op.waiter, g}
		return PoolResult{Kind: Pending}
	}
	if lent.Kind != Decided || lent.Authority != Full {
		return PoolResult{} // no room to replicate it: the region asks again
	}
	return PoolResult{Grant: g, Lent: true}
}

// dropPools drops the pools whose counters this member does not own any more, and with all set every pool. Their next
// owner learns from the regions what they have.
func (s *shard) dropPools(all bool) {
	for key, p := range s.pools.keys {
		if all || s.view.Ownership(p.ringPos, s.counters.Find(key).OwnedEpoch(p.ringPos)).State != handoff.OwnedHere {
			delete(s.pools.keys, key)
		}
	}
}

// tickPools drops the pools that no window needs any more.
func (s *shard) tickPools(now int64) {
	for key, p := range s.pools.keys {
		if now-p.requestedAt > min(2*min(p.rule.End(0), int64(poolLongest))+int64(poolLife), int64(poolLongest)) {
			delete(s.pools.keys, key)
		}
	}
}
