package owner

import (
	"slices"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner/internal/counter"
)

// decideClosed admits this member's share of what is left of the limit, according to the newest state of the key that
// this member has. Then it refuses. Admitted hits are reported to the owner later, like those of the local share, which
// this member's hits never exceed.
func (n *Node) decideClosed(s *shard, op *shardOp, res *Result) {
	rule := op.Request.Rule
	op.now, op.table, op.rule = s.clock(op.now), counter.TableShare, s.localRule(rule, op.RingPos)
	res.Authority = Closed
	left, known := n.leftWithoutOwner(s, op)
	if !known {
		s.refuse(op, res)
		return
	}
	mine, part := s.usedWithoutOwner(op), s.view.LocalShare(left, op.RingPos)
	if op.charges() && limit.SaturatingAdd(mine, op.Hits) <= uint64(part) {
		n.admitClosed(s, op, part, res)
		return
	}
	op.rule = rule
	op.rule = op.flatRule()
	op.rule.Limit = part
	s.decidePart(op, mine, res)
}

// admitClosed decides op, for which there is room in part, this member's share of what is left, and charges it.
func (n *Node) admitClosed(s *shard, op *shardOp, part uint32, res *Result) {
	e := s.localEntry(op)
	if e == nil { // sketches do not report what they count
		s.refuse(op, res)
		return
	}
	if op.rule.Algorithm == limit.FixedWindow {
		op.rule.Limit = part
		s.decidePart(op, e.Admitted(), res)
		e.Charge(op.Hits)
	} else if s.chargeLocalState(op, e, res); res.Over {
		return
	}
	e.Admit(op.Hits)
	s.bounds[closedBound].push(op.now, s.counters.EndLocal(e, op.rule), e.Admitted())
	n.reportLater(s, op)
}

// usedWithoutOwner returns the hits of op's key that this member has admitted without the owner and that still count.
// op.rule is this member's part of the rule.
func (s *shard) usedWithoutOwner(op *shardOp) uint64 {
	e := s.counters.Share.Find(op.hash, op.Key)
	if e == nil || s.counters.EndLocal(e, op.rule) <= op.now {
		return 0
	}
	if op.rule.Algorithm == limit.FixedWindow {
		return e.Admitted()
	}
	s.counters.LoadLocal(e, op.rule, &s.state)
	return op.rule.Used(&s.state, op.now)
}

// leftWithoutOwner returns what is left of the limit of op's key, not counting the hits of usedWithoutOwner, according
// to the newest of the key's replica and the owner's last reply. It returns false if neither is new enough.
func (n *Node) leftWithoutOwner(s *shard, op *shardOp) (left uint32, known bool) {
	oldest := op.now - int64(n.options.SnapshotAge)
	reply := s.counters.Quota.Find(op.hash, op.Key)
	r := op.Request.Rule
	flat := r
	flat.Algorithm = limit.FixedWindow
	if reply != nil && (s.counters.EndQuota(reply, flat) <= op.now || reply.ObservedAt() < oldest) {
		reply = nil
	}
	if r.Algorithm != limit.FixedWindow { // after a window the share would be admitted again
		oldest = max(oldest, op.now-int64(r.Window))
	}
	at, current, has := n.replicaTime(s, op)
	if op.Strict && s.ownedHere(op) { // a hit that no other member confirms is not admitted
		return 0, true
	}
	if has && at >= oldest && (current || reply == nil || at >= reply.ObservedAt()) {
		if left, known = s.leftInReplica(op); known {
			return left, true
		}
	}
	if reply == nil {
		return 0, false
	}
	return min(r.Depth(), uint32(min(uint64(reply.Remaining())+reply.Included(), uint64(r.Depth())))), true
}

// ownedHere reports whether this member owns op's key. It decides as if it did not if a request was pending for too
// long.
func (s *shard) ownedHere(op *shardOp) bool {
	epoch := s.counters.Owned.Find(op.hash, op.Key).OwnedEpoch(op.RingPos)
	return s.view.Ownership(op.RingPos, epoch).State == handoff.OwnedHere
}

// replicaTime returns the time at which this member's replica of op's key, if there is one, had all of the owner's
// charges but U. current reports whether the replica still gets the owner's charges. It returns false for has if this
// member is neither the key's owner nor its successor, and was not the successor when the owner failed.
func (n *Node) replicaTime(s *shard, op *shardOp) (at int64, current, has bool) {
	r, self := s.view.Ring(), s.view.Self()
	if self < 0 {
		return 0, false, false
	}
	if o := r.Owner(op.RingPos); o != self {
		if o < 0 || r.Successor(op.RingPos) != self {
			return 0, false, false
		}
		at, has = n.serial.machine.LastContact(r.At(o).ID)
		return at, true, has
	}
	if s.ownedHere(op) {
		return op.now, true, true
	}
	for i := range s.view.changes {
		c := &s.view.changes[i]
		if o := c.ring.Owner(op.RingPos); !c.first && c.self >= 0 && o >= 0 && o != c.self {
			return c.at, false, c.crashed[o] && c.ring.Successor(op.RingPos) == c.self
		}
	}
	return 0, false, false
}

// leftInReplica returns what is left according to this member's replica of op's key, less U. It returns false if this
// member has no replica of the present window.
func (s *shard) leftInReplica(op *shardOp) (left uint32, known bool) {
	r := op.Request.Rule
	e := s.counters.Owned.Find(op.hash, op.Key)
	if e == nil || e.RingPos() != op.RingPos || s.counters.End(e, r) <= op.now {
		return 0, false
	}
	mine := s.usedWithoutOwner(op)
	s.counters.Load(e, r, &s.state)
	isOther := func(f limit.Slot) bool { return f.Writer != s.share() }
	if !slices.ContainsFunc(s.state.Slots, isOther) {
		return 0, false // only what this member has reported
	}
	all := r.Used(&s.state, op.now)
	if !e.Complete() {
		other := *op
		other.table, other.rule = counter.TableOwned, r
		all = limit.SaturatingAdd(all, s.sketches.Estimate(other.ref()))
	}
	reported := saturatingSub(mine, s.unreportedShare(op))
	all = limit.SaturatingAdd(saturatingSub(all, reported), tolerance(op.Request))
	return uint32(saturatingSub(uint64(r.Depth()), all)), true
}

// observe records the hits that remain after res, for the fail_closed policy.
func (n *Node) observe(s *shard, op *shardOp, res *Result) {
	t := &s.counters.Quota
	e := t.Find(op.hash, op.Key)
	if e == nil {
		if e = t.Insert(op.ref()); e == nil {
			return
		}
	}
	depth := op.rule.Depth()
	left := depth - uint32(min(op.countAfter(res), uint64(depth)))
	e.Observe(op.now, op.rule.End(op.rule.Index(op.now)), left, s.confirmedShare(op))
}

// confirmedShare returns the hits of usedWithoutOwner that another member has confirmed, so that the owner counts them.
func (s *shard) confirmedShare(op *shardOp) uint64 {
	if s.counters.Share.Len() == 0 {
		return 0
	}
	other := *op
	other.rule = s.localRule(op.rule, op.RingPos)
	mine := saturatingSub(s.usedWithoutOwner(&other), s.unreportedShare(op))
	if e := s.counters.Owned.Find(op.hash, op.Key); e != nil {
		if u := s.counters.Unreplicated(e); u != nil {
			mine = saturatingSub(mine, u.Unconfirmed())
		}
	}
	return mine
}
