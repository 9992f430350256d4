package owner

import (
	"time"

	"github.com/keyward/keyward/internal/limit"
)

// updateDenyCache keeps the deny cache after a decision by the owner, here or elsewhere: a key that stands above its limit
// stays over until its window ends, a refund lifts that. As in envoyproxy/ratelimit it is the first answer over the
// limit that puts a key there.
func (n *Node) updateDenyCache(s *shard, op *shardOp, res *Result) {
	if n.options.DenyCache <= 0 || op.rule.Algorithm != limit.FixedWindow {
		return // only a window that is over stays over until it ends
	}
	t := &s.counters.Deny
	if op.Op == Refund {
		t.Remove(op.hash, op.Key)
		return
	}
	if !res.Over || res.Authority == Part || op.countAfter(res) < uint64(op.rule.Limit) {
		return
	}
	e := t.Find(op.hash, op.Key)
	if e == nil {
		if e = t.Insert(op.ref()); e == nil {
			return
		}
	}
	// By the clock that says less: the owner's may be ahead of this one.
	end := min(op.rule.End(op.rule.Index(op.now)), op.now+int64(res.Reset))
	e.Deny(end, s.view.epoch, op.rule.Limit, op.countAfter(res))
}

// denyCached answers q if the deny cache knows its key to be over a limit at least as high, on the present ring.
func (n *Node) denyCached(s *shard, hash uint64, now int64, req *Request, res *Result) bool {
	if n.options.DenyCache <= 0 {
		return false
	}
	t := &s.counters.Deny
	if req.Op == Refund {
		t.Remove(hash, req.Key)
	}
	if req.Op != Take {
		return false
	}
	now = s.clock(now)
	e := t.Find(hash, req.Key)
	// No hits are over only where the count is above the limit already, not at it.
	if e == nil || e.Until() <= now || e.Epoch() != s.view.epoch || e.Limit() < req.Rule.Limit || req.Hits == 0 && e.Count() <= req.Rule.Limit {
		s.counts.denyMisses++
		return false
	}
	s.counts.denyHits++
	s.counts.decided[Cached]++
	res.Kind, res.Path, res.Authority = Decided, Local, Cached
	res.Before, res.After, res.Over = uint64(req.Rule.Limit), limit.SaturatingAdd(uint64(req.Rule.Limit), req.Hits), true
	res.Reset = (time.Duration(e.Until()-now) + time.Second - 1).Truncate(time.Second)
	return true
}

// denyCachedAll empties the answers and fills in those of the deny cache, before anything is charged.
func (n *Node) denyCachedAll(now int64, reqs []Request, results []Result) bool {
	clear(results)
	if n.options.DenyCache <= 0 {
		return false
	}
	any := false
	for i := range reqs {
		s, hash := n.shard(reqs[i].Key)
		s.mu.Lock()
		any = n.denyCached(s, hash, now, &reqs[i], &results[i]) || any
		s.mu.Unlock()
	}
	return any
}
