package owner

import (
	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner/internal/counter"
)

// authority returns to what extent this member may decide the keys it owns now, for a rule with that policy for
// partitions; num/den is its part of their limits. It may decide none when it has no ring, has not joined, or was cut
// off or stopped for so long that others may have taken over.
func (n *Node) authority(now int64, v *view, p policy.PartitionChoice) (e handoff.Extent, num, den uint32) {
	if v.sole && v.Joined() {
		return handoff.ExtentFull, 1, 1
	}
	if !v.Joined() || v.Ring().Len() == 0 || now-n.ticked.Load() > int64(n.options.Detection.OwnershipTTL()) {
		return handoff.ExtentNone, 0, 1
	}
	return v.Extent(now, p.Or(n.options.Policy))
}

// decideLocked decides op into res, which is empty. s, which is locked, is the shard of op's key. A request that
// another member sent is not decided from this member's local share.
func (n *Node) decideLocked(s *shard, op *shardOp, res *Result) {
	if op.Mechanism == policy.Static {
		n.decideStatic(s, op, res)
		return
	}
	v := s.view
	extent, num, den := n.authority(op.now, v, op.Partition)
	if extent == handoff.ExtentNone {
		// A lease stays valid, because its hits are charged.
		if res.Kind = Forward; !op.served && (!s.leases.HoldsAny() || op.Federation != nil || op.Hold != nil || !n.decideFromLease(s, op, true, res)) {
			n.decideAlone(s, op, res)
		}
		return
	}
	e := s.counters.Owned.Find(op.hash, op.Key)
	if e == nil || e.Epoch() != v.epoch || e.RingPos() != op.RingPos {
		switch owner := v.Ownership(op.RingPos, e.OwnedEpoch(op.RingPos)); {
		case owner.State == handoff.OwnedElsewhere && !op.served && op.Federation == nil && op.Hold == nil && n.decideFromLease(s, op, false, res):
			return
		case owner.State == handoff.OwnedElsewhere,
			owner.State == handoff.InHandoff && v.legacy[owner.Member]: // it releases no ownership; perhaps it has an older ring
			res.Kind, res.Member = Forward, owner.Member
			s.counts.Forwarded++
			return
		case owner.State == handoff.InHandoff:
			n.awaitOwnership(s, op, owner.Member, res)
			return
		}
	}
	if extent != handoff.ExtentFull {
		op.part = part{num, den}
	}
	n.decideOwned(s, op, e, res)
}

// decideAlone decides op while this member has no authority: from its local share, but rules that fail closed and are in
// the journal admit nothing before the member has joined, because journals may not be loaded yet.
func (n *Node) decideAlone(s *shard, op *shardOp, res *Result) {
	if op.Op > Reserve { // only an owner can settle
		return
	}
	if op.Federation != nil {
		n.decideUnowned(s, op, res)
		return
	}
	if op.Degraded == policy.FailClosed && !s.view.Joined() && n.journals(op.Request) {
		n.decideClosed(s, op, res)
		return
	}
	n.decideFromShare(s, op, res)
}

// part is the part of a limit that a member may use: num/den, or all of it if den is 0.
type part struct{ num, den uint32 }

func (p part) of(x uint32) uint32 {
	if p.den == 0 {
		return x
	}
	return uint32(uint64(x) * uint64(p.num) / uint64(p.den))
}

// partialLimits returns the limit and burst of a part of rule r. The burst is not more than what drains from the part
// in the time in which the full bucket drains, because charges by the full rule are stored as nanoseconds. If nothing
// is left of the limit or the burst, the limit is 0: a burst of 0 would be equal to the limit.
func partialLimits(r limit.Rule, limit, burst uint32) (uint32, uint32) {
	if !r.Algorithm.Bucket() || limit == 0 {
		return limit, 0
	}
	if r.Burst == 0 {
		burst = limit
	}
	width := uint64(r.End(0))
	full := uint64(r.Depth()) * counter.Drain(width, r.Limit)
	if burst = uint32(min(uint64(burst), full/counter.Drain(width, limit))); burst == 0 {
		return 0, 0
	}
	return limit, burst
}

// decideOwned decides op, whose key this member owns. e is the key's counter, or nil.
func (n *Node) decideOwned(s *shard, op *shardOp, e *counter.Owned, res *Result) {
	if op.Federation != nil {
		n.decideFederated(s, op, e, res)
		return
	}
	op.now, op.table, op.rule = s.clock(op.now), counter.TableOwned, op.Request.Rule
	if op.part.den != 0 && op.Op != Refund { // hits charged by the full rule are refunded by it
		op.partial = true
		op.rule.Limit, op.rule.Burst = partialLimits(op.rule, op.part.of(op.rule.Limit), op.part.of(op.rule.Burst))
	}
	if op.Hold != nil && op.Op != DryRun && op.Op != Read && n.decideHold(s, op, e, res) {
		return
	}
	e, overflow := n.charge(s, op, e, res)
	s.counts.Decided[res.Authority]++
	n.updateDenyCache(s, op, res)
	reads := op.Op == Read || op.Op == DryRun
	if reads && s.counters.Claims.Len() > 0 {
		held := s.counters.Claims.Totals(op.Key)
		res.Holds, res.Held = held.Open, held.Held
	}
	if res.FairShare = op.unfair; e != nil && op.Tenant == 0 { // what is lent could not be divided between tenants
		s.noteHot(op, e, res)
	}
	if op.inSet() && (!res.Over || op.Hold.ChargeOver) && !overflow && !op.uncharged && e != nil {
		s.claimForSet(op, e)
	}
	if (s.view.copies || n.options.DataWindow > 0) && !reads && !overflow && !op.uncharged && e != nil {
		n.awaitConfirmation(s, op, e, res)
	}
}

// noteHot records op, which was charged to e, for the detection of hot keys, and for the holders of leases.
func (s *shard) noteHot(op *shardOp, e *counter.Owned, res *Result) {
	s.leases.RecordHit(op.now, e, op.HotFactor)
	res.Hot = s.leases.IsHot(e, op.RingPos)
	if s.leases.LendsAny() {
		s.updateHolders(op, e, res)
	}
}

// charge decides op, whose key this member owns, and charges it to e, or to a counter that it adds. It returns the
// counter, and whether a sketch has counted op because there was no room for one.
func (n *Node) charge(s *shard, op *shardOp, e *counter.Owned, res *Result) (_ *counter.Owned, overflow bool) {
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
		if op.Audit {
			s.auditTakeover(op, e)
		}
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
	case op.part.den != 0:
		res.Authority = Part
		scaleToFull(op, res)
	}
	return e, overflow
}

// markOwned records that this member decides the key of e.
func (s *shard) markOwned(op *shardOp, e *counter.Owned) {
	e.MarkOwned(op.RingPos, s.view.epoch, op.Request.Rule.Limit)
	s.counters.SetRule(e, op.Request.Rule)
	if !s.counters.SetAudited(e, op.Audit) {
		s.leases.LoseAudit()
	}
	s.counters.SetVolatile(e, op.Volatile)
	s.counters.Owned.Adopt(e)
}
