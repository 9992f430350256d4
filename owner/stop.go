package owner

import "github.com/keyward/keyward/handoff"

// ApplyStop rewrites the questions of one request for the second round of stop mode, given the answers to the first, in
// which all were asked as Peek. If any would go over, the others become Look, and are not charged; if one is over by a
// deny cache, it is not asked again and all others become Look.
func ApplyStop(reqs []Request, peeked []Result) {
	over, cached := false, false
	for i := range reqs {
		over = over || peeked[i].Over
		cached = cached || peeked[i].Authority == Cached
	}
	for i := range reqs {
		if reqs[i].Op == Take && (cached || over && !peeked[i].Over) {
			reqs[i].Op = Read
		}
	}
}

// stopAll answers a request in stop mode. Both phases run under the locks of all shards involved, so no other request
// comes between them. As in envoyproxy/ratelimit every question is looked at as if it were the only one, and two on one
// key are charged one after the other.
func (n *Node) stopAll(now int64, serve bool, reqs []Request, results []Result) {
	mask := n.shardMask(reqs)
	n.lockAll(mask)
	defer n.unlockAll(mask)
	if !n.ownsAllLocked(now, serve, reqs, results) {
		return
	}
	over := false
	for i := range reqs {
		req := reqs[i]
		if req.Op != Take {
			continue
		}
		req.Op = DryRun
		n.againLocked(now, serve, &req, &results[i])
		over = over || results[i].Over
	}
	for i := range reqs {
		req := reqs[i]
		if req.Op == Take && over && !results[i].Over {
			req.Op = Read
		}
		n.againLocked(now, serve, &req, &results[i])
	}
}

// againLocked answers q, of which this member decides, under the locks already held.
func (n *Node) againLocked(now int64, serve bool, req *Request, res *Result) {
	*res = Result{}
	s, hash := n.shard(req.Key)
	n.takeLocked(s, hash, now, req, serve, res)
}

// ownsAllLocked says whether this member decides all questions. If not, every answer is Ask, or comes from this member's
// share when it may not use whole limits and nobody asked it as the owner.
func (n *Node) ownsAllLocked(now int64, serve bool, reqs []Request, results []Result) bool {
	all, fenced := true, false
	for i := range reqs {
		s, hash := n.shard(reqs[i].Key)
		v := s.view
		results[i] = Result{Kind: Forward}
		if r, _, _ := n.authority(now, v); r == handoff.ExtentNone {
			fenced = true
			continue
		}
		e := s.counters.Owned.Find(hash, reqs[i].Key)
		hold := v.Ownership(reqs[i].RingPos, e.OwnedEpoch(reqs[i].RingPos))
		if results[i].Member = hold.Member; hold.State != handoff.OwnedElsewhere {
			results[i].Member = n.options.Self
		}
		all = all && hold.State == handoff.OwnedHere
	}
	if fenced {
		for i := range reqs {
			results[i] = Result{Kind: Forward}
			if s, hash := n.shard(reqs[i].Key); !serve {
				n.shareLocked(s, hash, now, &reqs[i], &results[i])
			}
		}
	}
	return all && !fenced
}

// readAll answers a request of which a key is over by the deny cache: nothing is charged.
func (n *Node) readAll(now int64, reqs []Request, results []Result) {
	for i := range reqs {
		if results[i].Authority == Cached {
			continue
		}
		req := reqs[i]
		if req.Op == Take {
			req.Op = Read
		}
		n.take(now, &req, &results[i])
	}
}
