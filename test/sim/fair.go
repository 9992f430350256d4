package sim

import (
	"math"

	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner"
)

// fairBugs are the bugs that show when rules divide their limits between tenants.
var fairBugs = map[string]bug{"charge what is left to other tenants": bugChargeUnfair}

// expandFair returns the options of a seed in which most of the rules that owners decide divide their limits between
// tenants. Every fourth seed has leases.
func expandFair(seed uint64) options {
	expand := expandBase
	if seed%4 == 0 {
		expand = expandLeases
	}
	o := expand(seed)
	o.Fair = true
	return o
}

// tenants is the number of tenants. The first one sends half of the requests.
const tenants = 5

// setTenant makes a request for k by r one of a tenant, if the rule is fair.
func (w *world) setTenant(req *owner.Request, k int, r *rule) {
	if !w.o.Fair || k%4 == 3 {
		return
	}
	tenant := uint64(0)
	if w.chance(0.5) {
		tenant = 1 + w.rnd.Uint64N(tenants-1)
	}
	if r.by == policy.ByOwner {
		req.Tenant, req.TenantWeight = tenant+1, uint32(1+tenant%3)
	}
}

// refusedUncharged reports whether v refuses a request of a tenant as the owner: such a request is not charged.
func (v *decision) refusedUncharged(q *request) bool {
	return q.req.Tenant != 0 && v.result.Over && v.result.Authority == owner.Full
}

// decidedFair checks a decision about a request of a tenant.
func (o *oracle) decidedFair(q *request, v *decision) {
	a := &v.result
	switch {
	case a.FairShare && (q.req.Tenant == 0 || !a.Over || a.Remaining != 0):
		o.w.fail("fair: #%d of tenant %d is refused for others, over %v, %d remaining", q.id, q.req.Tenant, a.Over,
			a.Remaining)
	case q.req.Tenant == 0 || q.req.Op != owner.Take:
	case a.Path == owner.Leased || a.Authority == owner.Cached:
		o.w.fail("fair: #%d of tenant %d was decided by a lease or the deny cache", q.id, q.req.Tenant)
	case a.FairShare:
		o.w.stats.count("fair: refused for other tenants")
	case !a.Over && a.Authority == owner.Full:
		o.w.stats.count("fair: admitted")
	}
}

// sabotageFair charges what m has refused to leave it to other tenants: it repeats the request without its tenant.
func (w *world) sabotageFair(m *member, q *owner.Request, a *owner.Result) {
	if w.bug != bugChargeUnfair || q.Op != owner.Take || !a.FairShare {
		return
	}
	more := *q
	more.Rule.Limit, more.Tenant, more.Waiter = math.MaxUint32, 0, new(int)
	m.node.Decide(m.clock(), &more)
}
