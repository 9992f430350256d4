package owner

import (
	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner/internal/counter"
)

// A call that is all or nothing, and whose keys several members own, is a set: all owners charge its requests at once,
// each with a claim of claim.Set. If one of them exceeds its limit, the member that asked releases the claims of the others.
// These claims are not copied, so a release needs no second member: a new owner does not know them, and the hits stay
// charged. They lapse silently, because most sets are admitted.

// inSet reports whether op charges as part of a set.
func (op *shardOp) inSet() bool {
	return op.Hold != nil && op.Hold.Flags&claim.Set != 0 && op.charges()
}

// decideHold decides op, which has a Hold, unless it charges as part of a set: then it prepares res. It reports whether
// it has decided.
func (n *Node) decideHold(s *shard, op *shardOp, e *counter.Owned, res *Result) bool {
	switch {
	case op.Hold.Flags&claim.Set == 0:
		n.decideClaim(s, op, e, res)
	case op.Op == Release:
		n.releaseSet(s, op, e, res)
	default:
		n.readForSet(s, op, e, res)
		return false
	}
	return true
}

// readForSet sets what res needs of a Read in place of op.
func (n *Node) readForSet(s *shard, op *shardOp, e *counter.Owned, res *Result) {
	if !op.inSet() {
		return
	}
	q := *op.Request
	q.Op = Read
	read := *op
	read.Request = &q
	var without Result
	n.charge(s, &read, e, &without)
	res.ReadRemaining, res.ReadReset = without.Remaining, without.Reset
}

// claimForSet adds the claim of op, which was charged to e. Without room for it, the hits stay charged even if the set
// is refused.
func (s *shard) claimForSet(op *shardOp, e *counter.Owned) {
	h := op.Hold
	if h.TTL <= 0 || op.Hits > maxClaim {
		return
	}
	c := op.newClaim()
	c.At = s.chargedAt(op, e, s.bootID)
	c.SetFlags(claim.Set)
	if s.counters.Claims.Find(h.ID) != nil || s.counters.Claims.Add(&c, false) == nil {
		s.counts.Holds.SetsUnclaimed++
	}
}

// maxClaim is the most hits of a claim.
const maxClaim = 1<<32 - 1

// releaseSet gives back the hits of op's claim, if it exists, and forgets it. A repeated release has no effect.
func (n *Node) releaseSet(s *shard, op *shardOp, e *counter.Owned, res *Result) {
	t := &s.counters.Claims
	if c := t.Find(op.Hold.ID); c != nil && c.Flags()&claim.Set != 0 && c.Key == op.Key {
		if e != nil && s.counters.End(e, s.counters.Rule(e)) > op.now {
			back := n.refundClaim(s, op.now, e, c, s.bootID)
			s.refundFairly(op, back)
			if s.view.copies && back > 0 {
				n.trackUnreplicated(s, e, s.counters.Rule(e), 0)
			}
		}
		t.Remove(c)
	}
	n.reread(s, op, e, 0, res)
	s.counts.Decided[res.Authority]++
}

// decideWhole decides a call that is whole and of which this member decides all keys. The shards are locked.
func (n *Node) decideWhole(now int64, served bool, reqs []Request, results []Result) {
	for i := range reqs {
		req := reqs[i]
		if results[i] = (Result{}); req.Op != Take && req.Op != Reserve || n.repeatsLocked(now, &req) {
			continue
		}
		req.Op, req.Hits = DryRun, limit.SaturatingAdd(req.Hits, hitsOf(reqs[:i], req.Key))
		n.decideAgainLocked(now, served, &req, &results[i])
	}
	refused := Refused(reqs, results)
	for i := range reqs {
		req := reqs[i]
		over := results[i].Over
		switch {
		case req.Op != Take && req.Op != Reserve:
		case over && (refused || req.Veto != VetoNever):
			req.Op = DryRun
		case refused:
			req.Op = Read
		}
		n.decideAgainLocked(now, served, &req, &results[i])
		if req.Op == DryRun && over {
			results[i].Over, results[i].Remaining = true, 0
		}
	}
}

// hitsOf returns the hits that reqs charge to key.
func hitsOf(reqs []Request, key Key) (sum uint64) {
	for i := range reqs {
		if q := &reqs[i]; q.Key == key && (q.Op == Take || q.Op == Reserve) {
			sum = limit.SaturatingAdd(sum, q.Hits)
		}
	}
	return sum
}

// repeatsLocked reports whether req, which would make a hold, repeats the request that has made it. Its shard is locked.
func (n *Node) repeatsLocked(now int64, req *Request) bool {
	if req.Op != Reserve || req.Hold == nil {
		return false
	}
	s, _ := n.shard(req.Key)
	c := s.counters.Claims.Find(req.Hold.ID)
	return c != nil && c.State() == claim.Open && uint64(c.Amount) == req.Hits && now-c.Made() <= repeatWithin
}

// IsWhole reports whether the call with reqs is all or nothing, whatever stop mode is: because of a rule, or because it
// has several requests and one of them makes a hold.
func IsWhole(reqs []Request) bool {
	for i := range reqs {
		if reqs[i].Whole || reqs[i].Op == Reserve && len(reqs) > 1 {
			return true
		}
	}
	return false
}

// Refused reports whether a call that is all or nothing is refused, given the results of its requests.
func Refused(reqs []Request, results []Result) bool {
	together, exceeded := 0, 0
	for i := range reqs {
		q, over := &reqs[i], results[i].Over
		switch {
		case q.Op != Take && q.Op != Reserve || q.Veto == VetoNever:
		case q.Veto == VetoTogether:
			together++
			if over {
				exceeded++
			}
		case over:
			return true
		}
	}
	return together > 0 && together == exceeded
}
