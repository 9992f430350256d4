//go:build !race

package quota

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// TestPause requires that Envoys which pause and then go on at half of the limit refuse few requests: in the mean of all
// pauses below a minute at most one and a half of a thousand. After a minute an id is forgotten: then an Envoy refuses until its first
// assignment arrives, and when that is spent, until its next report. KEYWARD_LONG adds seeds.
func TestPause(t *testing.T) {
	runs, total, plans := uint64(1), 0.0, 0.0
	if os.Getenv("KEYWARD_LONG") != "" {
		runs = 10
	}
	for _, window := range []time.Duration{10 * time.Second, time.Minute} {
		for _, pause := range []time.Duration{3 * time.Second, 12 * time.Second, 40 * time.Second, 70 * time.Second} {
			for _, c := range []struct {
				sidecars, each int
				skew           float64
			}{{1, 1, 1}, {1, 5, 1}, {3, 1, 1}, {3, 1, 10}, {3, 5, 1}, {3, 5, 10}} {
				if window == time.Minute && c.each > 1 && runs == 1 {
					continue
				}
				for _, apart := range []bool{false, true} {
					refused := testPause(t, runs, plan{
						limit: 20000, window: window, envoys: c.sidecars * c.each, load: 0.5, sidecars: c.sidecars, skew: c.skew,
						pause: pause, busy: 23 * time.Second, apart: apart, windows: 4 + int((4*(pause+23*time.Second)+window)/window),
					})
					if pause < abandonAfter {
						total, plans = total+refused, plans+1
					}
				}
			}
		}
	}
	if total /= plans; total > 0.0015 {
		t.Errorf("%.5f refused after pauses below a minute", total)
	}
}

// testPause returns the part of the requests that is refused.
func testPause(t *testing.T, runs uint64, p plan) float64 {
	worst, mean := 0.0, 0.0
	for p.seed = range runs {
		r := simulate(t, p)
		worst, mean = max(worst, r.refused), mean+r.refused/float64(runs)
		if len(r.over) > 0 {
			t.Errorf("%+v: above the limit: %v", p, r.over)
		}
	}
	name := fmt.Sprintf("W %v, pause %v, %d sidecars, %d Envoys, skew %v, apart %v", p.window, p.pause, p.sidecars, p.envoys, p.skew, p.apart)
	t.Logf("%s: %.4f refused, at most %.4f", name, mean, worst)
	most := 0.03
	if p.pause >= abandonAfter {
		most = 0.1
	}
	if mean > most {
		t.Errorf("%s: %.4f refused", name, mean)
	}
	return mean
}
