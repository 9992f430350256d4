package owner

import (
	"sync"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner/internal/counter"
)

// shard is a part of all tables, with its own lock. Everything in it is guarded by mu. No lock is taken under mu but
// other shards' in ascending order, and nothing is waited for.
type shard struct {
	mu             sync.Mutex
	now            int64
	view           *view
	bootID         uint64
	counters       counter.Shard
	state          limit.State       // scratch
	other          limit.State       // scratch
	sketches       *counter.Sketches // the Node's
	queue          queue             // keys of which others are to be told
	pending        pendingRequests
	hot            hotStats
	lent           map[Key]*lentKey   // of keys of which parts are lent
	pendingNotices []Key              // books whose holders are to be told something
	held           map[Key]*heldLease // leases of other members' keys
	leaseRequests  []Key              // those with something to say
	names          map[Key]*name
	counts         counts
	bounds         [boundKinds]expiringMax
	_              [128]byte // keeps neighbours' mutexes off this cache line
}

// share is the writer of what this instance admits under SHARE.
func (s *shard) share() uint64 { return s.bootID &^ 1 }

// clock is now, never before what the shard has seen: who was stopped between reading the clock and getting here must
// not count in a window that was closed meanwhile. A clock that was set back is told by Node.ClockStepped.
func (s *shard) clock(now int64) int64 {
	s.now = max(s.now, now)
	return s.now
}

// shardOp is one question on its way through a shard.
type shardOp struct {
	*Request
	now   int64
	hash  uint64
	table counter.Table
	rule  limit.Rule // the question's, with the limit that its authority allows
	// elsewhere are hits that count against the limit and stand elsewhere.
	elsewhere uint64
	// partial says that rule's limit is that of a part of the cluster, so that others have room for what it refuses.
	partial bool
	// uncharged says that h was refused and is not charged, see spares.
	uncharged bool
}

// charges says that h adds to its counter.
func (op *shardOp) charges() bool { return op.Op == Take && op.Hits > 0 }

// count answers h from entry e of its table, nil if there is none, or from the sketch when the key has no place there,
// and charges as h.Op says. It returns the entry charged, and whether the sketch answered.
func (s *shard) count(op *shardOp, e *counter.Owned, d *limit.Decision) (to *counter.Owned, overflow bool) {
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

// countWindow is count for the fixed window w of e, in which h counts; false if there is no room, and h was refused then.
func (s *shard) countWindow(op *shardOp, e *counter.Owned, w int64, d *limit.Decision) bool {
	st := s.counters.Tally(e, w)
	sum := st
	sum.Charged = limit.SaturatingAdd(st.Charged, op.elsewhere)
	back := sum.Refunded
	if sum = op.answer(sum, d); op.charges() && d.Over && (op.partial || s.hasLostState(e, w)) {
		op.uncharged = true // see spares
	} else if op.charges() {
		if !s.counters.Charge(e, op.rule, w, op.Hits) {
			s.counts.refused++
			op.overflow(d)
			return false
		}
	} else if back = sum.Refunded - back; back > 0 && !s.refundWindow(e, w, back) {
		*d = op.rule.PeekTally(st, op.now, 0)
		d.Over = false
	}
	return true
}

// hasLostState reports whether e holds charges for lost state in window w.
func (s *shard) hasLostState(e *counter.Owned, w int64) bool {
	_, _, found := s.counters.Recorded(e, w, limit.LostStateWriter)
	return found
}

// hasAssumedLoss reports whether e holds charges for a loss.
func (s *shard) hasAssumedLoss(e *counter.Owned) bool {
	return s.counters.HasWriter(e, limit.LostStateWriter)
}

// keepsUncharged reports whether h, which is over, is not charged to e: a part of the limit has no room for it, or an assumed loss has taken the room. Once the cluster
// is whole, or the loss turns out to be none, such a charge would go on to refuse others.
func (s *shard) keepsUncharged(op *shardOp, e *counter.Owned) bool {
	return op.partial || s.hasAssumedLoss(e)
}

// refundWindow records that hits of window w were refunded.
func (s *shard) refundWindow(e *counter.Owned, w int64, hits uint64) bool {
	if s.counters.Refund(e, w, hits) {
		return true
	}
	s.counts.refundsDropped++
	return false
}

// absorb makes h.extra, which this member admitted under SHARE, a part of e.
func (s *shard) absorb(op *shardOp, e *counter.Owned) {
	if !s.admit(op, e, op.Request.Rule, op.elsewhere) {
		return
	}
	op.elsewhere = 0
	if x := s.counters.Share.Find(op.hash, op.Key); x != nil {
		x.ClearUnreported()
	}
}

// admit charges hits to e as admitted under SHARE; false if there is no room.
func (s *shard) admit(op *shardOp, e *counter.Owned, r limit.Rule, hits uint64) bool {
	s.counters.Load(e, r, &s.state)
	r.Take(&s.state, op.now, s.share(), hits)
	r.Trim(&s.state, op.now)
	return s.counters.Store(e, r, &s.state)
}

// countState is count for what does not fit in an entry alone; false if there is no room, and h was refused then.
func (s *shard) countState(op *shardOp, e *counter.Owned, d *limit.Decision) bool {
	st := &s.state
	s.counters.Load(e, op.rule, st)
	op.decide(st, s.bootID, d)
	if op.charges() && d.Over && s.keepsUncharged(op, e) {
		op.uncharged = true
		return true
	}
	if op.Op != Refund && !op.charges() {
		return true
	}
	op.rule.Trim(st, op.now)
	if s.counters.Store(e, op.rule, st) {
		return true
	}
	if op.Op == Refund {
		s.counts.refundsDropped++
		s.counters.Load(e, op.rule, st)
		*d = op.rule.Peek(st, op.now, 0)
		d.Over = false
		return true
	}
	s.counts.refused++
	op.overflow(d)
	return false
}

// decide answers h on state st, and charges it to writer.
func (op *shardOp) decide(st *limit.State, writer uint64, d *limit.Decision) {
	switch op.Op {
	case Take:
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

// overflow makes d, an answer that cannot be kept in mind, a refusal.
func (op *shardOp) overflow(d *limit.Decision) {
	depth := uint64(op.rule.Depth())
	d.Before, d.Over, d.Remaining = max(d.Before, depth), true, 0
	d.After = limit.SaturatingAdd(d.Before, max(1, op.Hits))
}

// decideWithoutEntry answers h for a key that has no entry, and charges nothing.
func (s *shard) decideWithoutEntry(op *shardOp, d *limit.Decision) (overflow bool) {
	est := s.sketches.Estimate(op.ref())
	st := limit.Tally{Window: op.rule.Index(op.now), Charged: limit.SaturatingAdd(est, op.elsewhere)}
	r := op.flatRule()
	if op.Op == Refund && est > 0 {
		s.counts.refundsDropped++
		*d = r.PeekTally(st, op.now, 0)
		d.Over = false
		return true
	}
	if st.Charged == 0 && op.rule.Algorithm != limit.FixedWindow {
		s.state.TAT, s.state.Slots = 0, s.state.Slots[:0]
		op.decide(&s.state, s.bootID, d)
		return false
	}
	op.rule = r
	op.answer(st, d)
	return est > 0
}

// flatRule is h's rule as fixed windows that admit no more: the count is that of two windows, the limit not above the depth.
func (op *shardOp) flatRule() limit.Rule {
	r := op.rule
	r.Limit, r.Algorithm = min(r.Limit, r.Depth()), limit.FixedWindow
	return r
}

// answer decides h on state st.
func (op *shardOp) answer(st limit.Tally, d *limit.Decision) limit.Tally {
	switch op.Op {
	case Take:
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

// insert adds a counter of TableOwned, or returns nil.
func (s *shard) insert(op *shardOp, copied bool) *counter.Owned {
	return s.counters.Insert(op.ref(), copied, &s.state)
}

// ref names the counter of h.
func (op *shardOp) ref() counter.Ref {
	return counter.Ref{Key: op.Key, Hash: op.hash, RingPos: op.RingPos, Domain: op.Domain, Table: op.table, Now: op.now, Rule: op.rule, Full: op.Request.Rule}
}
