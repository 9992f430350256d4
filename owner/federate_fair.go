package owner

import (
	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner/internal/fair"
)

// divides reports whether the escrow divides q's limit between tenants. Without an escrow, the region's floor is divided
// as any limit of the cluster is.
func (q *poolOp) divides() bool { return q.escrow != nil && q.escrow.count == nil && q.Tenant != 0 }

// maxTenantRows is the most rows of tenants in all escrows. Further tenants of a key share one row.
const maxTenantRows = 131_072

// offer counts the hits of q as demand of the region, and of q's tenant.
func (n *Node) offer(q *poolOp) {
	x := q.escrow
	x.Offer(q.now, q.Request.Rule, q.settings(), q.Hits)
	if q.Tenant == 0 {
		return
	}
	rows := &n.federation.rows
	before := x.Escrow.TenantRows()
	x.Escrow.OfferTenant(q.now, q.Tenant, q.TenantWeight, q.Hits, rows.Load() < maxTenantRows)
	rows.Add(int64(x.Escrow.TenantRows() - before))
}

// decideByTenant decides q if its tenant may spend nothing now: the rest of the limit is left to other tenants, or more
// has to be borrowed. It returns false if floor and escrow decide q.
func (n *Node) decideByTenant(s *shard, q *poolOp, res *Result) bool {
	if !q.divides() || q.Op == Refund || q.Op == Read || q.Hits == 0 {
		return false
	}
	x := q.escrow
	if x.Escrow.DealDue(q.now) {
		x.Escrow.SetFloorLeft(s.floorLeft(q), q.link.isAway())
	}
	may := x.Escrow.TenantMay(q.now, q.Tenant)
	if may == federation.Admitted {
		return false
	}
	open := q.link.isAway() && q.Federation.Outage == federation.FailOpen
	if may == federation.Wait && !q.link.isAway() || open {
		n.decideWithoutPool(s, q, res)
		return true
	}
	q.report(res, Escrow, true)
	if room := limit.SaturatingAdd(x.Left(q.now), x.Rest(q.now)); room >= q.Hits {
		res.FairShare = true
		if q.charges() {
			s.counts.FairRefused += q.Hits
		}
	}
	return true
}

// floorLeft returns what is left of the region's floor. It changes nothing.
func (s *shard) floorLeft(q *poolOp) uint64 {
	if q.part.den != 0 {
		return 0
	}
	r, used := q.Request.Rule, uint64(0)
	r.Limit = q.floorLimit()
	if e := s.counters.Owned.Find(q.hash, q.Key); e != nil && s.counters.End(e, r) > q.now {
		s.counters.Load(e, r, &s.state)
		used = r.Used(&s.state, q.now)
	}
	return saturatingSub(uint64(r.Limit), used)
}

// recordTenant records the decision about q for the division between tenants. floor reports whether it came from the
// region's floor.
func (q *poolOp) recordTenant(res *Result, floor bool) {
	if !q.divides() {
		return
	}
	x := q.escrow
	if floor {
		x.Escrow.SetFloorLeft(q.left, q.link.isAway())
	}
	switch {
	case q.Op == Refund:
		x.Escrow.TenantRefunded(q.now, q.Tenant, q.Hits)
	case q.charges() && res.Kind == Decided && !res.Over:
		x.Escrow.TenantSpent(q.now, q.Tenant, q.Hits)
	}
	if !res.Over {
		res.Remaining = uint32(min(uint64(res.Remaining), x.Escrow.TenantLeft(q.Tenant)))
	}
}

// dealWaiting decides the requests that wait for an escrow again, when what it has is to be divided again.
func (n *Node) dealWaiting(s *shard, now int64, key Key, x *escrow, fx *Ready) {
	if x.count == nil && x.Escrow.TenantsWait() && x.Escrow.DealDue(now) {
		n.decideCoordinated(s, now, key, x, fx)
	}
}

// federatedTenants returns the tenants of an escrow.
func (x *escrow) federatedTenants(now int64) (all []Tenant) {
	if x.count != nil {
		return nil
	}
	for _, t := range x.Escrow.Tenants(now) {
		all = append(all, fair.Tenant{
			Digest: t.Tenant, Weight: t.Weight, Used: t.Got, Offered: t.Offered, Last: t.Last, Left: t.Left,
		})
	}
	return all
}
