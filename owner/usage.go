package owner

import (
	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner/internal/counter"
)

// RecordedUsage returns the hits of req's key that this member has recorded in the current window: its counter or
// replica of the key, and what it has admitted without the owner and not reported. If this member is neither the owner
// nor its successor, that is only a part of the usage. Hits counted by sketches are not included. With
// mechanism: static, it returns what this member has counted, and nothing of the other members.
func (n *Node) RecordedUsage(now int64, req *Request) (used uint64) {
	s, hash := n.shard(req.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	op := shardOp{Request: req, now: s.clock(now), hash: hash, rule: req.Rule}
	if req.Mechanism == policy.Static {
		return s.staticUsage(&op)
	}
	if e := s.counters.Owned.Find(hash, req.Key); e != nil && s.counters.End(e, req.Rule) > op.now {
		s.counters.Load(e, req.Rule, &s.state)
		used = req.Rule.Used(&s.state, op.now)
	}
	if e := s.counters.Share.Find(hash, req.Key); e != nil && s.counters.EndLocal(e, req.Rule) > op.now {
		used = limit.SaturatingAdd(used, e.Unreported())
	}
	return used
}

// staticUsage returns the hits of op, whose rule is static, that this member has counted.
func (s *shard) staticUsage(op *shardOp) uint64 {
	r := s.localRule(op.Request.Rule, op.RingPos)
	e := s.counters.Share.Find(op.hash, op.Key)
	switch {
	case e == nil:
		return s.estimateIn(op, counter.TableShare)
	case s.counters.EndLocal(e, r) <= op.now:
		return 0
	case r.Algorithm == limit.FixedWindow:
		return e.Charged()
	}
	s.counters.LoadLocal(e, r, &s.state)
	return r.Used(&s.state, op.now)
}

// EscrowBalance returns what this member has of the pool of key. It returns false if it has no escrow of that key.
func (n *Node) EscrowBalance(key Key) (b federation.EscrowBalance, ok bool) {
	s, _ := n.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.escrows.keys[key]
	if x == nil || x.count != nil {
		return b, false
	}
	return x.Escrow.Balance(), true
}
