//go:build !race

package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// TestPlannedChangesAreExact lets members join and leave while all of them get requests, with messages in every order.
// It requires that exactly the limit is admitted.
func TestPlannedChangesAreExact(t *testing.T) {
	given := 0
	for seed := range uint64(36) {
		w := newNetwork(t, seed, Options{}, "a", "b")
		const keys, lim = 60, 20
		admitted := make([]int, keys)
		load := func(times int) {
			for range times {
				i := w.rnd.IntN(keys)
				ids := w.ids()
				req := ask(i, lim, time.Hour, 1)
				req.Strict = i%3 == 0
				w.ask(ids[w.rnd.IntN(len(ids))], req, func(res Result) {
					if !res.Over {
						admitted[i]++
					}
					if res.Authority != Full {
						t.Errorf("seed %d: key %d: %+v", seed, i, res)
					}
				})
				w.step(true)
				if w.rnd.IntN(10) == 0 {
					w.run(2 * time.Millisecond)
				}
			}
		}
		load(300)
		w.boot("c", membership.Joining)
		w.adopt()
		w.run(time.Second)
		w.states["c"] = membership.Active
		for _, id := range w.ids() { // everybody learns it in his own time
			w.adoptAt(id, w.ring())
			load(30)
		}
		load(200)
		w.run(3 * time.Second)
		w.states["a"] = membership.Leaving
		for _, id := range w.ids() {
			w.adoptAt(id, w.ring())
			load(30)
		}
		load(100)
		for range 50 {
			if w.nodes["a"].Progress().HandedOff {
				break
			}
			w.run(100 * time.Millisecond)
		}
		if p := w.nodes["a"].Progress(); !p.HandedOff {
			t.Fatalf("seed %d: the leaver still has keys: %+v", seed, p)
		}
		delete(w.nodes, "a")
		w.left, w.nref = []ring.ID{"a"}, 2
		w.adopt()
		w.run(time.Second)
		load(3000)
		for i, n := range admitted {
			if n != lim {
				t.Errorf("seed %d: key %d: %d of %d admitted", seed, i, n, lim)
			}
		}
		if given += w.given; t.Failed() {
			return
		}
	}
	if given < 20 {
		t.Errorf("%d tokens came alone: the test shows nothing of them", given)
	}
}

// TestAllAlgorithmsMove requires that the counters of every algorithm move with a handoff.
func TestAllAlgorithmsMove(t *testing.T) {
	for _, alg := range algorithms {
		w := newNetwork(t, 5, Options{}, "a", "b")
		q := func(i int, hits uint64) Request {
			req := ask(i, 10, time.Hour, hits)
			req.Rule.Algorithm = alg
			return req
		}
		for i := range 40 {
			w.ask("a", q(i, 7), func(res Result) {
				if res.Over || res.Authority != Full {
					t.Errorf("%v: key %d: %+v", alg, i, res)
				}
			})
		}
		w.run(100 * time.Millisecond)
		w.boot("c", membership.Active)
		w.nref = 3
		w.adopt()
		w.run(3 * time.Second)
		for _, gone := range []ring.ID{"a", "b"} {
			w.states[gone] = membership.Leaving
			w.adopt()
			w.run(2 * time.Second)
			if p := w.nodes[gone].Progress(); !p.HandedOff {
				t.Fatalf("%v: %s: %+v", alg, gone, p)
			}
			delete(w.nodes, gone)
			w.left = append(w.left, gone)
			w.nref--
			w.adopt()
			w.run(3 * time.Second)
		}
		for i := range 40 {
			w.ask("c", q(i, 4), func(res Result) {
				if !res.Over || res.Before < 7 || res.Authority != Full {
					t.Errorf("%v: key %d after the move: %+v", alg, i, res)
				}
			})
		}
		if t.Failed() {
			return
		}
	}
}

// TestCrashCostsNoMoreThanU requires that the successor of a crashed owner misses at most U of the admitted hits.
func TestCrashCostsNoMoreThanU(t *testing.T) {
	for seed := range uint64(8) {
		w := newNetwork(t, seed, Options{}, "a", "b", "c")
		const keys, lim = 30, 300
		admitted := make([]uint64, keys)
		load := func(n int) {
			for range n {
				i := w.rnd.IntN(keys)
				req := ask(i, lim, time.Hour, 1+w.rnd.Uint64N(2))
				req.Strict = i%2 == 0
				ids := w.ids()
				w.ask(ids[w.rnd.IntN(len(ids))], req, func(res Result) {
					if !res.Over {
						admitted[i] += req.Hits
					}
				})
				w.step(true)
			}
		}
		load(1500)
		delete(w.nodes, "b") // its messages under way still arrive
		w.run(300 * time.Millisecond)
		w.adopt()
		w.run(6 * time.Second)
		for _, id := range w.ids() {
			if p := w.nodes[id].Progress(); !p.Complete() {
				t.Fatalf("seed %d: %s: %+v", seed, id, p)
			}
		}
		load(9000)
		for i, n := range admitted {
			u := tolerance(&Request{Rule: limit.Rule{Limit: lim}})
			if i%2 == 0 {
				u = 0
			}
			if n > lim+u || n < lim-1-u {
				t.Errorf("seed %d: key %d: %d of %d admitted", seed, i, n, lim)
			}
		}
		if t.Failed() {
			return
		}
	}
}
