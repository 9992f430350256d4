package owner

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner/internal/counter"
)

// FederationPlace is the place of this cluster in a federation.
type FederationPlace struct {
	Epoch       uint32   // of the layout
	Weights     []uint32 // of all regions
	Index       int      // of this region in Weights
	Holders     int      // with it, each member is a holder of its own, of about that many, and no part of a limit is a member's
	Authorities []string // names of the coordinators that this member can reach
	// Homes chooses among Authorities for rules whose authority is federation.SpreadCoordinator; nil: it is one of them.
	Homes *federation.Homes
}

// maxEscrows is the most keys of which this member holds an escrow. Further keys have only their floors.
const maxEscrows = 16_384

// federated is the state of a Node for limits that several regions share.
type federated struct {
	options FederationPlace
	links   map[uint32]*authorityLink // by federation.AuthorityID; immutable
	spread  uint32                    // AuthorityID of rules whose keys have different homes
	held    atomic.Int64              // escrows
	rows    atomic.Int64              // rows of tenants in escrows
	dirty   atomic.Bool               // a shard has escrows with due requests
}

func (f *federated) init(o FederationPlace) {
	f.options, f.links, f.spread = o, map[uint32]*authorityLink{}, federation.AuthorityID(federation.SpreadCoordinator)
	for _, name := range o.Authorities {
		l := &authorityLink{}
		l.rtt.Store(int64(l.link.RTT()))
		f.links[federation.AuthorityID(name)] = l
	}
}

// escrows holds the escrows of one shard. The shard's mu guards it.
type escrows struct {
	keys   map[Key]*escrow
	queued []Key                           // those with a due request
	moves  map[Key][]federation.EscrowMove // from earlier owners, until the next request for the key
	lives  uint64                          // escrows ever made
}

// escrow is the escrow of one key.
type escrow struct {
	Escrow    *federation.Escrow      // nil with mechanism approximate
	count     *federation.HolderCount // instead of Escrow, with mechanism approximate
	authority uint32                  // that lends
	named     uint32                  // authority of the rule
	name      string
	ringPos   uint64
	queued    bool
}

// poolOp is an operation on a federated key while its owner decides it.
type poolOp struct {
	*shardOp
	budget federation.Budget
	store  federation.StoreTerms
	link   *authorityLink
	escrow *escrow // nil if nothing can be borrowed
	left   uint64  // of the floor
}

// CoordinatorRequest is a request to the coordinator with that federation.AuthorityID.
type CoordinatorRequest struct {
	Authority uint32
	Request   federation.PoolRequest
}

// decideFederated decides op, whose key this member owns and whose limit several regions share: from the floor, then from
// the escrow; if only the coordinator knows, op waits for it.
func (n *Node) decideFederated(s *shard, op *shardOp, e *counter.Owned, res *Result) {
	op.now = s.clock(op.now)
	q := n.poolOp(s, op)
	if q.escrow != nil && op.charges() && s.pending.resumed == nil {
		n.offer(&q)
	}
	if !n.decideByTenant(s, &q, res) {
		if n.decideFromFloor(s, &q, e, res) {
			n.queueEscrow(s, &q)
			return
		}
		n.decideFromEscrow(s, &q, res)
	}
	if res.Kind == Decided {
		s.counts.Decided[res.Authority]++
	}
	n.queueEscrow(s, &q)
}

// decideFromEscrow decides q, for which the region's floor has no room.
func (n *Node) decideFromEscrow(s *shard, q *poolOp, res *Result) {
	switch q.decide() {
	case federation.Admitted:
		q.report(res, Escrow, false)
	case federation.Refused:
		q.report(res, Escrow, true)
		res.FairShare = q.unfair
	case federation.Wait:
		n.decideWithoutPool(s, q, res)
	}
	q.recordTenant(res, false)
}

// poolOp returns op with its budget and escrow.
func (n *Node) poolOp(s *shard, op *shardOp) poolOp {
	f, t := &n.federation, op.Federation
	q := poolOp{shardOp: op, budget: f.budget(op.Request.Rule.Limit, t.Floor), store: f.store(t)}
	x := s.escrows.keys[op.Key]
	if x != nil && x.named != t.Authority {
		n.dropEscrow(s, op.Key) // the rule has another authority now: what the former has lent stays charged there
		x = nil
	}
	authority := uint32(0)
	if x != nil {
		authority = x.authority
	} else {
		authority = f.authorityOf(t, op.Key)
	}
	q.link = f.links[authority]
	if q.link != nil && q.budget.Pool > 0 && (op.Name != "" || !t.Named) {
		q.escrow = n.escrowOf(s, op, authority)
	}
	if len(s.escrows.moves) > 0 && q.escrow != nil && q.escrow.count == nil {
		n.takeMoves(s, &q)
	}
	return q
}

// authorityOf returns the authority that lends key.
func (f *federated) authorityOf(t *federation.RuleTerms, key Key) uint32 {
	if f.options.Homes != nil && t.Authority == f.spread {
		return f.options.Homes.Of(key)
	}
	return t.Authority
}

// budget divides a limit, of whose slices the given percentage are floors.
func (f *federated) budget(n uint32, floor uint8) federation.Budget {
	if h := f.options.Holders; h > 0 {
		return federation.Budget{Pool: n, Slice: n / uint32(h)}
	}
	if len(f.options.Weights) == 0 {
		return federation.Budget{Pool: n} // this member does not know its region
	}
	return federation.Divide(n, f.options.Weights, floor, f.options.Index)
}

// escrowOf returns the escrow of op's key, which it adds if there is none, of hits that authority lends. It returns nil if there are too many.
func (n *Node) escrowOf(s *shard, op *shardOp, authority uint32) *escrow {
	if x := s.escrows.keys[op.Key]; x != nil && x.serves(op.Federation) {
		return x
	} else if x != nil {
		n.dropEscrow(s, op.Key) // what it had stays charged
	}
	if n.federation.held.Add(1) > maxEscrows {
		n.federation.held.Add(-1)
		s.counts.EscrowsRefused++
		return nil
	}
	if s.escrows.keys == nil {
		s.escrows.keys = map[Key]*escrow{}
	}
	s.escrows.lives++
	// Boot IDs are random, so those of two members, or of two lives, differ.
	boot := n.options.BootID + s.escrows.lives*counter.Shards + uint64(counter.ShardOf(op.hash))
	x := newEscrow(op.Federation, boot)
	x.authority, x.named = authority, op.Federation.Authority
	x.ringPos, x.name = op.RingPos, strings.Clone(op.Name) // of a request that does not escape
	s.escrows.keys[op.Key] = x
	return x
}

// decideFromFloor decides q from the region's floor. It returns false if that has no room, so that nothing is charged. A
// floor is not divided between the sides of a partition: only the complete one is spent.
func (n *Node) decideFromFloor(s *shard, q *poolOp, e *counter.Owned, res *Result) bool {
	if q.part.den != 0 {
		return false
	}
	s.floor = *q.Request
	s.floor.Rule.Limit, s.floor.Federation = q.floorLimit(), nil
	if q.divides() {
		s.floor.Tenant = 0
	}
	op := *q.shardOp
	op.Request, op.table, op.rule, op.partial = &s.floor, counter.TableOwned, s.floor.Rule, true
	e, overflow := n.charge(s, &op, e, res)
	q.left, q.unfair = uint64(res.Remaining), op.unfair
	if res.Over && op.Op != Refund && op.Op != Read {
		*res = Result{}
		return false
	}
	if op.charges() && s.floor.Rule.Limit > q.budget.Floor {
		s.recordOutageBound(q, res.After)
		s.counts.Outages[q.Federation.Outage]++
	}
	s.counts.Decided[res.Authority]++
	out := res
	if (s.view.copies || n.options.DataWindow > 0) && op.Op != DryRun && op.Op != Read && !overflow && !op.uncharged && e != nil {
		// It compares the count with the floor, so it precedes the report.
		if w := n.awaitConfirmation(s, &op, e, res); w != nil {
			out = &w.result
		} else if res.Kind != Decided {
			return true
		}
	}
	reset := out.Reset // of the window that was charged, which another member's clock may have begun
	q.report(out, out.Authority, out.Over && op.Op == Take)
	out.Reset = reset
	q.recordTenant(out, true)
	return true
}

// floorLimit returns the limit of the region's floor: more while the coordinator is away, if the rule's outage policy says
// so.
func (q *poolOp) floorLimit() uint32 {
	b := q.budget
	if !q.link.isAway() || q.Federation.Floor >= 100 {
		return b.Floor
	}
	switch q.Federation.Outage {
	case federation.RegionalOnly:
		granted := uint64(0)
		if q.escrow != nil {
			granted = q.escrow.Granted(q.now)
		}
		return max(b.Floor, uint32(saturatingSub(uint64(b.Slice), granted)))
	case federation.Snapshot:
		if q.escrow != nil {
			return b.Floor + uint32(uint64(b.Slice)*q.escrow.Snapshot(q.now)/uint64(max(1, q.Request.Rule.Limit)))
		}
	}
	return b.Floor
}

// decide decides q from the escrow.
func (q *poolOp) decide() federation.Verdict {
	if q.escrow == nil {
		if q.budget.Pool == 0 {
			return federation.Refused
		}
		return federation.Wait
	}
	if q.Op != Take && q.Hits <= q.escrow.Left(q.now) {
		return federation.Admitted // it would be
	}
	return q.escrow.Decide(q.now, q.Request.Rule, q.settings(), q.Hits)
}

func (q *poolOp) settings() federation.EscrowSettings {
	return federation.EscrowSettings{
		Pool: uint64(q.budget.Pool), Batch: q.Federation.Batch, Floor: uint64(q.budget.Floor), Store: q.store,
	}
}

// decideWithoutPool makes q wait for the coordinator, or decides it by the rule's outage policy.
func (n *Node) decideWithoutPool(s *shard, q *poolOp, res *Result) {
	if q.link.isAway() && q.charges() {
		s.counts.Outages[q.Federation.Outage]++
	}
	switch {
	case q.link.isAway() && q.Federation.Outage == federation.FailOpen:
		n.decideOpen(s, q.shardOp, res)
	case q.link.isAway() || q.escrow == nil:
		q.report(res, Closed, true)
	case q.Op != Take: // the charge that may follow waits
		q.report(res, Escrow, false)
	default:
		w := n.await(s, q.shardOp, res)
		if w == nil {
			return
		}
		if s.pending.resumed == nil {
			s.counts.PoolWaits++
		}
		w.part = q.part
		q.escrow.AddTenantWaiting(q.Tenant, q.Hits)
		k := s.pending.key(q.Key)
		k.coordinator = append(k.coordinator, w)
	}
}

// decideUnowned decides op, whose limit several regions share, on a member that is not its key's owner, or may not decide
// now: floor and escrow are the owner's alone (F6).
func (n *Node) decideUnowned(s *shard, op *shardOp, res *Result) {
	if op.Federation.Outage == federation.FailOpen {
		n.decideOpen(s, op, res)
		return
	}
	op.now = s.clock(op.now)
	q := poolOp{shardOp: op}
	q.report(res, Closed, op.Op != Refund)
}

// report sets res to a decision about q. What all regions have used is an estimate: all but what is left here and, by the
// newest reply, of the pool.
func (q *poolOp) report(res *Result, a Authority, over bool) {
	left, full := q.left, uint64(q.Request.Rule.Limit)
	if q.escrow != nil {
		left = limit.SaturatingAdd(left, limit.SaturatingAdd(q.escrow.Left(q.now), q.escrow.Rest(q.now)))
	}
	res.Kind, res.Path, res.Authority = Decided, Local, a
	r := q.Request.Rule
	res.Reset = limit.WholeSeconds(r.End(r.Index(q.now)) - q.now)
	res.Over, res.After = over, full-min(left, full)
	res.Remaining = uint32(full - res.After)
	switch {
	case over:
		res.Before, res.After, res.Remaining = full, limit.SaturatingAdd(full, max(1, q.Hits)), 0
	case q.Op == Read:
		res.Before = res.After - q.Hits
	case q.Op == Take:
		res.After = max(res.After, min(q.Hits, full))
		res.Before = res.After - min(q.Hits, res.After)
	default:
		res.Before = res.After
		res.After = min(full, limit.SaturatingAdd(res.After, q.Hits))
	}
}

// queueEscrow queues a request to the coordinator if one is due.
func (n *Node) queueEscrow(s *shard, q *poolOp) {
	x := q.escrow
	if x == nil || x.queued || !x.Due(q.now, q.left, q.link.roundTrip()) {
		return
	}
	n.queue(s, q.Key, x)
}

func (n *Node) queue(s *shard, key Key, x *escrow) {
	x.queued = true
	s.escrows.queued = append(s.escrows.queued, key)
	n.federation.dirty.Store(true)
	n.setDirty()
}

// flushEscrows adds the due requests to coordinators to fx.
func (n *Node) flushEscrows(now int64, fx *Ready) {
	if !n.federation.dirty.Swap(false) {
		return
	}
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		at := s.clock(now)
		for _, key := range s.escrows.queued {
			if x := s.escrows.keys[key]; x != nil {
				x.queued = false
				n.ask(at, key, x, fx)
			}
		}
		s.escrows.queued = s.escrows.queued[:0]
		s.mu.Unlock()
	}
}

// ask adds a request for the escrow of key to fx, unless the coordinator is away and not to be probed now.
func (n *Node) ask(now int64, key Key, x *escrow, fx *Ready) {
	l := n.federation.links[x.authority]
	if l == nil {
		return
	}
	if x.Unanswered(now, l.roundTrip()) {
		l.do(func(l *federation.CoordinatorLink) bool { return l.Unanswered(now) })
	}
	if !l.do(func(l *federation.CoordinatorLink) bool { return l.Usable(now) }) {
		return
	}
	n.addPoolRequest(key, x, x.Request(now, l.roundTrip()), fx)
}

// addPoolRequest adds r, a request for the escrow x of key, to fx.
func (n *Node) addPoolRequest(key Key, x *escrow, r federation.PoolRequest, fx *Ready) {
	r.Key, r.Epoch, r.Name = key, n.federation.options.Epoch, x.name
	fx.PoolRequests = append(fx.PoolRequests, CoordinatorRequest{x.authority, r})
}

// tickEscrows queues the requests that time makes due, and drops escrows that are not needed any more.
func (n *Node) tickEscrows(now int64, fx *Ready) {
	if n.federation.held.Load() == 0 {
		return
	}
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		at := s.clock(now)
		for _, key := range counter.SortedKeys(s.escrows.keys) {
			x := s.escrows.keys[key]
			n.dealWaiting(s, at, key, x, fx)
			switch l := n.federation.links[x.authority]; {
			case x.queued:
			case x.Due(at, 0, l.roundTrip()):
				n.queue(s, key, x)
			case x.Expired(at):
				n.dropEscrow(s, key)
			}
		}
		s.mu.Unlock()
	}
	n.flushEscrows(now, fx)
	for id, l := range n.federation.links {
		if l.isAway() {
			n.decideWaiting(now, id, fx)
		}
	}
}

func (n *Node) dropEscrow(s *shard, key Key) {
	if x := s.escrows.keys[key]; x.count == nil {
		n.federation.rows.Add(int64(-x.Escrow.TenantRows()))
	}
	delete(s.escrows.keys, key)
	n.federation.held.Add(-1)
}

// releaseEscrows moves the escrows of keys that this member does not own any more, after a new view, to the new owners, or
// gives them back. Requests that wait for them are to be sent to the new owner.
func (n *Node) releaseEscrows(s *shard, now int64, fx *Ready) {
	for _, key := range counter.SortedKeys(s.escrows.keys) {
		x := s.escrows.keys[key]
		o := s.view.Ownership(x.ringPos, s.counters.Find(key).OwnedEpoch(x.ringPos))
		if o.State == handoff.OwnedHere {
			continue
		}
		n.passOn(key, x, now, o, fx)
		n.dropEscrow(s, key)
		for _, w := range s.pending.takeCoordinator(key) {
			n.resolve(s, w, Result{Kind: Forward, Member: o.Member}, fx)
		}
	}
}

// StepFederation processes the replies of a coordinator to requests that were sent together, which came after took. None
// of them is as good as no reply. With failed, the coordinator could not be reached, or has reported an error.
func (n *Node) StepFederation(now int64, authority uint32, took time.Duration, gs []federation.PoolGrant, failed bool) (fx Ready) {
	n.serial.Lock()
	defer n.serial.Unlock()
	defer n.finish(&fx)
	l := n.federation.links[authority]
	if l == nil {
		return fx
	}
	if failed {
		l.do(func(l *federation.CoordinatorLink) bool { return l.Failed(now) })
		n.decideWaiting(now, authority, &fx)
		return fx
	}
	if len(gs) > 0 { // without a grant, the requests count as unanswered: the coordinator's members may not be able to lend
		l.do(func(l *federation.CoordinatorLink) bool { return l.Answered(took) })
	}
	for i := range gs {
		n.acceptPool(now, l, &gs[i], &fx)
	}
	n.flushEscrows(now, &fx)
	return fx
}

// acceptPool processes one reply, and decides the requests that waited for it.
func (n *Node) acceptPool(now int64, l *authorityLink, g *federation.PoolGrant, fx *Ready) {
	s, _ := n.shard(g.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.clock(now)
	if x := s.escrows.keys[g.Key]; x != nil && x.Accept(at, g, l.roundTrip()) {
		n.decideCoordinated(s, at, g.Key, x, fx)
	}
}

// decideWaiting decides the requests that wait for a coordinator that is away.
func (n *Node) decideWaiting(now int64, authority uint32, fx *Ready) {
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		for _, key := range counter.SortedKeys(s.escrows.keys) {
			if x := s.escrows.keys[key]; x.authority == authority {
				n.decideCoordinated(s, s.clock(now), key, x, fx)
			}
		}
		s.mu.Unlock()
	}
}

// decideCoordinated decides again the requests for key that wait for the coordinator (F4).
func (n *Node) decideCoordinated(s *shard, now int64, key Key, x *escrow, fx *Ready) {
	x.TakeWaiting()
	for _, w := range s.pending.takeCoordinator(key) {
		res := Result{Kind: Forward}
		op := shardOp{Request: &w.request, now: now, hash: w.hash, part: w.part}
		s.pending.resumed = w
		n.decideFederated(s, &op, s.counters.Owned.Find(w.hash, key), &res)
		s.pending.resumed = nil
		if res.Kind != Pending {
			n.resolve(s, w, res, fx)
		}
	}
}
