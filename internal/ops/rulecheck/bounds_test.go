package rulecheck

import (
	"slices"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
)

// bound finds an event by the beginning of its name.
func bound(t *testing.T, b RuleBounds, event string) Bound {
	t.Helper()
	i := slices.IndexFunc(b.Bounds, func(x Bound) bool { return len(x.Event) >= len(event) && x.Event[:len(event)] == event })
	if i < 0 {
		t.Fatalf("no event %q", event)
	}
	return b.Bounds[i]
}

func TestBounds(t *testing.T) {
	window := limit.Rule{Window: time.Minute, Limit: 1000}
	quota := limit.Rule{Window: 720 * time.Hour, Limit: 10000}
	slow := limit.Rule{Window: 720 * time.Hour, Limit: 10000, Burst: 25, Algorithm: limit.LeakyBucket}
	token := limit.Rule{Window: time.Minute, Limit: 600, Burst: 50, Algorithm: limit.TokenBucket}
	drifting := config.Extension{Mechanism: policy.Approximate, Epsilon: 0.02, Lease: &lease.Terms{Slack: 20}}
	for _, row := range []struct {
		rule        limit.Rule
		x           config.Extension
		c           Conditions
		event       string
		over, under uint64
		is          string
	}{
		{window, config.Extension{}, Conditions{Members: 10, Partition: policy.PartShare}, "nothing", 0, 0, "0"},
		{window, config.Extension{}, Conditions{Members: 10, Partition: policy.PartShare}, "join", 0, 0, "0"},
		{window, config.Extension{}, Conditions{Members: 10, Partition: policy.PartShare}, "the owner crashes", 10 + 900, 900, "U + Phi"},
		{window, config.Extension{Strict: true}, Conditions{Members: 10, Partition: policy.PartShare}, "the owner crashes", 900, 900, "U + Phi"},
		{window, config.Extension{}, Conditions{Members: 10, Partition: policy.PartShare, Rate: 500}, "the owner pauses", 10 + 900 + 6, 900, "U + Phi + rate x 12ms"},
		{window, config.Extension{}, Conditions{Members: 10, Partition: policy.PartShare, Rate: 500}, "the owner's machine is migrated", 10 + 900 + 750, 900, "U + Phi + rate x 1.5s"},
		{window, config.Extension{Strict: true}, Conditions{Members: 10, Partition: policy.PartShare, Rate: 1e9}, "the owner's machine is migrated", 900 + 1000, 900, "U + Phi + rate x 1.5s"},
		{window, config.Extension{}, Conditions{Members: 10, Partition: policy.PartShare, Rate: 500}, "the cluster is partitioned", 100 + 10 + 900 + 750, 900, "L x f/N + U + Phi + rate x 1.5s"},
		{window, config.Extension{}, Conditions{Members: 10, Partition: policy.PartShare, Rate: 1e9}, "the cluster is partitioned", 100 + 10 + 900 + 1000, 900, "L x f/N + U + Phi + rate x 1.5s"},
		{window, config.Extension{}, Conditions{Members: 2, Partition: policy.PartShare}, "the cluster is partitioned", 10 + 500, 500, "L x f/N + U + Phi + rate x 1.5s"},
		{window, config.Extension{}, Conditions{Members: 10, Partition: policy.PartAvailable}, "the cluster is partitioned", 1000 + 900, 0, "L + Phi"},
		{window, config.Extension{}, Conditions{Members: 10, Partition: policy.PartQuorum}, "the cluster is partitioned", 10 + 900, 1000, "U + Phi + rate x 1.5s"},
		{window, config.Extension{}, Conditions{Members: 10, Partition: policy.PartShare}, "owner and successor", 1000 + 900, 1000, "L x left/W + Phi"},
		{window, config.Extension{}, Conditions{Members: 10, Partition: policy.PartShare}, "an unresponsive owner", 900, 900, "Phi"},
		{window, config.Extension{}, Conditions{Members: 10, Partition: policy.PartShare}, "all members", 1000, 0, "L"},
		{window, config.Extension{}, Conditions{Members: 10, Partition: policy.PartShare}, "m separate clusters", 1000, 0, "(m - 1) x L"},
		{window, config.Extension{Degraded: policy.FailClosed}, Conditions{Members: 10, Partition: policy.PartShare}, "each window", 900, 1000, "Phi"},
		{window, config.Extension{Degraded: policy.FailOpen}, Conditions{Members: 10, Partition: policy.PartShare}, "each window", 1000, 900, "open"},
		{window, config.Extension{Degraded: policy.FailOpen, LocalCap: 7}, Conditions{Members: 10, Partition: policy.PartShare}, "each window", 70, 993, "open"},
		{window, config.Extension{Degraded: policy.FailOpen, LocalCap: 7}, Conditions{Members: 10, Partition: policy.PartShare}, "the owner crashes", 10 + 900 + 70, 993, "U + Phi + open"},
		{limit.Rule{Window: time.Minute, Limit: 3}, config.Extension{}, Conditions{Members: 5, Partition: policy.PartShare}, "the owner crashes", 1 + 3, 3, "U + Phi"},
		{limit.Rule{Window: time.Minute}, config.Extension{}, Conditions{Members: 5, Partition: policy.PartShare}, "the cluster is partitioned", 0, 0, "L x f/N + U + Phi"},
		{limit.Rule{Window: time.Second, Limit: 100, Algorithm: limit.SlidingLog}, config.Extension{}, Conditions{Members: 4, Partition: policy.PartShare}, "join", 25, 0, "S"},
		{limit.Rule{Window: time.Millisecond, Limit: 100, Algorithm: limit.SlidingWindow}, config.Extension{}, Conditions{Members: 4, Partition: policy.PartShare}, "join", 100, 0, "S"},
		{token, config.Extension{}, Conditions{Members: 5, Partition: policy.PartShare}, "the owner crashes", 6 + (480 + 40) + 3, 520, "U + Phi + S"},
		{token, config.Extension{}, Conditions{Members: 5, Partition: policy.PartShare}, "owner and successor", 520 + 3, 50, "Phi + S"},
		{token, config.Extension{}, Conditions{Members: 5, Partition: policy.PartShare}, "all members", 50, 0, "b"},
		{token, config.Extension{}, Conditions{Members: 5, Partition: policy.PartAvailable}, "the cluster is partitioned", 650 + 520 + 3, 0, "(b + L) + Phi + S"},
		{token, config.Extension{Degraded: policy.FailOpen, LocalCap: 10}, Conditions{Members: 5, Partition: policy.PartShare}, "each window", 5 * 20, 630, "open"},
		{token, config.Extension{Degraded: policy.FailOpen}, Conditions{Members: 5, Partition: policy.PartShare}, "each window", 650, 520, "open"},
		{window, config.Extension{}, Conditions{Members: 10, Partition: policy.PartShare}, "a key is leased", 0, 50, "0"},
		{window, config.Extension{}, Conditions{Members: 10, Partition: policy.PartShare}, "a holder of a leased key fails", 0, 50, "0"},
		{window, config.Extension{Mechanism: policy.ByLease, Lease: &lease.Terms{Reclaim: true}}, Conditions{Members: 10, Partition: policy.PartShare}, "a holder of a leased key fails", 50, 50, "lent"},
		{window, config.Extension{Mechanism: policy.ByLease, Lease: &lease.Terms{ReclaimCrash: true}}, Conditions{Members: 10, Partition: policy.PartShare}, "a holder of a leased key fails", 50, 50, "lent"},
		{token, config.Extension{Lease: &lease.Terms{Reclaim: true}}, Conditions{Members: 5, Partition: policy.PartShare}, "a holder of a leased key fails", 0, 2, "0"},
		{limit.Rule{Window: time.Second, Limit: 600, Burst: 50, Algorithm: limit.TokenBucket}, config.Extension{}, Conditions{Members: 5, Partition: policy.PartShare}, "a key is leased", 0, 50, "0"},
		{window, config.Extension{Partition: policy.Choose(policy.PartQuorum)}, Conditions{Members: 10, Partition: policy.PartShare}, "the cluster is partitioned (quorum)", 10 + 900, 1000, "U + Phi + rate x 1.5s"},
		{window, config.Extension{Mechanism: policy.Static}, Conditions{Members: 10}, "nothing", 0, 900, "0"},
		{window, config.Extension{Mechanism: policy.Static}, Conditions{Members: 1}, "nothing", 0, 0, "0"},
		{window, config.Extension{Mechanism: policy.Static}, Conditions{Members: 10}, "one member joins", 100 + 10, 900, "L/N + N"},
		{window, config.Extension{Mechanism: policy.Static}, Conditions{Members: 1}, "one member joins", 1000, 0, "L/N + N"},
		{window, config.Extension{Mechanism: policy.Static}, Conditions{Members: 10}, "all members restart one", 1223 + 20, 0, "L x (N + 1)/(N - 1) + 2 N"},
		{window, config.Extension{Mechanism: policy.Static}, Conditions{Members: 10}, "the cluster is partitioned", 1000, 0, "L"},
		{token, config.Extension{Mechanism: policy.Static, Degraded: policy.FailClosed}, Conditions{Members: 5}, "one member joins", 130 + 5, 520, "(b + L)/N + N"},
		{window, drifting, Conditions{Members: 10, Partition: policy.PartShare}, "nothing", 20, 0, "E"},
		{window, drifting, Conditions{Members: 1, Partition: policy.PartShare}, "nothing", 0, 0, "0"},
		{window, drifting, Conditions{Members: 10, Partition: policy.PartShare}, "a member that counts", 22, 0, "E/N + E"},
		{window, drifting, Conditions{Members: 10, Partition: policy.PartShare}, "the owner crashes", 10 + 900 + 20, 900, "U + Phi + E"},
		{window, drifting, Conditions{Members: 10, Partition: policy.PartAvailable}, "the cluster is partitioned", 1000 + 900 + 40, 0, "L + Phi + 2 E"},
		{window, drifting, Conditions{Members: 10, Partition: policy.PartShare}, "all members", 1040, 0, "L + 2 E"},
		{quota, config.Extension{}, Conditions{Members: 5, DataWindow: time.Hour}, "all members are killed", 100 + 8000, 500, "U + Phi + rate x 200ms"},
		{quota, config.Extension{}, Conditions{Members: 5, DataWindow: time.Hour, Rate: 1000}, "all members are killed", 100 + 8000 + 200, 500, "U + Phi + rate x 200ms"},
		{quota, config.Extension{Strict: true}, Conditions{Members: 5, DataWindow: time.Hour}, "all members are killed", 8000, 100 + 500, "Phi"},
		{quota, config.Extension{}, Conditions{Members: 1, DataWindow: time.Hour}, "all members are killed", 100, 0, "U + rate x 200ms"},
		{quota, config.Extension{Strict: true}, Conditions{Members: 1, DataWindow: time.Hour}, "all members are killed", 0, 100, "0"},
		{quota, config.Extension{}, Conditions{Members: 5, DataWindow: time.Hour}, "the same, until", 8000, 8000, "Phi"},
		{quota, config.Extension{Degraded: policy.FailClosed}, Conditions{Members: 5, DataWindow: time.Hour}, "the same, until", 8000, 10000, "Phi"},
		{quota, config.Extension{}, Conditions{Members: 5, DataWindow: time.Hour}, "the same, and one volume", 200 + 8000, 500, "2U + Phi + rate x 200ms"},
		{quota, config.Extension{Strict: true}, Conditions{Members: 5, DataWindow: time.Hour}, "the same, and one volume", 100 + 8000, 100 + 500, "U + Phi + rate x 200ms"},
		{quota, config.Extension{}, Conditions{Members: 5, DataWindow: time.Hour}, "the same, and the volumes", 10000, 0, "L"},
		{quota, config.Extension{}, Conditions{Members: 5, DataWindow: time.Hour}, "all members are stopped", 8000, 500, "Phi"},
		{quota, config.Extension{}, Conditions{Members: 5, DataWindow: 31 * 24 * time.Hour}, "all members restart (not in the journal: the window is 720h0m0s)", 10000, 0, "L"},
		{quota, config.Extension{Volatile: true}, Conditions{Members: 5, DataWindow: time.Hour}, "all members restart (not in the journal: durability: memory)", 10000, 0, "L"},
		{quota, config.Extension{Mechanism: policy.Static}, Conditions{Members: 5, DataWindow: time.Hour}, "all members restart (not in the journal: mechanism: static)", 10000, 0, "L"},
		{slow, config.Extension{Strict: true}, Conditions{Members: 5, DataWindow: time.Hour}, "all members are killed", 8020 + 1, 0, "Phi + S"},
		{slow, config.Extension{}, Conditions{Members: 5, DataWindow: time.Hour}, "the same, and the volumes", 25, 0, "b"},
		{slow, config.Extension{}, Conditions{Members: 5, DataWindow: 2 * time.Hour}, "all members restart (not in the journal: the bucket fills in 1h48m0s)", 25, 0, "b"},
	} {
		r := config.RuleSpec{Limit: row.rule, Extension: row.x}
		got := bound(t, BoundsOf(&r, row.c), row.event)
		if got.Over != row.over || got.Under != row.under || got.OverFormula != row.is {
			t.Errorf("%+v %+v of %+v, %s: %+v\nwant %d = %s, %d", row.rule, row.x, row.c, row.event, got, row.over, row.is, row.under)
		}
	}
}

// TestSharesOfAllButOne holds the sum against shares dealt out one hit at a time.
func TestSharesOfAllButOne(t *testing.T) {
	for n := uint64(1); n < 12; n++ {
		for limit := range uint64(40) {
			dealt := make([]uint64, n)
			for i := range limit {
				dealt[i%n]++
			}
			want := uint64(0)
			for _, d := range dealt[:n-1] {
				want += d
			}
			if got := shares(limit, n); got != want {
				t.Errorf("%d over %d: %d, want %d", limit, n, got, want)
			}
		}
	}
}
