//go:build !race

package rulecheck

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
)

// TestBoundsLaws holds what is true of every rule and cluster.
func TestBoundsLaws(t *testing.T) {
	rnd := rand.New(rand.NewPCG(4, 4))
	limits := []uint32{0, 1, 2, 3, 99, 100, 101, 1000, math.MaxUint32}
	for range 20_000 {
		r := config.RuleSpec{Limit: limit.Rule{
			Window: []time.Duration{1, time.Second, time.Minute, 365 * 24 * time.Hour}[rnd.IntN(4)], Limit: limits[rnd.IntN(len(limits))],
			Algorithm: limit.Algorithm(rnd.IntN(5)),
		}}
		if r.Limit.Algorithm.Bucket() {
			r.Limit.Burst = limits[rnd.IntN(len(limits))]
		}
		r.Extension.Degraded, r.Extension.LocalCap = policy.Degraded(rnd.IntN(3)), limits[rnd.IntN(len(limits))]
		c := Conditions{
			Members: 1 + rnd.IntN(8), Rate: []float64{0, 0, 0.1, 1e6, math.Inf(1)}[rnd.IntN(5)],
			Partition: []policy.Partition{policy.PartShare, policy.PartAvailable, policy.PartQuorum}[rnd.IntN(3)],
			Outage:    []time.Duration{0, 1, time.Minute, 5 * time.Minute, 8760 * time.Hour}[rnd.IntN(5)],
		}
		if rnd.IntN(4) == 0 {
			r.Extension.Mechanism, r.Extension.Lease = policy.Approximate, &lease.Terms{Slack: r.Limit.Limit / 2}
		}
		async := BoundsOf(&r, c)
		r.Extension.Strict = true
		strict := BoundsOf(&r, c)
		for i, a := range async.Bounds {
			s := strict.Bounds[i]
			if s.Over > a.Over || s.Under != a.Under {
				t.Fatalf("%+v, %+v: strict is worse: %+v, %+v", r, c, s, a)
			}
			if a.Under > most(&r) || (a.Under > 0) != (a.UnderTime != "") || (a.Over > 0) && a.OverFormula == "0" {
				t.Fatalf("%+v, %+v: %+v", r, c, a)
			}
			if c.Rate > 0 && a.Traffic != nil || a.Traffic != nil && a.Traffic.Most != most(&r) {
				t.Fatalf("%+v, %+v: traffic %+v", r, c, a)
			}
		}
		if (async.Outage != nil) != (c.Outage > 0 && c.Members > 1) {
			t.Fatalf("%+v, %+v: outage %+v", r, c, async.Outage)
		}
		if async.Outage != nil {
			checkOutage(t, &r, c, &async)
		}
		if join := bound(t, async, "join"); join.Under != 0 || r.Limit.Algorithm == limit.FixedWindow && join.Over != async.Drift {
			t.Fatalf("%+v, %+v: a planned change costs %+v", r, c, join)
		}
		if c.Members == 1 && (async.Phi > 0 || async.Unacked > 0 || len(async.Bounds) != 4) {
			t.Fatalf("%+v alone: %+v", r, async)
		}
		if none := bound(t, async, "nothing"); none.Over != async.Drift || async.Drift > 0 && async.Lent > 0 || async.Lent > most(&r) {
			t.Fatalf("%+v, %+v: lent %d, drift %d, over %d while nothing fails", r, c, async.Lent, async.Drift, none.Over)
		}
		if async.Unacked > async.Limit || !r.Limit.Algorithm.Bucket() && async.Phi > async.Limit {
			t.Fatalf("%+v, %+v: %+v", r, c, async)
		}
	}
	if b := BoundsOf(&config.RuleSpec{Unlimited: true}, Conditions{Members: 3}); len(b.Bounds) > 0 || b.Limit != 0 {
		t.Errorf("unlimited: %+v", b)
	}
}

// checkOutage requires that the cost of an outage agrees with the row of one window, and grows with its length.
func checkOutage(t *testing.T, r *config.RuleSpec, c Conditions, b *RuleBounds) {
	t.Helper()
	longer := c
	longer.Outage = 2 * c.Outage
	twice := BoundsOf(r, longer).Outage
	for i, p := range b.Outage.Policies {
		q := twice.Policies[i]
		if q.Over < p.Over || q.Under != p.Under || p.Under > most(r) || (p.Over == 0) != (p.OverFormula == "0") {
			t.Fatalf("%+v, %+v: %+v, of twice the time %+v", r, c, p, q)
		}
		if !p.Current {
			continue
		}
		row := bound(t, *b, "each window")
		once := limit.SaturatingAdd(p.perWindow.n, sum("", p.once...).Over)
		if row.Over != once || row.Under != p.Under {
			t.Fatalf("%+v, %+v: %+v, but in one window %+v", r, c, p, row)
		}
	}
}
