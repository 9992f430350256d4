package owner

import "github.com/keyward/keyward/handoff"

// ApplyStop rewrites the questions of one request for the second round of stop mode, given the answers to the first, in
// which all were asked as Peek. If any would go over, the others become Look, and are not charged; if one is over by a
// deny cache, it is not asked again and all others become Look.
func ApplyStop(qs []Request, peeked []Result) {
	over, cached := false, false
	for i := range qs {
		over = over || peeked[i].Over
		cached = cached || peeked[i].Authority == Cached
	}
	for i := range qs {
		if qs[i].Op == Take && (cached || over && !peeked[i].Over) {
			qs[i].Op = Read
		}
	}
}

// stopAll answers a request in stop mode. Both phases run under the locks of all shards involved, so no other request
// comes between them. As in envoyproxy/ratelimit every question is looked at as if it were the only one, and two on one
// key are charged one after the other.
func (n *Node) stopAll(now int64, serve bool, qs []Request, as []Result) {
	mask := n.shardMask(qs)
	n.lockAll(mask)
	defer n.unlockAll(mask)
	if !n.ownsAllLocked(now, serve, qs, as) {
		return
	}
	over := false
	for i := range qs {
		q := qs[i]
		if q.Op != Take {
			continue
		}
		q.Op = DryRun
		n.againLocked(now, serve, &q, &as[i])
		over = over || as[i].Over
	}
	for i := range qs {
		q := qs[i]
		if q.Op == Take && over && !as[i].Over {
			q.Op = Read
		}
		n.againLocked(now, serve, &q, &as[i])
	}
}

// againLocked answers q, of which this member decides, under the locks already held.
func (n *Node) againLocked(now int64, serve bool, q *Request, a *Result) {
	*a = Result{}
	s, h := n.shard(q.Key)
	n.takeLocked(s, h, now, q, serve, a)
}

// ownsAllLocked says whether this member decides all questions. If not, every answer is Ask, or comes from this member's
// share when it may not use whole limits and nobody asked it as the owner.
func (n *Node) ownsAllLocked(now int64, serve bool, qs []Request, as []Result) bool {
	all, fenced := true, false
	for i := range qs {
		s, h := n.shard(qs[i].Key)
		v := s.view
		as[i] = Result{Kind: Forward}
		if r, _, _ := n.authority(now, v); r == handoff.ExtentNone {
			fenced = true
			continue
		}
		e := s.counters.Owned.Find(h, qs[i].Key)
		hold := v.Ownership(qs[i].RingPos, e.OwnedEpoch(qs[i].RingPos))
		if as[i].Member = hold.Member; hold.State != handoff.OwnedElsewhere {
			as[i].Member = n.options.Self
		}
		all = all && hold.State == handoff.OwnedHere
	}
	if fenced {
		for i := range qs {
			as[i] = Result{Kind: Forward}
			if s, h := n.shard(qs[i].Key); !serve {
				n.shareLocked(s, h, now, &qs[i], &as[i])
			}
		}
	}
	return all && !fenced
}

// readAll answers a request of which a key is over by the deny cache: nothing is charged.
func (n *Node) readAll(now int64, qs []Request, as []Result) {
	for i := range qs {
		if as[i].Authority == Cached {
			continue
		}
		q := qs[i]
		if q.Op == Take {
			q.Op = Read
		}
		n.take(now, &q, &as[i])
	}
}
