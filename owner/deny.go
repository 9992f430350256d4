package owner

import (
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner/internal/counter"
)

// updateDenyCache updates the deny cache after an owner, this member or another, has decided op. A key above its limit
// stays there until its window ends; a refund changes that. As in envoyproxy/ratelimit, the first refusal adds the key.
func (n *Node) updateDenyCache(s *shard, op *shardOp, res *Result) {
	if n.options.DenyCache <= 0 || op.rule.Algorithm != limit.FixedWindow || op.Tenant != 0 || op.Hold != nil ||
		op.Request.Rule.Algorithm == limit.InFlight { // decided by a sketch, as a fixed window
		return // in other windows the count can fall before the end, other tenants may have room, and holds give back
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
	// The earlier end counts: the owner's clock may be ahead of this one.
	end := min(op.rule.End(op.rule.Index(op.now)), op.now+int64(res.Reset))
	e.Deny(counter.Denial{End: end, Epoch: s.view.epoch, Limit: op.rule.Limit, Count: op.countAfter(res)})
}

// denyCached refuses op if its key is in the deny cache, above a limit at least as high, for the present ring. It
// reports whether it has.
func (n *Node) denyCached(s *shard, op *shardOp, res *Result) bool {
	if n.options.DenyCache <= 0 || op.Tenant != 0 {
		return false
	}
	t := &s.counters.Deny
	if op.Op == Refund {
		t.Remove(op.hash, op.Key)
	}
	if op.Op != Take || op.Hold != nil {
		return false
	}
	now, most := s.clock(op.now), op.Request.Rule.Limit
	e := t.Find(op.hash, op.Key)
	// 0 hits exceed a limit only if the count is above it.
	if e == nil || e.Until() <= now || e.Epoch() != s.view.epoch || e.Limit() < most || op.Hits == 0 && e.Count() <= most {
		s.counts.DenyMisses++
		return false
	}
	s.counts.DenyHits++
	s.counts.Decided[Cached]++
	res.Kind, res.Path, res.Authority = Decided, Local, Cached
	res.Before, res.After, res.Over = uint64(most), limit.SaturatingAdd(uint64(most), op.Hits), true
	res.Reset = (time.Duration(e.Until()-now) + time.Second - 1).Truncate(time.Second)
	return true
}

// denyCachedAll clears the results and decides the requests whose keys are in the deny cache. It reports whether there
// are any.
func (n *Node) denyCachedAll(now int64, reqs []Request, results []Result) bool {
	clear(results)
	if n.options.DenyCache <= 0 {
		return false
	}
	found := false
	for i := range reqs {
		s, hash := n.shard(reqs[i].Key)
		s.mu.Lock()
		op := shardOp{Request: &reqs[i], now: now, hash: hash}
		found = n.denyCached(s, &op, &results[i]) || found
		s.mu.Unlock()
	}
	return found
}
