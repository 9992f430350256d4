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
		place := placeOf(0, 1, 1, 1)
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

// An escrow moves with its key when the owner leaves, so the region can spend it without the coordinator, and it is spent
// once.
func TestEscrowMovesWithItsKey(t *testing.T) {
	for seed := range seeds(30) {
		place := placeOf(0, 1)
		w := newNetwork(t, seed, Options{Federation: place}, "a", "b", "c")
		w.lossy = float64(seed%2) * 0.3 // of messages about leases, some of which come twice
		w.coordinator = federation.NewMemory(federation.Always(7), 0, func() int64 { return w.now })
		terms := federation.RuleTerms{Authority: federation.AuthorityID("home"), Floor: 0, Batch: 2 * time.Second}
		req := ask(int(seed), 4000, time.Hour, 1)
		req.Federation, req.Strict = &terms, true
		spend := func(times int) (admitted uint64) {
			for range times {
				ids := w.ids()
				w.ask(ids[w.rnd.IntN(len(ids))], req, func(res Result) {
					if !res.Over {
						admitted++
					}
				})
				w.run(4 * time.Millisecond)
			}
			return admitted
		}
		left := func() (n uint64) {
			for _, id := range w.ids() {
				s, _ := w.nodes[id].shard(req.Key)
				if x := s.escrows.keys[req.Key]; x != nil {
					n += x.Left(w.now)
				}
			}
			return n
		}
		if n := spend(300); n < 250 {
			t.Fatalf("seed %d: only %d of 300 admitted", seed, n)
		}
		w.coordinator = nil
		had := left()
		if had < 50 {
			t.Fatalf("seed %d: only %d hits in the escrow", seed, had)
		}
		w.leave(t, w.ring().At(w.ring().Owner(req.RingPos)).ID, func(int) {})
		switch n := spend(600); {
		case n > had:
			t.Errorf("seed %d: %d admitted of the %d that moved", seed, n, had)
		case n < had && w.lossy == 0:
			t.Errorf("seed %d: only %d admitted of the %d that moved", seed, n, had)
		}
	}
}
