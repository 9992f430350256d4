package owner

import (
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/limit"
)

// newEscrow returns the state of a key for a rule with those terms: an escrow, or with mechanism approximate a count. The
// methods below call the one that exists. An interface in their place would make requests escape to the heap.
// Its requests have numbers above seq.
func newEscrow(t *federation.RuleTerms, boot, seq uint64) *escrow {
	if t.Store.Approximate {
		x := federation.NewHolderCount(boot)
		x.After(seq)
		return &escrow{count: x}
	}
	x := federation.NewEscrow(boot)
	x.After(seq)
	return &escrow{Escrow: x}
}

// serves reports whether x fits rules with those terms. It does not after their mechanism has changed.
func (x *escrow) serves(t *federation.RuleTerms) bool { return (x.count != nil) == t.Store.Approximate }

func (x *escrow) Decide(now int64, r limit.Rule, s federation.EscrowSettings, hits uint64) federation.Verdict {
	if x.count != nil {
		return x.count.Decide(now, r, s, hits)
	}
	return x.Escrow.Decide(now, r, s, hits)
}

func (x *escrow) Offer(now int64, r limit.Rule, s federation.EscrowSettings, hits uint64) {
	if x.count != nil {
		x.count.Offer(now, r, s, hits)
		return
	}
	x.Escrow.Offer(now, r, s, hits)
}

func (x *escrow) AddWaiting(hits uint64) {
	if x.count != nil {
		x.count.AddWaiting(hits)
		return
	}
	x.Escrow.AddWaiting(hits)
}

func (x *escrow) RemoveWaiting(hits uint64) {
	if x.count != nil {
		x.count.RemoveWaiting(hits)
		return
	}
	x.Escrow.RemoveWaiting(hits)
}

func (x *escrow) RemoveTenantWaiting(tenant, hits uint64) {
	if x.count != nil {
		x.count.RemoveWaiting(hits)
		return
	}
	x.Escrow.RemoveTenantWaiting(tenant, hits)
}

func (x *escrow) TakeWaiting() {
	if x.count != nil {
		x.count.TakeWaiting()
		return
	}
	x.Escrow.TakeWaiting()
}

func (x *escrow) Due(now int64, floor uint64, rtt time.Duration) bool {
	if x.count != nil {
		return x.count.Due(now, floor, rtt)
	}
	return x.Escrow.Due(now, floor, rtt)
}

func (x *escrow) Request(now int64, rtt time.Duration) federation.PoolRequest {
	if x.count != nil {
		return x.count.Request(now, rtt)
	}
	return x.Escrow.Request(now, rtt)
}

func (x *escrow) Accept(now int64, g *federation.PoolGrant, rtt time.Duration) bool {
	if x.count != nil {
		return x.count.Accept(now, g, rtt)
	}
	return x.Escrow.Accept(now, g, rtt)
}

func (x *escrow) Unanswered(now int64, rtt time.Duration) bool {
	if x.count != nil {
		return x.count.Unanswered(now, rtt)
	}
	return x.Escrow.Unanswered(now, rtt)
}

func (x *escrow) Release(now int64) (federation.PoolRequest, bool) {
	if x.count != nil {
		return x.count.Release(now)
	}
	return x.Escrow.Release(now)
}

func (x *escrow) Expired(now int64) bool {
	if x.count != nil {
		return x.count.Expired(now)
	}
	return x.Escrow.Expired(now)
}

func (x *escrow) Left(now int64) uint64 {
	if x.count != nil {
		return x.count.Left(now)
	}
	return x.Escrow.Left(now)
}

func (x *escrow) Rest(now int64) uint64 {
	if x.count != nil {
		return x.count.Rest(now)
	}
	return x.Escrow.Rest(now)
}

func (x *escrow) Granted(now int64) uint64 {
	if x.count != nil {
		return x.count.Granted(now)
	}
	return x.Escrow.Granted(now)
}

func (x *escrow) Snapshot(now int64) uint64 {
	if x.count != nil {
		return x.count.Snapshot(now)
	}
	return x.Escrow.Snapshot(now)
}

// AddTenantWaiting records a waiting request of a tenant, which a count does not distinguish.
func (x *escrow) AddTenantWaiting(tenant, hits uint64) {
	if x.count != nil {
		x.count.AddWaiting(hits)
		return
	}
	x.Escrow.AddTenantWaiting(tenant, hits)
}
