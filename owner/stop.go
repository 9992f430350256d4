package owner

import (
	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/policy"
)

// ApplyStop changes the requests of one call for the second round of stop mode, given the results of the first round,
// in which all were sent as DryRun. If any request exceeds its limit, the others become Read, and are not charged. If
// one was refused by a deny cache, it is not sent again and all others become Read.
func ApplyStop(reqs []Request, dryRuns []Result) {
	over, cached := false, false
	for i := range reqs {
		over = over || dryRuns[i].Over
		cached = cached || dryRuns[i].Authority == Cached
	}
	for i := range reqs {
		if (reqs[i].Op == Take || reqs[i].Op == Reserve) && (cached || over && !dryRuns[i].Over) {
			reqs[i].Op = Read
		}
	}
}

// stopAll decides a call in stop mode. Both rounds run under the locks of all shards involved, so no other request
// comes between them. As in envoyproxy/ratelimit, the first round treats every request as if it were the only one, and
// two for one key are charged one after the other.
func (n *Node) stopAll(now int64, served bool, reqs []Request, results []Result) {
	mask := n.shardMask(reqs)
	n.lockAll(mask)
	defer n.unlockAll(mask)
	if !n.ownsAllLocked(now, served, reqs, results) {
		return
	}
	if IsWhole(reqs) {
		n.decideWhole(now, served, reqs, results)
		return
	}
	over := false
	for i := range reqs {
		req := reqs[i]
		if req.Op != Take && req.Op != Reserve {
			continue
		}
		req.Op = DryRun
		n.decideAgainLocked(now, served, &req, &results[i])
		over = over || results[i].Over
	}
	for i := range reqs {
		req := reqs[i]
		if (req.Op == Take || req.Op == Reserve) && over && !results[i].Over {
			req.Op = Read
		}
		n.decideAgainLocked(now, served, &req, &results[i])
	}
}

// decideAgainLocked decides req into res, which may hold an earlier result. The shard is locked.
func (n *Node) decideAgainLocked(now int64, served bool, req *Request, res *Result) {
	*res = Result{}
	s, hash := n.shard(req.Key)
	n.decideLocked(s, &shardOp{Request: req, now: now, hash: hash, served: served}, res)
}

// ownsAllLocked reports whether this member decides all requests. If not, every result is Forward, or comes from this
// member's local share if it may not decide as an owner and no other member has sent the requests.
func (n *Node) ownsAllLocked(now int64, served bool, reqs []Request, results []Result) bool {
	all, revoked := true, false
	for i := range reqs {
		s, hash := n.shard(reqs[i].Key)
		v := s.view
		results[i] = Result{Kind: Forward}
		if reqs[i].Mechanism == policy.Static {
			results[i].Member = n.options.Self
			continue
		}
		if extent, _, _ := n.authority(now, v, reqs[i].Partition); extent == handoff.ExtentNone {
			revoked = true
			continue
		}
		e := s.counters.Owned.Find(hash, reqs[i].Key)
		owner := v.Ownership(reqs[i].RingPos, e.OwnedEpoch(reqs[i].RingPos))
		if results[i].Member = owner.Member; owner.State != handoff.OwnedElsewhere {
			results[i].Member = n.options.Self
		}
		all = all && owner.State == handoff.OwnedHere
	}
	if revoked {
		for i := range reqs {
			results[i] = Result{Kind: Forward}
			s, hash := n.shard(reqs[i].Key)
			op := &shardOp{Request: &reqs[i], now: now, hash: hash}
			switch {
			case served:
			case reqs[i].Mechanism == policy.Static:
				n.decideStatic(s, op, &results[i])
			case reqs[i].Federation != nil:
				n.decideUnowned(s, op, &results[i])
			default:
				n.decideFromShare(s, op, &results[i])
			}
		}
	}
	return all && !revoked
}

// readAll decides a call of which a key is in the deny cache: nothing is charged.
func (n *Node) readAll(now int64, reqs []Request, results []Result) {
	for i := range reqs {
		if results[i].Authority == Cached {
			continue
		}
		req := reqs[i]
		if req.Op == Take || req.Op == Reserve {
			req.Op = Read
		}
		n.decideOne(now, false, &req, &results[i])
	}
}
