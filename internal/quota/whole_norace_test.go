//go:build !race

package quota

import (
	"os"
	"testing"
	"time"
)

// TestWhole requires that several sidecars divide nearly the complete limit by the demands of their Envoys, and never more.
// KEYWARD_LONG adds more of them, longer windows and a single sidecar.
func TestWhole(t *testing.T) {
	long := os.Getenv("KEYWARD_LONG") != ""
	for _, c := range []struct {
		window   time.Duration
		sidecars int
		long     bool
	}{
		{10 * time.Second, 3, false}, {10 * time.Second, 10, true}, {10 * time.Second, 1, true},
		{time.Minute, 3, true}, {time.Minute, 10, true},
	} {
		for _, each := range []int{1, 50} {
			if c.long && !long || each > 1 && testing.Short() {
				continue
			}
			for _, skew := range []float64{1, 10} {
				for _, load := range []float64{0.5, 1, 1.2, 2} {
					testWhole(t, plan{
						seed: 1, limit: uint32(max(20000, 200*c.sidecars*each)), window: c.window, envoys: c.sidecars * each, load: load, windows: 9,
						sidecars: c.sidecars, skew: skew,
					})
				}
			}
		}
	}
}

func testWhole(t *testing.T, p plan) {
	r := simulate(t, p)
	t.Logf("W %v, %d sidecars, %d Envoys, skew %v, load %.1f: usable %.4f, worst %.4f, %.4f messages", p.window, p.sidecars, p.envoys,
		p.skew, p.load, r.mean, r.worst, r.messages)
	mean, worst := 0.98, 0.96
	switch {
	case p.load == 1:
		mean, worst = 0.95, 0.93
	case p.load < 1:
		mean, worst = 0.998, 0.99
	}
	if len(r.over) > 0 || r.mean < mean || r.worst < worst {
		t.Errorf("%+v: %+v", p, r)
	}
}

// TestLayouts requires that Envoys of which one in five has ten times the load use nearly the complete limit, however they
// are divided between sidecars. KEYWARD_LONG adds seeds and windows of a minute.
func TestLayouts(t *testing.T) {
	runs, windows := uint64(1), []time.Duration{10 * time.Second}
	if os.Getenv("KEYWARD_LONG") != "" {
		runs, windows = 5, append(windows, time.Minute)
	}
	for _, c := range []struct{ sidecars, each int }{{1, 50}, {10, 5}, {50, 1}, {10, 1}} {
		m := c.sidecars * c.each
		for _, x := range []struct {
			hits        int // limit for each Envoy
			load        float64
			mean, worst float64
		}{{100, 1.2, 0.98, 0.96}, {400, 1.2, 0.98, 0.96}, {400, 2, 0.98, 0.96}, {400, 1, 0.96, 0.93}, {400, 0.5, 0.995, 0.98}} {
			for _, window := range windows {
				for seed := range runs {
					p := plan{
						seed: seed, limit: uint32(x.hits * m), window: window, envoys: m, load: x.load, windows: 9, sidecars: c.sidecars, fifth: true,
					}
					r := simulate(t, p)
					t.Logf("%d x %d, W %v, L %d, load %v: usable %.4f, worst %.4f, %.4f messages", c.sidecars, c.each, window, p.limit, x.load, r.mean,
						r.worst, r.messages)
					if len(r.over) > 0 || r.mean < x.mean || r.worst < x.worst {
						t.Errorf("%+v: %+v", p, r)
					}
				}
			}
		}
	}
}

// TestWholeMoves requires that the sidecars follow when the load moves to the Envoys of another one.
func TestWholeMoves(t *testing.T) {
	for _, c := range []struct {
		window time.Duration
		mean   float64
	}{{10 * time.Second, 0.75}, {time.Minute, 0.8}} {
		r := simulate(t, plan{seed: 1, limit: 20000, window: c.window, envoys: 30, load: 1.2, windows: 13, move: true, sidecars: 3, skew: 10})
		t.Logf("W %v: usable %.4f, worst %.4f", c.window, r.mean, r.worst)
		if len(r.over) > 0 || r.mean < c.mean {
			t.Errorf("W %v: %+v", c.window, r)
		}
	}
}
