package quota

import (
	"testing"
	"time"
)

// faulty returns the plan of one seed with faults.
func faulty(seed uint64) plan {
	p := plan{
		seed: seed, limit: []uint32{300, 2000, 5000}[seed%3], window: 10 * time.Second, envoys: []int{3, 10, 25}[seed/3%3],
		load: []float64{0.5, 1, 1.5, 3}[seed%4], windows: 30, faults: true, move: seed%2 == 0,
	}
	if seed%7 == 0 {
		p.window, p.windows = 25*time.Second, 15
	}
	if seed%5 == 0 {
		p.rls = 0.3
	}
	return p
}

// TestExact requires that no window exceeds the limit, whatever fails.
func TestExact(t *testing.T) {
	mean := 0.0
	for seed := range uint64(200) {
		r := simulate(t, faulty(seed))
		if len(r.over) > 0 {
			t.Errorf("seed %d: %+v: windows exceed the limit: %v", seed, faulty(seed), r.over)
		}
		mean += r.mean / 200
	}
	t.Logf("usable %.4f", mean)
}

// TestSabotage requires that the simulation finds deliberate mistakes.
func TestSabotage(t *testing.T) {
	for _, s := range []sabotage{bareBucket, sameStream, creditAtOnce, earlyAck} {
		found := 0
		for seed := range uint64(100) {
			p := faulty(seed)
			p.sabotage = s
			r := simulate(t, p)
			if len(r.over) > 0 {
				found++
			}
		}
		t.Logf("sabotage %d found with %d of 100 seeds", s, found)
	}
	for _, load := range []float64{0.5, 1, 1.2} {
		r := simulate(t, plan{seed: 1, limit: 5000, window: 10 * time.Second, envoys: 50, load: load, windows: 12, sabotage: bareBucket})
		t.Logf("bare: usable %.4f worst %.4f over %v", r.mean, r.worst, r.over)
	}
}
