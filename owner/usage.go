package owner

import "github.com/keyward/keyward/internal/limit"

// RecordedUsage returns the hits of req's key that this member has recorded in the current window: its counter or
// replica of the key, and what it has admitted without the owner and not reported. If this member is neither the owner
// nor its successor, that is only a part of the usage. Hits counted by sketches are not included.
func (n *Node) RecordedUsage(now int64, req *Request) (used uint64) {
	s, hash := n.shard(req.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	op := shardOp{Request: req, now: s.clock(now), hash: hash, rule: req.Rule}
	if e := s.counters.Owned.Find(hash, req.Key); e != nil && s.counters.End(e, req.Rule) > op.now {
		s.counters.Load(e, req.Rule, &s.state)
		used = req.Rule.Used(&s.state, op.now)
	}
	if e := s.counters.Share.Find(hash, req.Key); e != nil && s.counters.EndLocal(e, req.Rule) > op.now {
		used = limit.SaturatingAdd(used, e.Unreported())
	}
	return used
}
