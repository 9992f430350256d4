//go:build !race

package quota

import (
	"os"
	"testing"
	"time"
)

// faulty returns the plan of one seed with faults.
func faulty(seed uint64) plan {
	p := plan{
		seed: seed, limit: []uint32{300, 2000, 5000}[seed/2%3], envoys: []int{3, 10, 25}[seed/6%3],
		load: []float64{0.5, 1, 1.2, 2}[seed/4%4], faults: true, move: seed/2%2 == 0,
	}
	if p.window, p.windows = 10*time.Second, 25; seed%2 == 1 {
		p.window, p.windows = time.Minute, 6
	}
	if seed%5 == 0 {
		p.rls = 0.3
	}
	if seed%3 == 0 {
		p.keys = 3
	}
	if seed%4 >= 2 {
		p.sidecars, p.skew = 3, 10
	}
	return p
}

// seeds returns how many simulations a test runs.
func seeds() uint64 {
	switch {
	case testing.Short():
		return 20
	case os.Getenv("KEYWARD_LONG") != "":
		return 2000
	}
	return 100
}

// TestExact requires that no window exceeds the limit, whatever fails.
func TestExact(t *testing.T) {
	mean := 0.0
	for seed := range seeds() {
		r := simulate(t, faulty(seed))
		if len(r.over) > 0 {
			t.Errorf("seed %d: %+v: windows exceed the limit: %v", seed, faulty(seed), r.over)
		}
		mean += r.mean / float64(seeds())
	}
	t.Logf("usable %.4f", mean)
}

// TestSabotage requires that the simulation finds deliberate mistakes.
func TestSabotage(t *testing.T) {
	for s, name := range map[sabotage]string{
		sameStream: "credit across a broken stream", creditAtOnce: "credit without a report", earlyAck: "acknowledge at once",
	} {
		found := false
		for seed := uint64(0); seed < 100 && !found; seed++ {
			p := faulty(seed)
			p.sabotage = s
			if r := simulate(t, p); len(r.over) > 0 {
				found = true
				t.Logf("%s: seed %d exceeds the limit: %v", name, seed, r.over)
			}
		}
		if !found {
			t.Errorf("%s: not found", name)
		}
	}
}

// TestSabotageOfReplacement requires that the simulation finds leases that replace others without a refusal before them:
// they start with the fill ratio of what they replace. The ledger charges both leases, so the limit is not exceeded, but
// Envoys with an empty bucket get an empty one.
func TestSabotageOfReplacement(t *testing.T) {
	p := plan{seed: 1, limit: 5000, window: 10 * time.Second, envoys: 50, load: 1.2, windows: 8}
	right := simulate(t, p)
	p.sabotage = bareBucket
	if bare := simulate(t, p); bare.mean > 0.9*right.mean {
		t.Errorf("usable %.3f with bare buckets, %.3f with pairs", bare.mean, right.mean)
	}
}
