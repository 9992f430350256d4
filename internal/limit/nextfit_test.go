package limit

import (
	"testing"
	"time"
)

// TestNextFitIsExact requires that a hit fits at that time and not a nanosecond earlier, unless it is 0.
func TestNextFitIsExact(t *testing.T) {
	for a := range Algorithm(algorithms) {
		r := Rule{Window: 7 * time.Second, Limit: 30, Burst: 11, Algorithm: a}
		now := int64(1_000_003 * time.Second)
		var s State
		if got := r.NextFit(&s, now); got != 0 {
			t.Errorf("%v: %v for an empty counter", a, got)
		}
		for range r.Depth() {
			now += int64(13 * time.Millisecond)
			r.Take(&s, now, 3, 1)
		}
		left := int64(r.NextFit(&s, now))
		if left <= 0 || r.Peek(&s, now+left, 1).Over || !r.Peek(&s, now+left-1, 1).Over {
			t.Errorf("%v: a hit does not start to fit after %v", a, time.Duration(left))
		}
	}
}
