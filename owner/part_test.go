package owner

import (
	"maps"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/ring"
)

// TestPartThatMissesNoMoreThanFIsWhole cuts off one of five members. The others miss no more than f, so they admit the
// complete limit; the one admits its local share.
func TestPartThatMissesNoMoreThanFIsWhole(t *testing.T) {
	for _, c := range []struct {
		apart []ring.ID
		whole uint64 // what the larger part admits
	}{{[]ring.ID{"a"}, 100}, {[]ring.ID{"a", "b"}, 60}} {
		w := newNetwork(t, 3, Options{Policy: policy.PartShare}, "a", "b", "c", "d", "e")
		side := func(id ring.ID) bool { return id == c.apart[0] || id == c.apart[len(c.apart)-1] }
		w.cut = func(from, to ring.ID) bool { return side(from) != side(to) }
		w.run(2 * time.Second)
		key := ownedBy(t, w.ring(), "e", 0)
		admitted := uint64(0)
		for range 150 {
			w.ask("d", ask(key, 100, time.Hour, 1), func(res Result) {
				if !res.Over {
					admitted++
				}
			})
			w.run(4 * time.Millisecond)
		}
		if admitted != c.whole {
			t.Errorf("%d of five are cut off: the others admit %d of 100, want %d", len(c.apart), admitted, c.whole)
		}
	}
}

// part cuts the members in two, which have rings of their own.
func (w *network) part(side func(ring.ID) bool) {
	w.cut = func(from, to ring.ID) bool { return side(from) != side(to) }
	w.nref = len(w.nodes)
	all := w.nodes
	for _, s := range []bool{true, false} {
		w.nodes = maps.Clone(all)
		maps.DeleteFunc(w.nodes, func(id ring.ID, _ *Node) bool { return side(id) != s })
		w.adopt()
	}
	w.nodes = all
}

// TestHoldsOfPartsLapseOnce cuts a cluster into two parts that both own a key, and both have a copy of its hold, which ends
// meanwhile. Its hits come back once.
func TestHoldsOfPartsLapseOnce(t *testing.T) {
	for _, policy := range []policy.Partition{policy.PartShare, policy.PartQuorum} {
		w := newNetwork(t, 3, Options{Policy: policy}, "a", "b", "c", "d", "e")
		side := func(id ring.ID) bool { return id == "a" || id == "b" }
		i := 0
		for req := ask(i, 100, time.Hour, 1); !side(w.ownerOf(&req)) || side(w.ring().At(w.ring().Successor(req.RingPos)).ID); i++ {
			req = ask(i+1, 100, time.Hour, 1)
		}
		q := hold(i, 1, Reserve, ask(i, 100, time.Hour, 1).Rule, 40)
		q.Strict, q.Hold.TTL, q.Hold.Flags = true, 6*time.Second, claim.Releases
		w.ask("a", q, func(Result) {})
		w.ask("a", ask(i, 100, time.Hour, 50), func(Result) {})
		w.run(time.Second)
		for _, id := range w.ids() {
			if holds, hits := w.nodes[id].HeldHits(q.Key); hits > 0 && holds != 1 {
				t.Fatalf("%s has %d holds of %d hits", id, holds, hits)
			}
		}
		w.part(side)
		w.run(10 * time.Second)
		w.rejoin()
		if got := heldCount(t, w.nodes[w.ownerOf(&q)], w.now, q); got != 50 {
			t.Errorf("%v: the count is %d, but 50 hits are used", policy, got)
		}
	}
}
