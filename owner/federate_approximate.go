package owner

import (
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/limit"
)

// newEscrow returns the state of a key for a rule with those terms. It is an escrow, or a tally with mechanism approximate:
// the methods below call the one that there is. An interface would make requests escape to the heap.
func newEscrow(t *federation.RuleTerms, boot uint64) *escrow {
	if t.Store.Approximate {
		return &escrow{tally: federation.NewTally(boot)}
	}
	return &escrow{Escrow: federation.NewEscrow(boot)}
}

// serves reports whether x is what rules with those terms need, after their mechanism may have changed.
func (x *escrow) serves(t *federation.RuleTerms) bool { return (x.tally != nil) == t.Store.Approximate }

// store returns a rule's settings of the store for one holder, which may leave its part of the slack unreported.
func (f *federated) store(t *federation.RuleTerms) federation.StoreTerms {
	s := t.Store
	s.Slack /= uint32(max(1, f.options.Holders, len(f.options.Weights)))
	return s
}

func (x *escrow) Decide(now int64, r limit.Rule, s federation.EscrowSettings, hits uint64) federation.Verdict {
	if x.tally != nil {
		return x.tally.Decide(now, r, s, hits)
	}
	return x.Escrow.Decide(now, r, s, hits)
}

func (x *escrow) Offer(now int64, r limit.Rule, s federation.EscrowSettings, hits uint64) {
	if x.tally != nil {
		x.tally.Offer(now, r, s, hits)
		return
	}
	x.Escrow.Offer(now, r, s, hits)
}

func (x *escrow) AddWaiting(hits uint64) {
	if x.tally != nil {
		x.tally.AddWaiting(hits)
		return
	}
	x.Escrow.AddWaiting(hits)
}

func (x *escrow) RemoveWaiting(hits uint64) {
	if x.tally != nil {
		x.tally.RemoveWaiting(hits)
		return
	}
	x.Escrow.RemoveWaiting(hits)
}

func (x *escrow) TakeWaiting() {
	if x.tally != nil {
		x.tally.TakeWaiting()
		return
	}
	x.Escrow.TakeWaiting()
}

func (x *escrow) Due(now int64, floor uint64, rtt time.Duration) bool {
	if x.tally != nil {
		return x.tally.Due(now, floor, rtt)
	}
	return x.Escrow.Due(now, floor, rtt)
}

func (x *escrow) Request(now int64, rtt time.Duration) federation.PoolRequest {
	if x.tally != nil {
		return x.tally.Request(now, rtt)
	}
	return x.Escrow.Request(now, rtt)
}

func (x *escrow) Accept(now int64, g *federation.PoolGrant, rtt time.Duration) bool {
	if x.tally != nil {
		return x.tally.Accept(now, g, rtt)
	}
	return x.Escrow.Accept(now, g, rtt)
}

func (x *escrow) Unanswered(now int64, rtt time.Duration) bool {
	if x.tally != nil {
		return x.tally.Unanswered(now, rtt)
	}
	return x.Escrow.Unanswered(now, rtt)
}

func (x *escrow) Release(now int64) (federation.PoolRequest, bool) {
	if x.tally != nil {
		return x.tally.Release(now)
	}
	return x.Escrow.Release(now)
}

func (x *escrow) Expired(now int64) bool {
	if x.tally != nil {
		return x.tally.Expired(now)
	}
	return x.Escrow.Expired(now)
}

func (x *escrow) Left(now int64) uint64 {
	if x.tally != nil {
		return x.tally.Left(now)
	}
	return x.Escrow.Left(now)
}

func (x *escrow) Rest(now int64) uint64 {
	if x.tally != nil {
		return x.tally.Rest(now)
	}
	return x.Escrow.Rest(now)
}

func (x *escrow) Granted(now int64) uint64 {
	if x.tally != nil {
		return x.tally.Granted(now)
	}
	return x.Escrow.Granted(now)
}

func (x *escrow) Snapshot(now int64) uint64 {
	if x.tally != nil {
		return x.tally.Snapshot(now)
	}
	return x.Escrow.Snapshot(now)
}
