package owner

import (
	"math"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/ring"
)

// Node counts the keys one member owns and answers for the rest when it must. All of its methods may run concurrently;
// those that return Effects run one after the other.
type Node struct {
	options      Options
	ticked       atomic.Int64 // time of the last Tick or SetRing
	counters     *counter.Store
	shards       [counter.Shards]shard
	pending      atomic.Int64 // tickets
	held         atomic.Int64 // leases of other members' keys
	dirty        atomic.Bool  // something waits for Flush
	urgent       atomic.Bool  // and somebody waits for that
	leaseTraffic atomic.Bool  // and something about leases is among it
	hotState     hotState

	serial struct {
		sync.Mutex // taken before any shard's mu
		machine    *handoff.Machine
		view       *view
		peers      map[ring.ID]handoff.LivePeer
		transfers  []handoff.Transfer
		replicator replicator
		counts     messageCounts
	}
	inflight atomic.Int64 // batches of copies that are not confirmed
	scans    scans
}

// New is a Node that has no ring yet: until SetRing it answers every question from its share.
func New(o Options) *Node {
	o = o.withDefaults()
	n := &Node{options: o}
	n.serial.machine = handoff.NewMachine(handoff.Options{Self: o.Self, BootID: o.BootID, OwnershipTTL: o.OwnershipTTL, TakeoverDelay: o.TakeoverDelay, Policy: o.Policy})
	n.serial.view = newView(n.serial.machine.View(), nil, nil)
	n.serial.replicator = replicator{batches: map[uint64]*batch{}, lastContact: map[ring.ID]int64{}}
	n.counters = counter.New(counter.Config{BootID: o.BootID, Seed: o.Seed, SketchSeed: o.SketchSeed,
		MaxKeys: o.MaxKeys, DomainQuota: o.DomainQuota, MaxDenied: o.DenyCache})
	n.SetLoad(defaultCapacity, false)
	n.hotState.heavy.Store(math.Float64bits(heavyRate))
	for i := range n.shards {
		s := &n.shards[i]
		s.view, s.bootID = n.serial.view, o.BootID
		s.sketches = &n.counters.Sketches
		n.counters.Init(&s.counters)
	}
	return n
}

func (n *Node) shard(key Key) (*shard, uint64) {
	hash := counter.Hash(n.options.Seed, key)
	return &n.shards[counter.ShardOf(hash)], hash
}

// Decide answers one question: it decides what this member holds and names the owner of the rest. An answer that has to
// wait, for the key's token or for copies of what was charged, comes in the Effects of a later call, under its ticket.
func (n *Node) Decide(now int64, req *Request) Result {
	var res Result
	s, hash := n.shard(req.Key)
	s.mu.Lock()
	if !n.denyCached(s, hash, now, req, &res) {
		n.takeLocked(s, hash, now, req, false, &res)
	}
	s.mu.Unlock()
	return res
}

// DecideAll answers all questions of one request, in order; two on one key are two hits in a row. What others own gets
// Kind Ask.
//
// With stop, one question that would go over its limit keeps the others from being charged: then only those that would
// go over are charged, and the others answered as by Look. That is exact when this member decides all keys. If it does
// not, nothing is charged and every answer is Ask, with this member itself for what it owns: the caller asks all owners
// with Peek, rewrites the questions with Stop, and asks again.
func (n *Node) DecideAll(now int64, stop bool, reqs []Request, results []Result) {
	results = results[:len(reqs)]
	cached := n.denyCachedAll(now, reqs, results)
	switch {
	case stop && cached:
		n.readAll(now, reqs, results)
	case stop:
		n.stopAll(now, false, reqs, results)
	default:
		for i := range reqs {
			if results[i].Authority != Cached {
				n.take(now, &reqs[i], &results[i])
			}
		}
	}
}

// Serve answers a group of questions that another member asks this one as the owner. What this member does not decide
// with full authority gets Kind Ask: not owned, or not trusted to be owned. With stop, one such question makes all Ask.
func (n *Node) Serve(now int64, _ ring.ID, stop bool, reqs []Request, results []Result) {
	results = results[:len(reqs)]
	if stop {
		n.stopAll(now, true, reqs, results)
		return
	}
	for i := range reqs {
		req, res := &reqs[i], &results[i]
		*res = Result{}
		s, hash := n.shard(req.Key)
		s.mu.Lock()
		n.takeLocked(s, hash, now, req, true, res)
		s.mu.Unlock()
	}
}

// take answers q into a, which is empty.
func (n *Node) take(now int64, req *Request, res *Result) {
	s, hash := n.shard(req.Key)
	s.mu.Lock()
	n.takeLocked(s, hash, now, req, false, res)
	s.mu.Unlock()
}

// authority is by what right this member decides now. It has none when it has no ring, has not joined, or was cut off or
// stopped for so long that others may have taken over.
func (n *Node) authority(now int64, v *view) (r handoff.Extent, num, den uint32) {
	if v.sole && v.Joined() {
		return handoff.ExtentFull, 1, 1
	}
	if !v.Joined() || v.Ring().Len() == 0 || now-n.ticked.Load() > int64(n.options.OwnershipTTL) {
		return handoff.ExtentNone, 0, 1
	}
	return v.Extent(now)
}

// takeLocked answers q, whose shard is s, locked, and whose hash is h. A question that was served gets no answer from
// this member's share.
func (n *Node) takeLocked(s *shard, hash uint64, now int64, req *Request, serve bool, res *Result) {
	v := s.view
	right, num, den := n.authority(now, v)
	if right == handoff.ExtentNone {
		// What was lent is charged, and valid by itself.
		if res.Kind = Forward; !serve && (len(s.held) == 0 || !n.holdLocked(s, now, req, true, res)) {
			n.shareLocked(s, hash, now, req, res)
		}
		return
	}
	e := s.counters.Owned.Find(hash, req.Key)
	if e == nil || e.Epoch() != v.epoch || e.RingPos() != req.RingPos {
		switch hold := v.Ownership(req.RingPos, e.OwnedEpoch(req.RingPos)); hold.State {
		case handoff.OwnedElsewhere:
			if serve || !n.holdLocked(s, now, req, false, res) {
				res.Kind, res.Member = Forward, hold.Member
				s.counts.forwarded++
			}
			return
		case handoff.InHandoff:
			if v.legacy[hold.Member] { // it gives no tokens; perhaps it has not seen the ring yet
				res.Kind, res.Member = Forward, hold.Member
				s.counts.forwarded++
				return
			}
			n.awaitOwnership(s, &shardOp{Request: req, now: now, hash: hash}, hold.Member, res)
			return
		}
	}
	if right == handoff.ExtentFull {
		den = 0
	}
	n.decideLocked(s, hash, now, req, e, part{num, den}, nil, res)
}

// part is the part of a limit that a member may use: num/den; den 0 is the whole.
type part struct{ num, den uint32 }

func (p part) of(x uint32) uint32 {
	if p.den == 0 {
		return x
	}
	return uint32(uint64(x) * uint64(p.num) / uint64(p.den))
}

// partialLimits are the limit and burst of a part of rule r: not more than drains in the time in which the whole drains, for what
// was charged by the whole rule stands in nanoseconds. Nothing left of either admits nothing: a burst of 0 would stand for
// the limit.
func partialLimits(r limit.Rule, limit, burst uint32) (uint32, uint32) {
	if !r.Algorithm.Bucket() || limit == 0 {
		return limit, 0
	}
	if r.Burst == 0 {
		burst = limit
	}
	width := uint64(r.End(0))
	whole := uint64(r.Depth()) * counter.Drain(width, r.Limit)
	if burst = uint32(min(uint64(burst), whole/counter.Drain(width, limit))); burst == 0 {
		return 0, 0
	}
	return limit, burst
}

// decideLocked decides req, whose ownership this member has; e is its counter, or nil. w is not nil if req was pending until
// now. If the result has to wait for the confirmation of replicas, req is pending (again).
func (n *Node) decideLocked(s *shard, hash uint64, now int64, req *Request, e *counter.Owned, p part, w *pendingRequest, res *Result) {
	op := shardOp{Request: req, now: s.clock(now), hash: hash, table: counter.TableOwned, rule: req.Rule}
	if p.den != 0 && req.Op != Refund { // what was charged by the whole rule is given back by it
		op.partial = true
		op.rule.Limit, op.rule.Burst = partialLimits(req.Rule, p.of(req.Rule.Limit), p.of(req.Rule.Burst))
	}
	e, overflow := n.charge(s, &op, e, p, res)
	s.counts.decided[res.Authority]++
	n.updateDenyCache(s, &op, res)
	if e != nil {
		res.Hot = n.recordHit(s, op.now, req, e)
	}
	if len(s.lent) > 0 {
		n.updateHolders(s, &op, e, res)
	}
	if s.view.copies && op.Op != DryRun && op.Op != Read && !overflow && !op.uncharged && e != nil {
		n.awaitReplication(s, &op, e, w, res)
	}
}

// charge decides h, whose token is here, and charges it to e, or to an entry that it makes. overflow says that a sketch
// has counted it.
func (n *Node) charge(s *shard, op *shardOp, e *counter.Owned, p part, res *Result) (_ *counter.Owned, overflow bool) {
	r := op.Request.Rule
	if s.counters.Share.Len() > 0 || s.sketches.Live() {
		op.elsewhere = s.unreportedShare(op)
	}
	known := e != nil && e.Epoch() == s.view.epoch && e.Limit() >= r.Limit
	if !known {
		if at, lost := s.view.Lost(op.RingPos); lost {
			e = n.chargeLostState(s, op, e, at)
		} else if e != nil {
			s.dropAssumedLoss(e)
		}
	}
	if e != nil && !e.Complete() {
		e = s.completeEntry(op, e)
	}
	var until int64
	if known = known && e != nil; known {
		until = e.Until()
	}
	e, overflow = s.count(op, e, &res.Decision)
	switch {
	case !op.charges():
	case overflow:
		n.recordBounds(s, op, r.End(r.Index(op.now)))
	case !known || e.Until() != until:
		s.markOwned(op, e)
		n.recordBounds(s, op, s.counters.End(e, r))
	}
	res.Kind, res.Path, res.Authority = Decided, Local, Full
	switch {
	case overflow:
		res.Authority = Overflow
	case p.den != 0:
		res.Authority = Part
		scaleToWhole(op, res)
	}
	return e, overflow
}

// markOwned marks e as this member's.
func (s *shard) markOwned(op *shardOp, e *counter.Owned) {
	e.MarkOwned(op.RingPos, s.view.epoch, op.Request.Rule.Limit)
	s.counters.SetRule(e, op.Request.Rule)
	s.counters.Owned.Adopt(e)
}

// chargeLostState charges the key of h, whose counts were lost at that time, for what is not known of it.
func (n *Node) chargeLostState(s *shard, op *shardOp, e *counter.Owned, at int64) *counter.Owned {
	r := op.Request.Rule
	if !n.options.ProRata {
		if op.charges() && r.Index(at) == r.Index(op.now) {
			s.bounds[crashBound].push(op.now, r.End(r.Index(op.now)), uint64(r.Depth()))
		}
		return e
	}
	if e == nil {
		if r.End(r.Index(at)+1) <= op.now && counter.Windowed(r) {
			return nil
		}
		if e = s.insert(op, false); e == nil {
			return nil
		}
	}
	s.counters.Load(e, r, &s.state)
	r.ChargeLost(&s.state, at)
	r.Trim(&s.state, op.now)
	if until := e.Until(); s.counters.Store(e, r, &s.state) {
		e.Prolong(until)
	}
	return e
}

// dropAssumedLoss takes out of e what was charged for a loss that turned out to be none: a member that was cut off took others for lost.
func (s *shard) dropAssumedLoss(e *counter.Owned) {
	if !s.hasAssumedLoss(e) {
		return
	}
	r := s.counters.Rule(e)
	s.counters.Load(e, r, &s.state)
	r.DropLost(&s.state)
	s.counters.Store(e, r, &s.state) // it takes less room than before
}

// chargeLostOnRelease charges e for what was lost of it, as its token goes with t to a member that knows of no loss.
func (n *Node) chargeLostOnRelease(s *shard, now int64, e *counter.Owned, t *handoff.Transfer) {
	if _, lost := s.view.Lost(e.RingPos()); !lost {
		return
	}
	if st, _ := s.view.Reply(e.RingPos(), e.OwnedEpoch(e.RingPos()), t.To, t.Ring.Fingerprint()); st == handoff.KeyGiven {
		n.chargeLostEntry(s, now, e)
	}
}

// chargeLostEntry is mourn for an entry that nobody asks for.
func (n *Node) chargeLostEntry(s *shard, now int64, e *counter.Owned) {
	if at, lost := s.view.Lost(e.RingPos()); lost {
		r := s.counters.Rule(e)
		n.chargeLostState(s, &shardOp{Request: &Request{Key: e.Key(), RingPos: e.RingPos(), Rule: r}, now: now, table: counter.TableOwned, rule: r}, e, at)
	}
}

// recordBounds records what others may have admitted in the window that ends then.
func (n *Node) recordBounds(s *shard, op *shardOp, end int64) {
	v := s.view
	if len(v.changes) == 0 && v.Ring().Len() >= v.NRef() {
		return
	}
	r := op.Request.Rule
	if missing := v.NRef() - v.Ring().Len(); missing > 0 && op.rule.Limit == r.Limit {
		// They may have their part of the limit on a ring of their own.
		x := (uint64(r.Depth())*uint64(missing) + uint64(v.NRef()) - 1) / uint64(v.NRef())
		if n.options.Policy == handoff.PolicyAvailable {
			x = uint64(r.Depth()) * uint64(missing)
		}
		s.bounds[partitionBound].push(op.now, end, x)
	}
	width := r.End(0)
	if r.Algorithm != limit.FixedWindow {
		width = 2*width + counter.Unit
	}
	moved, crashed := v.affected(op.RingPos, end-width)
	if moved {
		s.bounds[movedBound].push(op.now, end, uint64(r.Depth()))
	}
	if crashed {
		s.bounds[crashBound].push(op.now, end, tolerance(op.Request))
	}
}

// shardMask is the shards of qs as a mask.
func (n *Node) shardMask(reqs []Request) (mask uint64) {
	for i := range reqs {
		_, hash := n.shard(reqs[i].Key)
		mask |= 1 << counter.ShardOf(hash)
	}
	return mask
}

// lockAll locks the shards of mask in ascending order, the one order in which several are ever held.
func (n *Node) lockAll(mask uint64) {
	for m := mask; m != 0; m &= m - 1 {
		n.shards[bits.TrailingZeros64(m)].mu.Lock()
	}
}

func (n *Node) unlockAll(mask uint64) {
	for m := mask; m != 0; m &= m - 1 {
		n.shards[bits.TrailingZeros64(m)].mu.Unlock()
	}
}
