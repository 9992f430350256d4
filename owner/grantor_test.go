package owner

import (
	"testing"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/lease/leasetest"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/ring"
)

// grantor is a Node as the suite for grantors sees it.
type grantor struct{ *Node }

func (g grantor) Healthy(now int64) bool {
	g.Tick(now)
	r, _, _ := g.authority(now, g.serial.view)
	return r == handoff.ExtentFull
}

func (g grantor) Lease(now int64, holder ring.ID, inst uint64, r *lease.GrantRequest) (lease.Grant, bool) {
	g.serial.peers[holder] = handoff.LivePeer{ID: holder, BootID: inst, State: handoff.Active, Weight: 1}
	fx := g.StepLease(now, holder, inst, &lease.Batch{Kind: lease.Ask, Requests: []lease.GrantRequest{*r}})
	for _, o := range fx.Leases {
		if o.Batch.Kind == lease.Lend && o.To == holder {
			return o.Batch.Grants[0], true
		}
	}
	return lease.Grant{}, false
}

func (g grantor) Charge(now int64, r *lease.GrantRequest, hits uint64) limit.Decision {
	q := Request{Key: r.Key, RingPos: r.Owner, Domain: r.Domain, Rule: r.Rule, Hits: hits}
	return take(g.Node, now, q).Decision
}

// The owner keeps to the contract of all grantors.
func TestNodeIsAGrantor(t *testing.T) {
	leasetest.Run(t, func() leasetest.Harness {
		return grantor{member(Options{Self: "a"}, leasetest.Start, "a")}
	})
}
