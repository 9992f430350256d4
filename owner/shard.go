package owner

import (
	"sync"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/owner/internal/fair"
	"github.com/keyward/keyward/owner/internal/lending"
	"github.com/keyward/keyward/owner/internal/replica"
	"github.com/keyward/keyward/owner/internal/writeback"
)

// shard is one part of the keys, with its own lock: mu guards all fields. While it is held, only other shards' mutexes
// are taken, in ascending order, and nothing blocks.
type shard struct {
	mu       sync.Mutex
	now      int64
	view     *view
	bootID   uint64
	counters counter.Shard
	state    limit.State       // scratch
	other    limit.State       // scratch
	floor    Request           // scratch
	sketches *counter.Sketches // the Node's
	replicas replica.Backlog   // keys with charges to replicate
	writes   writeback.Queues  // keys that the journal has to write
	pending  pendingRequests
	leases   lending.Leases
	escrows  escrows                 // of federated keys that this member owns
	pools    pools                   // that this member lends to the regions of federations
	degraded map[Key]*degradedWindow // of keys with audit logs
	fair     fair.Divider            // of keys whose limits are divided between tenants
	budgets  budgetEvents            // of keys with holds
	counts   counts
	bounds   [boundKinds]expiringMax
	_        [128]byte // keeps the mutexes of adjacent shards off this cache line
}

// share returns the writer of the charges that this boot makes from its local share.
func (s *shard) share() uint64 { return s.bootID &^ 1 }

// clock returns now, but never a time before one that the shard has seen: a goroutine that was stopped after it read
// the clock must not count in a window that has been closed since. Node.ClockStepped reports a clock that was set
// back.
func (s *shard) clock(now int64) int64 {
	s.now = max(s.now, now)
	return s.now
}

// shardOp is one request while a shard decides it.
type shardOp struct {
	*Request
	now    int64
	hash   uint64 // of the key, in the tables
	served bool   // another member sent the request
	grant  bool   // a part of the limit that is lent
	table  counter.Table
	rule   limit.Rule // the request's rule, with the limit that the authority allows
	part   part       // of the limit, if the authority is Part
	// elsewhere is the number of hits that count against the limit and are not in the key's counter.
	elsewhere uint64
	// partial reports whether the limit of rule is only a part of the request's, so that other members may have room for
	// what it refuses.
	partial bool
	// uncharged reports whether the request was refused and not charged; see keepsUncharged and decideFairly.
	uncharged bool
	unfair    bool // the limit has room for the request, but leaves it to other tenants
}

// ref names the counter of op.
func (op *shardOp) ref() counter.Ref {
	return counter.Ref{
		Key: op.Key, Hash: op.hash, RingPos: op.RingPos, Domain: op.Domain, Table: op.table,
		Now: op.now, Rule: op.rule, Full: op.Request.Rule,
	}
}

// charges reports whether op adds hits to its counter.
func (op *shardOp) charges() bool { return (op.Op == Take || op.Op == Reserve) && op.Hits > 0 }

// insert adds a counter of TableOwned for op's key. It returns nil if there is no room.
func (s *shard) insert(op *shardOp, copied bool) *counter.Owned {
	return s.counters.Insert(op.ref(), copied, &s.state)
}

// count decides op by its counter e, which may be nil, or by the sketches if there is no room for a counter, and
// charges or refunds it. It returns the counter, and whether the sketches have decided.
func (s *shard) count(op *shardOp, e *counter.Owned, d *limit.Decision) (_ *counter.Owned, overflow bool) {
	if e == nil && op.charges() {
		if e = s.insert(op, false); e == nil {
			s.countInSketch(op, d)
			return nil, true
		}
	}
	if e == nil || !op.charges() && s.counters.End(e, op.rule) <= op.now {
		return nil, s.decideWithoutEntry(op, d)
	}
	if op.elsewhere > 0 {
		s.absorb(op, e)
	}
	if op.ahead() {
		return e, !s.countAhead(op, e, d)
	}
	if op.rule.Algorithm != limit.FixedWindow {
		return e, !s.countState(op, e, d)
	}
	w := s.counters.Newest(e, op.rule)
	switch end := op.rule.End(w); {
	case end <= op.now:
		s.counters.Renew(e, op.rule, op.now)
		w = op.rule.Index(op.now)
	case end-op.rule.End(0) > op.now+int64(limit.ClockTolerance):
		return e, !s.countState(op, e, d)
	}
	return e, !s.countWindow(op, e, w, d)
}

// countWindow is count for the fixed window w of e. It returns false if there is no room for the charge; then it has
// refused op.
func (s *shard) countWindow(op *shardOp, e *counter.Owned, w int64, d *limit.Decision) bool {
	st := s.counters.Tally(e, w)
	sum := st
	sum.Charged = limit.SaturatingAdd(st.Charged, op.elsewhere)
	refunded := sum.Refunded
	sum = op.decideTally(sum, d)
	s.decideFairly(op, d)
	if op.charges() && d.Over && (op.uncharged || op.partial || op.reserves() || s.hasLostState(e, w)) {
		op.uncharged = true // see keepsUncharged
	} else if op.charges() {
		if !s.counters.Charge(e, op.rule, w, op.Hits) {
			s.refuseForRoom(op, d)
			return false
		}
	} else if refunded = sum.Refunded - refunded; refunded > 0 && !s.counters.Refund(e, w, refunded) {
		s.counts.RefundsDropped++
		*d = op.rule.PeekTally(st, op.now, 0)
		d.Over = false
	} else if op.Op == Refund {
		s.refundFairly(op, refunded)
	}
	return true
}

// refuseForRoom changes d, the decision about op, to a refusal, because there is no room for the charge.
func (s *shard) refuseForRoom(op *shardOp, d *limit.Decision) {
	s.counts.Refused++
	if !d.Over {
		s.refundFairly(op, op.Hits)
	}
	op.overflow(d)
}

// keepsUncharged reports whether op, which exceeds the limit, is not charged to e: because it reserves, because its part
// of the limit has no room for it, because assumed lost state has taken the room, or because its algorithm charges no
// refused hits. When the partition ends, or the state turns out not to be lost, the charge would continue to refuse
// others.
func (s *shard) keepsUncharged(op *shardOp, e *counter.Owned) bool {
	return op.partial || op.reserves() || op.rule.Algorithm == limit.InFlight || s.hasAssumedLoss(e)
}

// reserves reports whether op is charged only if it is within the limit.
func (op *shardOp) reserves() bool { return op.Op == Reserve && !op.Hold.ChargeOver }

// absorb charges op.elsewhere, which this member admitted from its local share, to e.
func (s *shard) absorb(op *shardOp, e *counter.Owned) {
	if !s.chargeShare(op, e, op.elsewhere) {
		return
	}
	op.elsewhere = 0
	if x := s.counters.Share.Find(op.hash, op.Key); x != nil {
		x.ClearUnreported()
	}
}

// chargeShare charges hits to e as admitted from the local share. It returns false if there is no room.
func (s *shard) chargeShare(op *shardOp, e *counter.Owned, hits uint64) bool {
	return s.counters.ChargeShare(op.ref(), e, hits, &s.state)
}

// countState is count for any rule. It returns false if there is no room for the charge; then it has refused op.
func (s *shard) countState(op *shardOp, e *counter.Owned, d *limit.Decision) bool {
	st := &s.state
	s.counters.Load(e, op.rule, st)
	op.decideState(st, s.bootID, d)
	s.decideFairly(op, d)
	if op.charges() && d.Over && (op.uncharged || s.keepsUncharged(op, e)) {
		op.uncharged = true
		return true
	}
	if op.Op != Refund && !op.charges() {
		return true
	}
	op.rule.Trim(st, op.now)
	if s.counters.Store(e, op.rule, st) {
		if op.Op == Refund {
			s.refundFairly(op, saturatingSub(d.Before, d.After))
		}
		return true
	}
	if op.Op == Refund {
		s.counts.RefundsDropped++
		s.counters.Load(e, op.rule, st)
		*d = op.rule.Peek(st, op.now, 0)
		d.Over = false
		return true
	}
	s.refuseForRoom(op, d)
	return false
}

// ahead reports whether op is charged to the next window.
func (op *shardOp) ahead() bool { return op.Op == Reserve && op.Hold.Ahead }

// countAhead is count for the next window. The current one keeps its slots, so until the next one begins, e has both.
func (s *shard) countAhead(op *shardOp, e *counter.Owned, d *limit.Decision) bool {
	st := &s.state
	s.counters.Load(e, op.rule, st)
	*d = op.rule.TakeNext(st, op.now, s.bootID, op.Hits)
	if op.uncharged = d.Over; d.Over || s.counters.Store(e, op.rule, st) {
		return true
	}
	s.refuseForRoom(op, d)
	return false
}

// decideWithoutEntry decides op, whose key has no counter, and charges nothing.
func (s *shard) decideWithoutEntry(op *shardOp, d *limit.Decision) (overflow bool) {
	est := s.sketches.Estimate(op.ref())
	st := limit.Tally{Window: op.rule.Index(op.now), Charged: limit.SaturatingAdd(est, op.elsewhere)}
	r := op.flatRule()
	if op.Op == Refund && est > 0 {
		s.counts.RefundsDropped++
		*d = r.PeekTally(st, op.now, 0)
		d.Over = false
		return true
	}
	if st.Charged == 0 && op.rule.Algorithm != limit.FixedWindow {
		s.state.TAT, s.state.Slots = 0, s.state.Slots[:0]
		op.decideState(&s.state, s.bootID, d)
		s.decideFairly(op, d)
		return false
	}
	op.rule = r
	op.decideTally(st, d)
	s.decideFairly(op, d)
	return est > 0
}

// decideState decides op by st, and charges it to writer there.
func (op *shardOp) decideState(st *limit.State, writer uint64, d *limit.Decision) {
	switch op.Op {
	case Take, Reserve:
		*d = op.rule.Take(st, op.now, writer, op.Hits)
	case Refund:
		*d = op.rule.Refund(st, op.now, writer, op.Hits)
	case Read:
		*d = op.rule.Peek(st, op.now, 0)
		d.Before = d.After - op.Hits
	default:
		*d = op.rule.Peek(st, op.now, op.Hits)
	}
}

// decideTally decides op by st, the count of a fixed window. It returns the count after op.
func (op *shardOp) decideTally(st limit.Tally, d *limit.Decision) limit.Tally {
	switch op.Op {
	case Take, Reserve:
		st, *d = op.rule.TakeTally(st, op.now, op.Hits)
	case Refund:
		st, *d = op.rule.RefundTally(st, op.now, op.Hits)
	case Read:
		*d = op.rule.PeekTally(st, op.now, 0)
		d.Before = d.After - op.Hits
		st = op.rule.TallyAt(st, op.now)
	default:
		*d = op.rule.PeekTally(st, op.now, op.Hits)
		st = op.rule.TallyAt(st, op.now)
	}
	return st
}

// overflow changes d, whose charge finds no room, to a refusal.
func (op *shardOp) overflow(d *limit.Decision) {
	depth := uint64(op.rule.Depth())
	d.Before, d.Over, d.Remaining = max(d.Before, depth), true, 0
	d.After = limit.SaturatingAdd(d.Before, max(1, op.Hits))
}

// flatRule returns op's rule as a rule with fixed windows that admits no more. The count to use it with is that of two
// windows.
func (op *shardOp) flatRule() limit.Rule {
	r := op.rule
	r.Limit, r.Algorithm = min(r.Limit, r.Depth()), limit.FixedWindow
	return r
}
