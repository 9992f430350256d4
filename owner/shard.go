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
	waits          waits
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
func (h *shardOp) charges() bool { return h.Op == Take && h.Hits > 0 }

// count answers h from entry e of its table, nil if there is none, or from the sketch when the key has no place there,
// and charges as h.Op says. It returns the entry charged, and whether the sketch answered.
func (s *shard) count(h *shardOp, e *counter.Owned, d *limit.Decision) (to *counter.Owned, overflow bool) {
	if e == nil && h.charges() {
		if e = s.insert(h, false); e == nil {
			s.countInSketch(h, d)
			return nil, true
		}
	}
	if e == nil || !h.charges() && s.counters.End(e, h.rule) <= h.now {
		return nil, s.decideWithoutEntry(h, d)
	}
	if h.elsewhere > 0 {
		s.absorb(h, e)
	}
	if h.rule.Algorithm != limit.FixedWindow {
		return e, !s.countState(h, e, d)
	}
	w := s.counters.Newest(e, h.rule)
	switch end := h.rule.End(w); {
	case end <= h.now:
		s.counters.Renew(e, h.rule, h.now)
		w = h.rule.Index(h.now)
	case end-h.rule.End(0) > h.now+int64(limit.ClockTolerance):
		return e, !s.countState(h, e, d)
	}
	return e, !s.countWindow(h, e, w, d)
}

// countWindow is count for the fixed window w of e, in which h counts; false if there is no room, and h was refused then.
func (s *shard) countWindow(h *shardOp, e *counter.Owned, w int64, d *limit.Decision) bool {
	st := s.counters.Tally(e, w)
	sum := st
	sum.Charged = limit.SaturatingAdd(st.Charged, h.elsewhere)
	back := sum.Refunded
	if sum = h.answer(sum, d); h.charges() && d.Over && (h.partial || s.hasLostState(e, w)) {
		h.uncharged = true // see spares
	} else if h.charges() {
		if !s.counters.Charge(e, h.rule, w, h.Hits) {
			s.counts.refused++
			h.overflow(d)
			return false
		}
	} else if back = sum.Refunded - back; back > 0 && !s.refundWindow(e, w, back) {
		*d = h.rule.PeekTally(st, h.now, 0)
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
func (s *shard) keepsUncharged(h *shardOp, e *counter.Owned) bool {
	return h.partial || s.hasAssumedLoss(e)
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
func (s *shard) absorb(h *shardOp, e *counter.Owned) {
	if !s.admit(h, e, h.Request.Rule, h.elsewhere) {
		return
	}
	h.elsewhere = 0
	if x := s.counters.Share.Find(h.hash, h.Key); x != nil {
		x.ClearUnreported()
	}
}

// admit charges hits to e as admitted under SHARE; false if there is no room.
func (s *shard) admit(h *shardOp, e *counter.Owned, r limit.Rule, hits uint64) bool {
	s.counters.Load(e, r, &s.state)
	r.Take(&s.state, h.now, s.share(), hits)
	r.Trim(&s.state, h.now)
	return s.counters.Store(e, r, &s.state)
}

// countState is count for what does not fit in an entry alone; false if there is no room, and h was refused then.
func (s *shard) countState(h *shardOp, e *counter.Owned, d *limit.Decision) bool {
	st := &s.state
	s.counters.Load(e, h.rule, st)
	h.decide(st, s.bootID, d)
	if h.charges() && d.Over && s.keepsUncharged(h, e) {
		h.uncharged = true
		return true
	}
	if h.Op != Refund && !h.charges() {
		return true
	}
	h.rule.Trim(st, h.now)
	if s.counters.Store(e, h.rule, st) {
		return true
	}
	if h.Op == Refund {
		s.counts.refundsDropped++
		s.counters.Load(e, h.rule, st)
		*d = h.rule.Peek(st, h.now, 0)
		d.Over = false
		return true
	}
	s.counts.refused++
	h.overflow(d)
	return false
}

// decide answers h on state st, and charges it to writer.
func (h *shardOp) decide(st *limit.State, writer uint64, d *limit.Decision) {
	switch h.Op {
	case Take:
		*d = h.rule.Take(st, h.now, writer, h.Hits)
	case Refund:
		*d = h.rule.Refund(st, h.now, writer, h.Hits)
	case Read:
		*d = h.rule.Peek(st, h.now, 0)
		d.Before = d.After - h.Hits
	default:
		*d = h.rule.Peek(st, h.now, h.Hits)
	}
}

// overflow makes d, an answer that cannot be kept in mind, a refusal.
func (h *shardOp) overflow(d *limit.Decision) {
	depth := uint64(h.rule.Depth())
	d.Before, d.Over, d.Remaining = max(d.Before, depth), true, 0
	d.After = limit.SaturatingAdd(d.Before, max(1, h.Hits))
}

// decideWithoutEntry answers h for a key that has no entry, and charges nothing.
func (s *shard) decideWithoutEntry(h *shardOp, d *limit.Decision) (overflow bool) {
	est := s.sketches.Estimate(h.ref())
	st := limit.Tally{Window: h.rule.Index(h.now), Charged: limit.SaturatingAdd(est, h.elsewhere)}
	r := h.flatRule()
	if h.Op == Refund && est > 0 {
		s.counts.refundsDropped++
		*d = r.PeekTally(st, h.now, 0)
		d.Over = false
		return true
	}
	if st.Charged == 0 && h.rule.Algorithm != limit.FixedWindow {
		s.state.TAT, s.state.Slots = 0, s.state.Slots[:0]
		h.decide(&s.state, s.bootID, d)
		return false
	}
	h.rule = r
	h.answer(st, d)
	return est > 0
}

// flatRule is h's rule as fixed windows that admit no more: the count is that of two windows, the limit not above the depth.
func (h *shardOp) flatRule() limit.Rule {
	r := h.rule
	r.Limit, r.Algorithm = min(r.Limit, r.Depth()), limit.FixedWindow
	return r
}

// answer decides h on state st.
func (h *shardOp) answer(st limit.Tally, d *limit.Decision) limit.Tally {
	switch h.Op {
	case Take:
		st, *d = h.rule.TakeTally(st, h.now, h.Hits)
	case Refund:
		st, *d = h.rule.RefundTally(st, h.now, h.Hits)
	case Read:
		*d = h.rule.PeekTally(st, h.now, 0)
		d.Before = d.After - h.Hits
		st = h.rule.TallyAt(st, h.now)
	default:
		*d = h.rule.PeekTally(st, h.now, h.Hits)
		st = h.rule.TallyAt(st, h.now)
	}
	return st
}

// insert adds a counter of TableOwned, or returns nil.
func (s *shard) insert(h *shardOp, copied bool) *counter.Owned {
	return s.counters.Insert(h.ref(), copied, &s.state)
}

// ref names the counter of h.
func (h *shardOp) ref() counter.Ref {
	return counter.Ref{Key: h.Key, Hash: h.hash, RingPos: h.RingPos, Domain: h.Domain, Table: h.table, Now: h.now, Rule: h.rule, Full: h.Request.Rule}
}
