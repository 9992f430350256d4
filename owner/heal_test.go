package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/limit"
	"github.com/keyward/keyward/ring"
)

// rejoin puts members that were cut off from each other onto one ring again.
func (w *network) rejoin() {
	w.cut = nil
	w.adopt()
	w.run(4 * time.Second)
}

// A member that is cut off alone takes the others for lost, and charges keys of theirs for what it does not know. When it is back, the owner, who
// knows all of it, goes by what was really charged: nothing stays refused.
func TestHealForgetsAssumedLosses(t *testing.T) {
	for _, alg := range []limit.Algorithm{limit.FixedWindow, limit.SlidingWindow, limit.SlidingLog, limit.TokenBucket, limit.LeakyBucket} {
		for _, asked := range []bool{true, false} { // by the owner, before the cut
			w := newNetwork(t, 3, Options{ProRata: true, Policy: 1}, "a", "b", "c")
			r := w.ring()
			var q Question
			for i := 0; q.Hits == 0; i++ {
				q = ask(i, 300, 365*24*time.Hour, 1)
				if r.At(r.Owner(q.Owner)).ID != "a" || r.At(r.Heir(q.Owner)).ID != "b" {
					q.Hits = 0
				}
			}
			q.Rule.Algorithm = alg
			admitted := uint64(0)
			count := func(a Answer) {
				if !a.Over {
					admitted++
				}
			}
			if asked {
				for range 20 {
					w.ask("a", q, count)
				}
			}
			w.cut = func(from, to ring.ID) bool { return (from == "c") != (to == "c") }
			others := map[ring.ID]*Node{"a": w.nodes["a"], "b": w.nodes["b"]}
			lone := w.nodes["c"]
			delete(w.nodes, "a")
			delete(w.nodes, "b")
			w.adoptAt("c", w.ring())
			w.nodes["a"], w.nodes["b"] = others["a"], others["b"]
			delete(w.nodes, "c")
			w.adopt()
			w.nodes["c"] = lone
			w.run(3 * time.Second)
			for range 10 {
				w.ask("c", q, count)
				w.ask("a", q, count)
			}
			w.rejoin()
			peek := q
			peek.Op = Peek
			for _, id := range []ring.ID{"a", "b", "c"} {
				w.ask(id, peek, func(a Answer) {
					if a.Authority != Full || a.After > admitted+1 || a.After < admitted {
						t.Errorf("%v, asked before %v, by %s: %d were admitted, and the count is %d (authority %d)", alg, asked, id, admitted, a.After, a.Authority)
					}
				})
			}
		}
	}
}
