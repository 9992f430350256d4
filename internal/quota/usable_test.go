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

// TestExact requires that no window exceeds the limit, whatever fails.
func TestExact(t *testing.T) {
	for seed := range uint64(20) {
		p := plan{seed: seed, limit: 2000, window: 10 * time.Second, envoys: 10, load: []float64{0.5, 1, 1.5, 3}[seed%4], windows: 30, faults: true, move: seed%3 == 0}
		if seed%5 == 0 {
			p.rls = 0.3
		}
		r := simulate(t, p)
		t.Logf("seed %d: usable %.4f, worst %.4f, over %v %+v", seed, r.mean, r.worst, r.over, r.stats)
	}
}

// TestSabotage requires that the simulation finds deliberate mistakes.
func TestSabotage(t *testing.T) {
	for _, s := range []sabotage{bareBucket, sameStream, earlyAck} {
		found := 0
		for seed := range uint64(20) {
			r := simulate(t, plan{seed: seed, limit: 2000, window: 10 * time.Second, envoys: 10, load: []float64{0.5, 1, 1.5, 3}[seed%4], windows: 30, faults: true, move: true, sabotage: s})
			if len(r.over) > 0 {
				found++
			}
		}
		t.Logf("sabotage %d found with %d of 20 seeds", s, found)
	}
}
