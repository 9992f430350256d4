//go:build !race

package quota

import (
	"testing"
	"time"
)

// TestWhole requires that several sidecars divide nearly the complete limit by their demands.
func TestWhole(t *testing.T) {
	for _, window := range []time.Duration{10 * time.Second, time.Minute} {
		for _, sidecars := range []int{1, 3, 10} {
			for _, each := range []int{1, 50} {
				for _, skew := range []float64{1, 10} {
					for _, load := range []float64{0.5, 1, 1.2, 2} {
						if each == 50 && sidecars == 10 && testing.Short() {
							continue
						}
						p := plan{seed: 1, limit: 20000, window: window, envoys: sidecars * each, load: load, windows: 10, sidecars: sidecars, skew: skew}
						r := simulate(t, p)
						t.Logf("W %v, %d x %d, 1:%v, load %.1f: usable %.4f, worst %.4f, %.4f messages", window, sidecars, each, skew, load, r.mean, r.worst, r.messages)
						if len(r.over) > 0 {
							t.Errorf("over: %v", r.over)
						}
					}
				}
			}
		}
	}
}
