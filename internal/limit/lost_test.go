package limit

import (
	"testing"
	"time"
)

// TestDropLost requires that DropLost removes exactly what ChargeLost added.
func TestDropLost(t *testing.T) {
	const window = 24 * time.Hour
	now := int64(1_700_000_000e9) + int64(20*time.Hour)
	for _, alg := range []Algorithm{FixedWindow, SlidingWindow, SlidingLog, TokenBucket, LeakyBucket} {
		for _, charged := range []uint64{0, 7} {
			r := Rule{Algorithm: alg, Window: window, Limit: 100}
			var s State
			if charged > 0 {
				r.Take(&s, now, 5, charged)
			}
			if r.DropLost(&s) {
				t.Errorf("%v: drops charges that ChargeLost did not add", alg)
			}
			before := r.Used(&s, now)
			r.ChargeLost(&s, now)
			if charged == 0 && r.Used(&s, now) == 0 {
				t.Fatalf("%v: nothing is charged for lost state", alg)
			}
			if !r.DropLost(&s) {
				t.Errorf("%v: reports nothing to drop", alg)
			}
			if after := r.Used(&s, now); after != before {
				t.Errorf("%v: %d were used, and %d after the drop", alg, before, after)
			}
		}
	}
}
