package rulecheck

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
)

// TestOutage computes the cost of outages by hand. The first row is the example of the design: 20 members that admit
// 100 hits per second each for five minutes admit 600,000.
func TestOutage(t *testing.T) {
	second := limit.Rule{Window: time.Second, Limit: 2000}
	bucket := limit.Rule{Window: time.Second, Limit: 100, Burst: 40, Algorithm: limit.TokenBucket}
	capped := config.Extension{Degraded: policy.FailOpen, LocalCap: 100}
	for _, row := range []struct {
		rule      limit.Rule
		extension config.Extension
		members   int
		outage    time.Duration
		policy    policy.Degraded
		over      uint64
		partial   uint64
		formula   string
		under     uint64
	}{
		{second, capped, 20, 5 * time.Minute, policy.FailOpen, 600_000, 2000, "N x local_cap x 300", 1900},
		{second, capped, 20, 5 * time.Minute, policy.LocalShare, 570_000, 1900, "Phi x 300", 1900},
		{second, capped, 20, 5 * time.Minute, policy.FailClosed, 1900, 0, "Phi", 2000},
		{second, config.Extension{}, 20, 5 * time.Minute, policy.FailOpen, 600_000, 2000, "L x 300", 1900},
		{second, config.Extension{}, 20, 1500 * time.Millisecond, policy.LocalShare, 3800, 1900, "Phi x 2", 1900},
		{limit.Rule{Window: 24 * time.Hour, Limit: 25}, config.Extension{}, 5, 5 * time.Minute, policy.LocalShare, 20, 20, "Phi x 1", 20},
		{limit.Rule{Window: time.Minute, Limit: 3}, config.Extension{}, 5, time.Hour, policy.FailOpen, 300, 5, "N x 60", 3},
		{bucket, capped, 4, time.Minute, policy.FailOpen, 24_400, 0, "N x local_cap x 1m0s/1s + N x local_cap", 105},
		{bucket, config.Extension{}, 4, time.Minute, policy.FailOpen, 6040, 0, "L x 1m0s/1s + b", 105},
		{bucket, config.Extension{}, 4, time.Minute, policy.LocalShare, 4530, 0, "Phi x 1m0s/1s + Phi of b", 105},
	} {
		r := config.RuleSpec{Limit: row.rule, Extension: row.extension}
		b := BoundsOf(&r, Conditions{Members: row.members, Partition: policy.PartShare, Outage: row.outage})
		for _, p := range b.Outage.Policies {
			if p.Current != (p.Policy == row.extension.Degraded.String()) {
				t.Errorf("%+v: current %+v", row, p)
			}
			if p.Policy != row.policy.String() {
				continue
			}
			if p.Over != row.over || p.Partial != row.partial || p.OverFormula != row.formula || p.Under != row.under {
				t.Errorf("%+v:\n%+v", row, p)
			}
		}
	}
	r := config.RuleSpec{Limit: second}
	if b := BoundsOf(&r, Conditions{Members: 1, Outage: time.Minute}); b.Outage != nil {
		t.Errorf("one member: %+v", b.Outage)
	}
}
