package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/federation"
)

// A floor is spent once, although its owner dies: like other counts, it is replicated but for U hits.
func TestFloorSurvivesItsOwner(t *testing.T) {
	const floor = 25 // 5 % of 500
	for key := range 6 {
		place := FederationPlace{Epoch: 7, Weights: []uint32{1, 1, 1}, Authorities: []string{"home"}}
		w := newNetwork(t, uint64(key), Options{Federation: place}, "a", "b", "c")
		terms := federation.RuleTerms{Authority: federation.AuthorityID("home"), Floor: 5}
		req := ask(key, 1500, 10*time.Second, 1)
		req.Federation = &terms
		req.Strict = key%2 == 0
		spend := func() (admitted uint64) {
			for range 2 * floor {
				ids := w.ids()
				w.ask(ids[w.rnd.IntN(len(ids))], req, func(res Result) {
					if !res.Over {
						admitted++
					}
				})
				w.run(10 * time.Millisecond)
			}
			return admitted
		}
		admitted := spend()
		if admitted != floor {
			t.Fatalf("key %d: %d admitted of %d", key, admitted, floor)
		}
		delete(w.nodes, w.ring().At(w.ring().Owner(req.RingPos)).ID)
		w.adopt()
		w.run(2500 * time.Millisecond)
		bound := uint64(floor)
		if !req.Strict {
			bound += 1 // U of 25
		}
		if admitted += spend(); admitted > bound {
			t.Errorf("key %d: %d admitted of %d after the owner died", key, admitted, bound)
		}
	}
}
