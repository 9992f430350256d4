package owner

import (
	"strings"
	"sync/atomic"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner/internal/counter"
)

// maxEscrows is the most keys of which this member holds an escrow. Further keys have only their floors.
const maxEscrows = 16_384

// federated is the state of a Node for limits that several regions share.
type federated struct {
	place atomic.Pointer[place]
	held  atomic.Int64 // escrows
	rows  atomic.Int64 // rows of tenants in escrows
	dirty atomic.Bool  // a shard has escrows with due requests
}

// escrows holds the escrows of one shard. The shard's mu guards it.
type escrows struct {
	keys   map[Key]*escrow
	queued []Key                           // those with a due request
	moves  map[Key][]federation.EscrowMove // from earlier owners, until the next request for the key
	lives  uint64                          // escrows ever made
	seq    uint64                          // the highest number of a request to a coordinator
}

// escrow is the escrow of one key.
type escrow struct {
	Escrow    *federation.Escrow      // nil with mechanism approximate
	count     *federation.HolderCount // instead of Escrow, with mechanism approximate
	authority uint32                  // that lends
	named     uint32                  // authority of the rule
	epoch     uint32                  // of the layout of its windows
	rule      limit.Rule              // of the newest request
	past      pastCoordinator
	name      string
	ringPos   uint64
	queued    bool
}

// poolOp is an operation on a federated key while its owner decides it.
type poolOp struct {
	*shardOp
	place  *place
	phase  *federation.LayoutPhase // nil: this member is in no federation
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
	t := op.Federation
	q := poolOp{shardOp: op, place: n.federation.place.Load()}
	q.divide()
	x := s.escrows.keys[op.Key]
	if x != nil && (x.named != t.Authority || x.epoch != epochOf(q.phase)) {
		n.dropEscrow(s, op.Key) // what it had stays charged where it was lent, and its window has ended unless the rule has changed
		x = nil
	}
	authority := uint32(0)
	if x != nil {
		authority = x.authority
	} else {
		authority = authorityOf(q.phase, t, op.Key)
	}
	q.link = q.place.links[authority]
	if q.link != nil && q.budget.Pool > 0 && (op.Name != "" || !t.Named) {
		q.escrow = n.escrowOf(s, op, authority)
	}
	if q.escrow != nil {
		q.escrow.epoch, q.escrow.rule = epochOf(q.phase), op.Request.Rule
		if q.deductPast(); q.budget.Pool == 0 {
			q.escrow = nil
		}
	}
	if len(s.escrows.moves) > 0 && q.escrow != nil && q.escrow.count == nil {
		n.takeMoves(s, &q)
	}
	return q
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
	x := newEscrow(op.Federation, boot, s.escrows.seq)
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
	b.Floor = q.floor()
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
