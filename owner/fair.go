package owner

import (
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner/internal/fair"
)

// Tenant describes a tenant of a key.
type Tenant = fair.Tenant

// decideFairly completes d, the decision about op by a counter: it refuses hits that the limit has room for, to leave
// them to other tenants, and sets how many hits are left for op's tenant. Without a tenant, d remains as it is. What a
// fair rule refuses is not charged, since it would take the room of other tenants.
func (s *shard) decideFairly(op *shardOp, d *limit.Decision) {
	if op.Tenant == 0 || op.Op == Refund {
		return
	}
	count := d.Before
	if op.Op == Read {
		count = d.After
	}
	x := op.demand(count)
	ok, left := false, uint64(0)
	switch {
	case op.charges():
		ok, left = s.fair.Admit(&x)
	case op.Op == Read:
		x.Hits = 0
		_, left = s.fair.Peek(&x)
		ok = !d.Over
	default:
		ok, left = s.fair.Peek(&x)
	}
	op.uncharged = !ok && op.charges()
	op.unfair = !ok && !d.Over
	d.Over = d.Over || !ok
	if d.Remaining = uint32(min(left, uint64(d.Remaining))); d.Over {
		d.Remaining = 0
	}
}

// refundFairly records that hits of op's tenant were refunded, or could not be charged.
func (s *shard) refundFairly(op *shardOp, hits uint64) {
	if op.Tenant != 0 {
		x := op.demand(0)
		x.Hits = hits
		s.fair.Refund(&x)
	}
}

// demand returns op as a request to package fair, for a counter with that count.
func (op *shardOp) demand(count uint64) fair.Demand {
	r := op.fairRule()
	window := r.Index(op.now)
	return fair.Demand{
		Key: op.Key, Tenant: op.Tenant, Weight: op.TenantWeight, Hits: op.Hits,
		Room: saturatingSub(uint64(op.rule.Depth()), count), Window: window, Width: r.End(0),
		Left: fair.LeftOf(op.now, r.End(window), r.End(0)), Rolls: r.Algorithm.Bucket(),
	}
}

// fairRule returns a rule with the windows in which op's limit is divided: those of its rule or, for a bucket, the time
// in which a full one drains.
func (op *shardOp) fairRule() limit.Rule {
	r := op.Request.Rule
	if r.Algorithm.Bucket() && r.Burst > 0 && r.Limit > 0 {
		r.Window = max(time.Millisecond, time.Duration(float64(r.Window)*float64(r.Burst)/float64(r.Limit)))
	}
	return r
}

// Tenants returns the tenants of req's key, if this member decides it by a fair rule: what they have used and asked for
// in the present window, and what they would be admitted now.
func (n *Node) Tenants(now int64, req *Request) []Tenant {
	s, hash := n.shard(req.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	op := shardOp{Request: req, now: s.clock(now), hash: hash, rule: req.Rule}
	if x := s.escrows.keys[req.Key]; x != nil {
		return x.federatedTenants(op.now)
	}
	count := uint64(0)
	if e := s.counters.Owned.Find(hash, req.Key); e != nil && s.counters.End(e, req.Rule) > op.now {
		s.counters.Load(e, req.Rule, &s.state)
		count = req.Rule.Used(&s.state, op.now)
	}
	x := op.demand(count)
	return s.fair.Tenants(&x)
}
