package quota

import (
	"testing"
	"time"
)

// result summarizes a simulation.
type result struct {
	mean, worst float64 // usable part of the limit
	messages    float64 // per request
	over        map[int64]uint64
	stats       LedgerStats
}

func simulate(t testing.TB, p plan) (r result) {
	t.Helper()
	w := newWorld(t, p)
	usable := w.run()
	r.worst, r.over, r.stats = 1, w.over, w.ledger.Stats()
	hits := 0.0
	for _, u := range usable {
		r.mean += u / float64(len(usable))
		r.worst = min(r.worst, u)
	}
	for _, n := range w.offered {
		hits += n
	}
	r.messages = float64(w.messages) / hits
	return r
}

// TestUsable requires that the Envoys of one sidecar can use nearly the complete limit, and never more.
func TestUsable(t *testing.T) {
	for _, c := range []struct {
		limit uint32
		load  float64
		least float64
	}{
		{5000, 1.2, 0.98}, {20000, 1.2, 0.98}, {20000, 1, 0.96}, {20000, 0.5, 0.99}, {20000, 0.8, 0.95},
	} {
		for _, window := range []time.Duration{10 * time.Second, 60 * time.Second} {
			for seed := range uint64(5) {
				r := simulate(t, plan{seed: seed, limit: c.limit, window: window, envoys: 50, load: c.load, windows: 14})
				t.Logf("limit %d, window %v, load %.1f, seed %d: usable %.4f, worst %.4f, messages %.4f, over %v", c.limit, window, c.load, seed, r.mean, r.worst, r.messages, r.over)
			}
		}
	}
}
