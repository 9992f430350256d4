package federation

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
)

// BenchmarkTenantMay measures a decision about a tenant, with 32 tenants in each of 3 regions.
func BenchmarkTenantMay(b *testing.B) {
	w := newFairWorld(rand.New(rand.NewPCG(1, 1)), limit.Rule{Window: 10 * time.Second, Limit: 100_000}, 3, 5)
	for i := range 96 {
		w.pairs = append(w.pairs, &demandPair{region: i % 3, tenant: uint64(i/3 + 1), weight: 1, rate: 50, hits: 1, from: w.now})
	}
	end := w.rule.End(w.rule.Index(w.now))
	w.runUntil(end - int64(5*time.Second))
	e, now := w.escrows[0], w.now
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		now += int64(time.Microsecond) // one deal in 100,000 decisions
		if now > end-int64(time.Second) {
			now = w.now
		}
		tenant := uint64(i%32 + 1)
		e.Offer(now, w.rule, w.set[0], 1)
		e.OfferTenant(now, tenant, 1, 1, true)
		e.TenantMay(now, tenant)
		e.Due(now, 0, w.rtt[0])
	}
}

// BenchmarkDeal measures the division of a window, with 32 tenants in each of 3 regions.
func BenchmarkDeal(b *testing.B) {
	w := newFairWorld(rand.New(rand.NewPCG(1, 1)), limit.Rule{Window: 10 * time.Second, Limit: 100_000}, 3, 5)
	for i := range 96 {
		w.pairs = append(w.pairs, &demandPair{region: i % 3, tenant: uint64(i/3 + 1), weight: 1, rate: 50, hits: 1, from: w.now})
	}
	w.runUntil(w.now + int64(5*time.Second))
	for b.Loop() {
		w.escrows[0].deal(w.now)
	}
}
