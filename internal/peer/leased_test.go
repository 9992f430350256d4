package peer

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner"
)

// Over real streams, a key whose rule uses leases is decided at the receiving member, and exactly its limit is
// admitted.
func TestLeasedOverStreams(t *testing.T) {
	ms := newCluster(t, 3)
	q := newRequest(ownedBy(ringOf("m0", "m1", "m2"), "m0", 1)[0], 5000, 1)
	q.Mechanism = policy.ByLease
	q.Rule = limit.Rule{Window: time.Hour, Limit: 5000}
	admitted, leased, asked := 0, 0, 0
	ask := func() {
		for _, m := range ms[1:] {
			a := m.decideOne(patience, q)
			switch a.Path {
			case owner.Leased:
				leased++
			case owner.Forwarded:
				asked++
			default:
				t.Fatalf("%+v", a)
			}
			if !a.Over {
				admitted++
			}
		}
	}
	await(t, "the whole limit to be admitted", func() bool {
		for range 20 {
			ask()
		}
		return admitted >= 5000
	})
	for range 500 {
		ask()
	}
	if admitted != 5000 {
		t.Errorf("%d of 5000 admitted", admitted)
	}
	if leased < 2*asked { // 50 times as many on an idle machine
		t.Errorf("%d decided from leases, %d by the owner", leased, asked)
	}
	if got := testutil.ToFloat64(ms[0].m.served); int(got) != asked {
		t.Errorf("the owner has counted %v requests, not %d", got, asked)
	}
}
