//go:build !race

package quota

import (
	"testing"
	"time"
)

// result summarizes a simulation.
type result struct {
	mean, worst float64 // usable part of the limit
	messages    float64 // per request
	refused     float64 // part of the requests
	requests    int
	over        map[slot]uint64
}

func simulate(t testing.TB, p plan) (r result) {
	t.Helper()
	w := newWorld(t, p)
	usable := w.run()
	r.worst, r.over = 1, w.over
	hits := 0.0
	for _, u := range usable {
		r.mean += u / float64(len(usable))
		r.worst = min(r.worst, u)
	}
	for _, n := range w.offered {
		hits += n
	}
	r.messages = float64(w.messages) / hits
	r.refused, r.requests = float64(w.refused)/float64(max(1, w.requests)), w.requests
	return r
}

// TestUsable requires that fifty Envoys of one sidecar, one in five with ten times the load, use nearly the complete
// limit, and never more.
func TestUsable(t *testing.T) {
	for _, c := range []struct {
		window      time.Duration
		limit       uint32
		load        float64 // of the limit
		mean, worst float64
		messages    float64 // per request; 0: fewer than 40 hits/s per Envoy
	}{
		{10 * time.Second, 5000, 1.2, 0.98, 0.96, 0},
		{10 * time.Second, 20000, 1.2, 0.98, 0.96, 0.01},
		{10 * time.Second, 20000, 1, 0.96, 0.94, 0.0105}, // 0.0099 is the mean of 40 seeds, 0.0101 the most
		{10 * time.Second, 20000, 0.8, 0.98, 0.96, 0},
		{10 * time.Second, 20000, 0.5, 0.999, 0.99, 0},
		{time.Minute, 20000, 1.2, 0.98, 0.96, 0},
		{time.Minute, 20000, 1, 0.96, 0.94, 0},
		{time.Minute, 20000, 0.5, 0.999, 0.99, 0},
	} {
		for seed := range max(1, seeds()/50) {
			p := plan{seed: seed, limit: c.limit, window: c.window, envoys: 50, load: c.load, windows: 10}
			r := simulate(t, p)
			t.Logf("W %v, L %d, load %.1f: usable %.4f, worst %.4f, %.4f messages", c.window, c.limit, c.load, r.mean, r.worst, r.messages)
			if len(r.over) > 0 || r.mean < c.mean || r.worst < c.worst || c.messages > 0 && r.messages > c.messages {
				t.Errorf("%+v: %+v", p, r)
			}
		}
	}
}

// TestLoadMoves logs the usable part when the load moves to other Envoys in every third window.
func TestLoadMoves(t *testing.T) {
	for _, window := range []time.Duration{10 * time.Second, time.Minute} {
		r := simulate(t, plan{seed: 1, limit: 20000, window: window, envoys: 50, load: 1.2, windows: 13, move: true})
		t.Logf("W %v: usable %.4f, worst %.4f", window, r.mean, r.worst)
		if len(r.over) > 0 || r.mean < 0.75 {
			t.Errorf("W %v: %+v", window, r)
		}
	}
}
