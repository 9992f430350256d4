package sublease

import (
	"testing"
	"time"
)

// usable returns the part of the limit that was admitted in the windows after the first, up to the last complete one, in
// which at least a part of the limit was offered, and the worst of them.
func (w *world) usable(least float64) (mean, worst float64) {
	r := w.owner.limit.rule()
	n := 0
	worst = 1
	first := r.Index(int64(1e18))
	for window := first + 1; window < r.Index(w.now); window++ {
		if float64(w.offered[window]) < least*float64(w.owner.limit.Hits) {
			continue
		}
		used := float64(w.admitted[window]) / float64(w.owner.limit.Hits)
		mean, n, worst = mean+used, n+1, min(worst, used)
	}
	return mean / float64(max(1, n)), worst
}

// TestUsable has three sidecars, with Envoys of unequal load, and callers of the rate limit service spend one limit. Nothing
// is admitted above it, and nearly all of it is used when enough is offered: with other seeds, up to 0.6 % of a window come back
// from an Envoy after the calls that would have used them.
func TestUsable(t *testing.T) {
	for name, c := range map[string]struct {
		limit   Limit
		members int
		rates   []float64
		windows int
		without float64 // part of the admitted hits that need no call, at least
	}{
		"even":           {Limit{5000, 10 * time.Second}, 3, []float64{250, 250, 250}, 8, 0.9},
		"10:1:1":         {Limit{5000, 10 * time.Second}, 3, []float64{500, 50, 50}, 8, 0.9},
		"a minute":       {Limit{12000, time.Minute}, 3, []float64{200, 40, 40}, 3, 0.9},
		"a second":       {Limit{1000, time.Second}, 3, []float64{600, 600, 600}, 30, 0.3},
		"two seconds":    {Limit{1000, 2 * time.Second}, 3, []float64{400, 300, 30}, 20, 0.5},
		"small":          {Limit{200, 10 * time.Second}, 3, []float64{50, 30, 30}, 8, 0},
		"two per pod":    {Limit{5000, 10 * time.Second}, 2, []float64{300, 30, 300, 30}, 8, 0.9},
		"many members":   {Limit{20000, 10 * time.Second}, 10, []float64{1000, 200, 200, 200, 200, 200, 200, 200, 50, 50}, 5, 0.85},
		"far above it":   {Limit{2000, 10 * time.Second}, 3, []float64{2000, 2000, 2000}, 5, 0.5},
		"just the limit": {Limit{5000, 10 * time.Second}, 3, []float64{400, 50, 50}, 8, 0.9},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(7, c.limit, c.members, c.rates...)
			for range c.windows * int(c.limit.Window/time.Second) * 5 { // callers of RLS
				w.after(time.Duration(w.rng.Int64N(int64(c.limit.Window)*int64(c.windows))), func() {
					w.offered[w.owner.limit.rule().Index(w.now)]++
					w.call(w.modelKey, 1)
				})
			}
			w.run(time.Duration(c.windows)*c.limit.Window + time.Second)
			if faults := w.check(); len(faults) > 0 {
				t.Error(faults)
			}
			mean, worst := w.usable(1.1)
			all := uint64(0)
			for _, n := range w.admitted {
				all += n
			}
			part := float64(w.without) / float64(all)
			t.Logf("used %.4f, worst window %.4f; %.3f of hits without a call, %.4f lots a hit", mean, worst, part, float64(w.asks)/float64(all))
			if name == "just the limit" {
				mean, worst = w.usable(0)
				t.Logf("used %.4f, worst %.4f, when the limit is offered", mean, worst)
				if mean < 0.97 {
					t.Errorf("used %.4f, worst %.4f, when the limit is offered", mean, worst)
				}
			} else if mean < 0.998 || worst < 0.99 {
				t.Errorf("used %.4f, worst window %.4f", mean, worst)
			}
			if part < c.without {
				t.Errorf("%.3f of the hits needed no call", part)
			}
			for _, s := range w.sidecars {
				if o := s.book.Totals(); o.Granted == 0 && c.without > 0 || o.Lost > 0 {
					t.Errorf("%+v", o)
				}
			}
		})
	}
}

// TestFaults restarts sidecars and Envoys, moves load between them, and corrupts memory. Nothing is admitted above the limit.
func TestFaults(t *testing.T) {
	for seed := range uint64(20) {
		if faults := faulty(seed, nil).check(); len(faults) > 0 {
			t.Errorf("seed %d: %v", seed, faults)
		}
	}
}

// TestFaultsAreFound checks that the laws fail if a book returns more than is unspent.
func TestFaultsAreFound(t *testing.T) {
	for seed := range uint64(20) {
		if len(faulty(seed, func(w *world) {
			w.sabotage = func(work *BookWork) {
				for i := range work.Returns {
					work.Returns[i].Hits += 20
				}
			}
		}).check()) > 0 {
			return
		}
	}
	t.Error("no law fails")
}

// faulty runs a world with faults.
func faulty(seed uint64, sabotage func(*world)) *world {
	w := newWorld(seed, Limit{3000, 5 * time.Second}, 3, 300, 300, 100, 100, 50, 50)
	w.owner.skew = w.rng.Int64N(int64(200*time.Millisecond)) - int64(100*time.Millisecond)
	if sabotage != nil {
		sabotage(w)
	}
	for range 60 {
		w.after(time.Duration(w.rng.Int64N(int64(30*time.Second))), func() {
			s := w.sidecars[w.rng.IntN(3)]
			e := s.envoys[w.rng.IntN(2)]
			switch w.rng.IntN(5) {
			case 0: // the sidecar is killed
				s.start()
			case 1: // the Envoy is killed, and started again
				s.book.Closed(e.conn)
				e.connect()
			case 2:
				e.rate = []float64{0, 10, 300, 1000}[w.rng.IntN(4)]
			case 3: // the memory is corrupt, and the connection ends
				e.memory.corrupt = true
				w.after(50*time.Millisecond, func() { s.book.Closed(e.conn); e.connect() })
			case 4:
				s.book.Forget(s.clock(), key)
			}
		})
	}
	w.run(30 * time.Second)
	return w
}
