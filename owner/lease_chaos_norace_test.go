//go:build !race

package owner

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/membership"
)

// windows counts admitted hits by window. Hits near the edge of two windows may belong to either.
type windows struct {
	width, slack int64
	sure, edge   map[int64]uint64 // edge: with the window before
}

func (c *windows) add(at int64, hits uint64) {
	a, b := (at-c.slack)/c.width, (at+c.slack)/c.width
	if a == b {
		c.sure[a] += hits
	} else {
		c.edge[b] += hits
	}
}

// most returns the most hits of one window. Hits at its edges count only if they do not fit below limit elsewhere.
func (c *windows) most(limit uint64) (n uint64) {
	ws := slices.Collect(maps.Keys(c.sure))
	slices.Sort(ws)
	room := uint64(0)
	for _, w := range ws {
		sum := c.sure[w] + saturatingSub(c.edge[w], room)
		n, room = max(n, sum), saturatingSub(limit, sum)
	}
	return n
}

// TestLeasesNeverAdmitMore loses, duplicates and reorders messages about leases, with different clocks, while members
// join, leave and crash. It requires that no more than the limit is admitted. Hits from local shares do not count:
// without the other members they may exceed the limit.
func TestLeasesNeverAdmitMore(t *testing.T) {
	local, credited, lent := uint64(0), uint64(0), uint64(0)
	for seed := range seeds(24) {
		w := newNetwork(t, seed, Options{}, "a", "b", "c")
		w.lossy = float64(seed%3) * 0.15
		req := leased(int(seed), 3000, 2*time.Second)
		req.Strict = true // so that a crash loses nothing
		if seed%2 == 1 {
			req.Rule.Algorithm = limit.SlidingWindow
		}
		for i, id := range w.ids() {
			w.skew[id] = int64(i-1) * 60 * milli * int64(seed%2)
		}
		sum := windows{2 * second, 80 * milli, map[int64]uint64{}, map[int64]uint64{}}
		load := func(times int) {
			for range times {
				ids := w.ids()
				w.ask(ids[min(w.rnd.IntN(len(ids)), w.rnd.IntN(len(ids)))], req, func(res Result) {
					if !res.Over && res.Path != Fallback {
						sum.add(w.now, 1)
					}
					if res.Path == Leased {
						local++
					}
				})
				w.step(true)
				if w.rnd.IntN(4) == 0 {
					w.run(2 * time.Millisecond)
				}
			}
		}
		load(4000)
		w.boot("d", membership.Joining)
		w.adopt()
		w.run(time.Second)
		w.states["d"] = membership.Active
		for _, id := range w.ids() {
			w.adoptAt(id, w.ring())
			load(60)
		}
		load(4000)
		owner := w.ring().At(w.ring().Owner(req.RingPos)).ID
		if seed%4 < 2 {
			w.leave(t, owner, load)
		} else {
			delete(w.nodes, owner)
			w.queue = slices.DeleteFunc(w.queue, func(e envelope) bool { return e.from == owner })
			w.adopt()
		}
		load(6000)
		f := facts(w)
		credited, lent = credited+f.Credited, lent+f.Lent
		if n := sum.most(3000); n > 3000 {
			t.Errorf("seed %d: %d admitted of 3000", seed, n)
		}
		if f.Violations != [6]uint64{} {
			t.Errorf("seed %d: violations %v", seed, f.Violations)
		}
	}
	t.Logf("%d answers from leases, %d hits lent, %d credited", local, lent, credited)
	if local == 0 || credited == 0 {
		t.Error("nothing was tried")
	}
}

// TestLeasedBucketsKeepTheirEnvelope requires that in any stretch of time a leased bucket admits at most its depth and
// what drains, whichever members own it.
func TestLeasedBucketsKeepTheirEnvelope(t *testing.T) {
	local := 0
	for seed := range seeds(16) {
		w := newNetwork(t, seed, Options{}, "a", "b", "c")
		w.lossy = float64(seed%3) * 0.15
		req := leased(int(seed), 400, time.Second)
		req.Rule.Algorithm, req.Rule.Burst, req.Strict = limit.TokenBucket, 100+uint32(seed%4)*100, true
		var at []int64
		load := func(times int) {
			for range times {
				ids := w.ids()
				w.ask(ids[w.rnd.IntN(len(ids))], req, func(res Result) {
					if !res.Over && res.Path != Fallback {
						at = append(at, w.now)
					}
					if res.Path == Leased && !res.Over {
						local++
					}
				})
				if w.rnd.IntN(3) == 0 {
					w.run(2 * time.Millisecond)
				}
			}
		}
		for round := range 6 {
			load(400)
			w.run(time.Duration(w.rnd.IntN(300)) * time.Millisecond)
			if round == 3 {
				w.leave(t, w.ring().At(w.ring().Owner(req.RingPos)).ID, func(int) { load(20) })
			}
		}
		for i := range at {
			for j := i; j < len(at); j++ {
				if n, room := uint64(j-i+1), uint64(req.Rule.Burst)+uint64(at[j]-at[i])*400/uint64(second)+1; n > room {
					t.Fatalf("seed %d: %d admitted in %v, not %d", seed, n, time.Duration(at[j]-at[i]), room)
				}
			}
		}
		if v := facts(w).Violations; v != [6]uint64{} {
			t.Errorf("seed %d: violations %v", seed, v)
		}
	}
	if t.Logf("%d admitted from leases", local); local == 0 {
		t.Error("nothing was lent")
	}
}
