package owner

import (
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/limit"
)

// holding is what this member has of a limit that several regions share: a federation.Escrow, or with mechanism
// approximate a federation.Tally.
type holding interface {
	Decide(now int64, r limit.Rule, s federation.EscrowSettings, hits uint64) federation.Verdict
	Offer(now int64, r limit.Rule, s federation.EscrowSettings, hits uint64)
	AddWaiting(hits uint64)
	RemoveWaiting(hits uint64)
	TakeWaiting()
	Due(now int64, floor uint64, rtt time.Duration) bool
	Request(now int64, rtt time.Duration) federation.PoolRequest
	Accept(now int64, g *federation.PoolGrant, rtt time.Duration) bool
	Unanswered(now int64, rtt time.Duration) bool
	Release(now int64) (r federation.PoolRequest, ok bool)
	Expired(now int64) bool
	Left(now int64) uint64
	Rest(now int64) uint64
	Granted(now int64) uint64
	Snapshot(now int64) uint64
}

func newHolding(t *federation.RuleTerms, boot uint64) holding {
	if t.Store.Approximate {
		return federation.NewTally(boot)
	}
	return federation.NewEscrow(boot)
}

// serves reports whether x is what rules with those terms need, after their mechanism may have changed.
func (x *escrow) serves(t *federation.RuleTerms) bool {
	_, counts := x.holding.(*federation.Tally)
	return counts == t.Store.Approximate
}

// store returns a rule's settings of the store for one holder, which may leave its part of the slack unreported.
func (f *federated) store(t *federation.RuleTerms) federation.StoreTerms {
	s := t.Store
	s.Slack /= uint32(max(1, f.options.Holders, len(f.options.Weights)))
	return s
}
