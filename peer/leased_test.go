package peer

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/keyward/keyward/limit"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// Over real streams, a key whose rule leases is decided where it is asked, and admits its limit.
func TestLeasedOverStreams(t *testing.T) {
	ms := newCluster(t, 3)
	q := question(ownedBy(ringOf("m0", "m1", "m2"), "m0", 1)[0], 5000, 1)
	q.Mechanism = owner.ByLease
	q.Rule = limit.Rule{Window: time.Hour, Limit: 5000}
	admitted, leased, asked := 0, 0, 0
	refused := map[ring.ID]int{}
	for min(refused["m1"], refused["m2"]) < 100 {
		for _, m := range ms[1:] {
			a := m.ask(patience, q)
			switch a.Path {
			case owner.Leased:
				leased++
			case owner.Forwarded:
				asked++
			default:
				t.Fatalf("%+v", a)
			}
			if a.Over {
				refused[m.id]++
			} else {
				admitted++
			}
		}
	}
	if admitted != 5000 {
		t.Errorf("%d of 5000 admitted", admitted)
	}
	if leased < 100 { // some 5,000 on a machine that does nothing else
		t.Errorf("%d decided from leases, the owner asked for %d", leased, asked)
	}
	if got := testutil.ToFloat64(ms[0].m.served); int(got) != asked {
		t.Errorf("the owner was asked %v times, not %d", got, asked)
	}
}
