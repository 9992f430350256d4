package owner

import (
	"math"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/ring"
)

// Node counts the keys one member owns and answers for the rest when it must. All of its methods may run concurrently;
// those that return Effects run one after the other.
type Node struct {
	options      Options
	ticked       atomic.Int64 // time of the last Tick or SetRing
	ledgers      [kinds]ledger
	copies       ledger // keys in the owned tables that are others'
	domains      [domainSlots]atomic.Int64
	records      pool
	sketches     sketches
	shards       [shards]shard
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
	for k := range kinds {
		n.ledgers[k].max = int64(max(1, o.MaxKeys/2))
	}
	n.ledgers[ownedTable] = ledger{max: int64(o.MaxKeys), quota: int64(o.DomainQuota), domains: &n.domains}
	n.ledgers[denyTable].max = int64(o.DenyCache)
	n.copies.max = int64(2 * o.MaxKeys)
	n.sketches.seed = o.SketchSeed
	n.SetLoad(defaultCapacity, false)
	n.hotState.heavy.Store(math.Float64bits(heavyRate))
	n.records.pages.Store(int64(3 * o.MaxKeys / pageRecords))
	n.records.reserve = n.records.pages.Load() / 4
	n.records.quota = int64(3*o.DomainQuota + shards*pageRecords/2)
	for i := range n.shards {
		s := &n.shards[i]
		s.view, s.bootID = n.serial.view, o.BootID
		s.slab.pool, s.sketches = &n.records, &n.sketches
		for k := range s.tables {
			t := &s.tables[k]
			t.seed, t.ledger, t.copies, t.slab = o.Seed, &n.ledgers[k], &n.copies, &s.slab
		}
	}
	return n
}

func (n *Node) shard(k Key) (*shard, uint64) {
	h := hash(n.options.Seed, k)
	return &n.shards[h>>(64-shardBits)], h
}

// Decide answers one question: it decides what this member holds and names the owner of the rest. An answer that has to
// wait, for the key's token or for copies of what was charged, comes in the Effects of a later call, under its ticket.
func (n *Node) Decide(now int64, q *Request) Result {
	var a Result
	s, h := n.shard(q.Key)
	s.mu.Lock()
	if !n.denyCached(s, h, now, q, &a) {
		n.takeLocked(s, h, now, q, false, &a)
	}
	s.mu.Unlock()
	return a
}

// DecideAll answers all questions of one request, in order; two on one key are two hits in a row. What others own gets
// Kind Ask.
//
// With stop, one question that would go over its limit keeps the others from being charged: then only those that would
// go over are charged, and the others answered as by Look. That is exact when this member decides all keys. If it does
// not, nothing is charged and every answer is Ask, with this member itself for what it owns: the caller asks all owners
// with Peek, rewrites the questions with Stop, and asks again.
func (n *Node) DecideAll(now int64, stop bool, qs []Request, as []Result) {
	as = as[:len(qs)]
	cached := n.denyCachedAll(now, qs, as)
	switch {
	case stop && cached:
		n.readAll(now, qs, as)
	case stop:
		n.stopAll(now, false, qs, as)
	default:
		for i := range qs {
			if as[i].Authority != Cached {
				n.take(now, &qs[i], &as[i])
			}
		}
	}
}

// Serve answers a group of questions that another member asks this one as the owner. What this member does not decide
// with full authority gets Kind Ask: not owned, or not trusted to be owned. With stop, one such question makes all Ask.
func (n *Node) Serve(now int64, _ ring.ID, stop bool, qs []Request, as []Result) {
	as = as[:len(qs)]
	if stop {
		n.stopAll(now, true, qs, as)
		return
	}
	for i := range qs {
		q, a := &qs[i], &as[i]
		*a = Result{}
		s, h := n.shard(q.Key)
		s.mu.Lock()
		n.takeLocked(s, h, now, q, true, a)
		s.mu.Unlock()
	}
}

// take answers q into a, which is empty.
func (n *Node) take(now int64, q *Request, a *Result) {
	s, h := n.shard(q.Key)
	s.mu.Lock()
	n.takeLocked(s, h, now, q, false, a)
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
func (n *Node) takeLocked(s *shard, h uint64, now int64, q *Request, serve bool, a *Result) {
	v := s.view
	right, num, den := n.authority(now, v)
	if right == handoff.ExtentNone {
		// What was lent is charged, and valid by itself.
		if a.Kind = Forward; !serve && (len(s.held) == 0 || !n.holdLocked(s, now, q, true, a)) {
			n.shareLocked(s, h, now, q, a)
		}
		return
	}
	e := s.tables[ownedTable].find(h, q.Key)
	if e == nil || e.epoch != v.epoch || e.note != q.RingPos {
		switch hold := v.Ownership(q.RingPos, e.ownedEpoch(q.RingPos)); hold.State {
		case handoff.OwnedElsewhere:
			if serve || !n.holdLocked(s, now, q, false, a) {
				a.Kind, a.Member = Forward, hold.Member
				s.counts.forwarded++
			}
			return
		case handoff.InHandoff:
			if v.legacy[hold.Member] { // it gives no tokens; perhaps it has not seen the ring yet
				a.Kind, a.Member = Forward, hold.Member
				s.counts.forwarded++
				return
			}
			n.awaitOwnership(s, h, now, q, hold.Member, a)
			return
		}
	}
	if right == handoff.ExtentFull {
		den = 0
	}
	n.decideLocked(s, h, now, q, e, part{num, den}, 0, a)
}

// ownedEpoch is the epoch of a view in which the token of e's key was here.
func (e *entry) ownedEpoch(owner uint64) uint16 {
	if e == nil || e.note != owner {
		return 0
	}
	return e.epoch
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
	whole := uint64(r.Depth()) * drain(width, r.Limit)
	if burst = uint32(min(uint64(burst), whole/drain(width, limit))); burst == 0 {
		return 0, 0
	}
	return limit, burst
}

// drain is the nanoseconds that one hit takes to drain from a bucket.
func drain(width uint64, limit uint32) uint64 { return (width-1)/uint64(max(1, limit)) + 1 }

// decideLocked answers q, whose token is here; e is its entry, or nil. If the answer has to wait for copies it waits
// under ticket, or under a new one if that is 0.
func (n *Node) decideLocked(s *shard, h uint64, now int64, q *Request, e *entry, p part, ticket uint64, a *Result) {
	ht := shardOp{Request: q, now: s.clock(now), hash: h, table: ownedTable, rule: q.Rule}
	if p.den != 0 && q.Op != Refund { // what was charged by the whole rule is given back by it
		ht.partial = true
		ht.rule.Limit, ht.rule.Burst = partialLimits(q.Rule, p.of(q.Rule.Limit), p.of(q.Rule.Burst))
	}
	e, overflow := n.charge(s, &ht, e, p, a)
	s.counts.decided[a.Authority]++
	n.updateDenyCache(s, &ht, a)
	if e != nil {
		a.Hot = n.recordHit(s, ht.now, q, e)
	}
	if len(s.lent) > 0 {
		n.updateHolders(s, &ht, e, a)
	}
	if s.view.copies && ht.Op != DryRun && ht.Op != Read && !overflow && !ht.uncharged && e != nil {
		n.awaitReplication(s, &ht, e, ticket, a)
	}
}

// charge decides h, whose token is here, and charges it to e, or to an entry that it makes. overflow says that a sketch
// has counted it.
func (n *Node) charge(s *shard, ht *shardOp, e *entry, p part, a *Result) (_ *entry, overflow bool) {
	r := ht.Request.Rule
	if s.tables[shareTable].n > 0 || s.sketches.live.Load() > 0 {
		ht.elsewhere = s.unreportedShare(ht)
	}
	known := e != nil && e.epoch == s.view.epoch && e.limit >= r.Limit
	if !known {
		if at, lost := s.view.Lost(ht.RingPos); lost {
			e = n.chargeLostState(s, ht, e, at)
		} else if e != nil {
			s.dropAssumedLoss(e)
		}
	}
	if e != nil && !e.complete() {
		e = s.completeEntry(ht, e)
	}
	var until int64
	if known = known && e != nil; known {
		until = e.until()
	}
	e, overflow = s.count(ht, e, &a.Decision)
	switch {
	case !ht.charges():
	case overflow:
		n.recordBounds(s, ht, r.End(r.Index(ht.now)))
	case !known || e.until() != until:
		s.markOwned(ht, e)
		n.recordBounds(s, ht, s.end(e, r))
	}
	a.Kind, a.Path, a.Authority = Decided, Local, Full
	switch {
	case overflow:
		a.Authority = Overflow
	case p.den != 0:
		a.Authority = Part
		scaleToWhole(ht, a)
	}
	return e, overflow
}

// markOwned marks e as this member's.
func (s *shard) markOwned(h *shardOp, e *entry) {
	e.note, e.epoch, e.limit = h.RingPos, s.view.epoch, max(e.limit, h.Request.Rule.Limit)
	s.reshape(e, h.Request.Rule)
	s.tables[ownedTable].adopt(e)
}

// chargeLostState charges the key of h, whose counts were lost at that time, for what is not known of it.
func (n *Node) chargeLostState(s *shard, h *shardOp, e *entry, at int64) *entry {
	r := h.Request.Rule
	if !n.options.ProRata {
		if h.charges() && r.Index(at) == r.Index(h.now) {
			s.bounds[crashBound].push(h.now, r.End(r.Index(h.now)), uint64(r.Depth()))
		}
		return e
	}
	if e == nil {
		if r.End(r.Index(at)+1) <= h.now && windowed(r) {
			return nil
		}
		if e = s.insert(h, false); e == nil {
			return nil
		}
	}
	s.load(e, r, &s.state)
	r.ChargeLost(&s.state, at)
	r.Trim(&s.state, h.now)
	if until := e.until(); s.store(e, r, &s.state) {
		e.prolong(until)
	}
	return e
}

// dropAssumedLoss takes out of e what was charged for a loss that turned out to be none: a member that was cut off took others for lost.
func (s *shard) dropAssumedLoss(e *entry) {
	if !s.hasAssumedLoss(e) {
		return
	}
	r := s.rule(e)
	s.load(e, r, &s.state)
	r.DropLost(&s.state)
	s.store(e, r, &s.state) // it takes less room than before
}

// chargeLostOnRelease charges e for what was lost of it, as its token goes with t to a member that knows of no loss.
func (n *Node) chargeLostOnRelease(s *shard, now int64, e *entry, t *handoff.Transfer) {
	if _, lost := s.view.Lost(e.note); !lost {
		return
	}
	if st, _ := s.view.Reply(e.note, e.ownedEpoch(e.note), t.To, t.Ring.Fingerprint()); st == handoff.KeyGiven {
		n.chargeLostEntry(s, now, e)
	}
}

// chargeLostEntry is mourn for an entry that nobody asks for.
func (n *Node) chargeLostEntry(s *shard, now int64, e *entry) {
	if at, lost := s.view.Lost(e.note); lost {
		r := s.rule(e)
		n.chargeLostState(s, &shardOp{Request: &Request{Key: e.key, RingPos: e.note, Rule: r}, now: now, table: ownedTable, rule: r}, e, at)
	}
}

// recordBounds records what others may have admitted in the window that ends then.
func (n *Node) recordBounds(s *shard, h *shardOp, end int64) {
	v := s.view
	if len(v.changes) == 0 && v.Ring().Len() >= v.NRef() {
		return
	}
	r := h.Request.Rule
	if missing := v.NRef() - v.Ring().Len(); missing > 0 && h.rule.Limit == r.Limit {
		// They may have their part of the limit on a ring of their own.
		x := (uint64(r.Depth())*uint64(missing) + uint64(v.NRef()) - 1) / uint64(v.NRef())
		if n.options.Policy == handoff.PolicyAvailable {
			x = uint64(r.Depth()) * uint64(missing)
		}
		s.bounds[partitionBound].push(h.now, end, x)
	}
	width := r.End(0)
	if r.Algorithm != limit.FixedWindow {
		width = 2*width + unit
	}
	moved, crashed := v.affected(h.RingPos, end-width)
	if moved {
		s.bounds[movedBound].push(h.now, end, uint64(r.Depth()))
	}
	if crashed {
		s.bounds[crashBound].push(h.now, end, tolerance(h.Request))
	}
}

// shardMask is the shards of qs as a mask.
func (n *Node) shardMask(qs []Request) (mask uint64) {
	for i := range qs {
		_, h := n.shard(qs[i].Key)
		mask |= 1 << (h >> (64 - shardBits))
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
