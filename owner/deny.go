package owner

import (
	"time"

	"github.com/keyward/keyward/internal/limit"
)

// updateDenyCache keeps the deny cache after a decision by the owner, here or elsewhere: a key that stands above its limit
// stays over until its window ends, a refund lifts that. As in envoyproxy/ratelimit it is the first answer over the
// limit that puts a key there.
func (n *Node) updateDenyCache(s *shard, h *shardOp, a *Result) {
	if n.options.DenyCache <= 0 || h.rule.Algorithm != limit.FixedWindow {
		return // only a window that is over stays over until it ends
	}
	t := &s.counters.Deny
	if h.Op == Refund {
		t.Remove(h.hash, h.Key)
		return
	}
	if !a.Over || a.Authority == Part || h.countAfter(a) < uint64(h.rule.Limit) {
		return
	}
	e := t.Find(h.hash, h.Key)
	if e == nil {
		if e = t.Insert(h.ref()); e == nil {
			return
		}
	}
	// By the clock that says less: the owner's may be ahead of this one.
	end := min(h.rule.End(h.rule.Index(h.now)), h.now+int64(a.Reset))
	e.Deny(end, s.view.epoch, h.rule.Limit, h.countAfter(a))
}

// denyCached answers q if the deny cache knows its key to be over a limit at least as high, on the present ring.
func (n *Node) denyCached(s *shard, hash uint64, now int64, q *Request, a *Result) bool {
	if n.options.DenyCache <= 0 {
		return false
	}
	t := &s.counters.Deny
	if q.Op == Refund {
		t.Remove(hash, q.Key)
	}
	if q.Op != Take {
		return false
	}
	now = s.clock(now)
	e := t.Find(hash, q.Key)
	// No hits are over only where the count is above the limit already, not at it.
	if e == nil || e.Until() <= now || e.Epoch() != s.view.epoch || e.Limit() < q.Rule.Limit || q.Hits == 0 && e.Count() <= q.Rule.Limit {
		s.counts.denyMisses++
		return false
	}
	s.counts.denyHits++
	s.counts.decided[Cached]++
	a.Kind, a.Path, a.Authority = Decided, Local, Cached
	a.Before, a.After, a.Over = uint64(q.Rule.Limit), limit.SaturatingAdd(uint64(q.Rule.Limit), q.Hits), true
	a.Reset = (time.Duration(e.Until()-now) + time.Second - 1).Truncate(time.Second)
	return true
}

// denyCachedAll empties the answers and fills in those of the deny cache, before anything is charged.
func (n *Node) denyCachedAll(now int64, qs []Request, as []Result) bool {
	clear(as)
	if n.options.DenyCache <= 0 {
		return false
	}
	any := false
	for i := range qs {
		s, h := n.shard(qs[i].Key)
		s.mu.Lock()
		any = n.denyCached(s, h, now, &qs[i], &as[i]) || any
		s.mu.Unlock()
	}
	return any
}
