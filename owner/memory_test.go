package owner

import (
	"math"
	"testing"
	"time"

	"github.com/keyward/keyward/owner/internal/counter"
)

func spread(i int) Key { return Key{counter.Mix(uint64(i) + 1), counter.Mix(^uint64(i))} }

// TestCountsBeyondAnEntry requires that counts too large for an entry are exact, and can be refunded.
func TestCountsBeyondAnEntry(t *testing.T) {
	for _, window := range []time.Duration{time.Hour, 3 * time.Microsecond} {
		n := alone(Options{})
		req := ask(1, math.MaxUint32, window, math.MaxUint32-1)
		for i, want := range []uint64{1<<32 - 2, 1<<33 - 4, 3<<32 - 6} {
			if res := take(n, t0, req); res.After != want || res.Over != (i > 0) {
				t.Fatalf("%v: %+v, want %d", window, res, want)
			}
		}
		req.Hits = 1 << 33
		if res := take(n, t0, withOp(req, Refund)); res.After != 3<<32-6-1<<33 {
			t.Errorf("%v: after the refund %+v", window, res)
		}
		if res := take(n, t0+int64(window), withOp(req, DryRun)); res.Before != 0 {
			t.Errorf("%v: in the next window %+v", window, res)
		}
	}
}

// TestWindowsShorterThanAUnit requires that consecutive windows within one counter.Unit are separate.
func TestWindowsShorterThanAUnit(t *testing.T) {
	for _, window := range []time.Duration{time.Microsecond, 999_983, counter.Unit - 1, counter.Unit, counter.Unit + 1, 1_500_007} {
		n := alone(Options{})
		start := t0 + int64(window) - t0%int64(window)
		for i := range int64(5) {
			for hit := range uint64(3) {
				if res := take(n, start+i*int64(window)+int64(hit), ask(1, 2, window, 1)); res.Before != hit || res.Over != (hit == 2) {
					t.Fatalf("window %v, %d: %+v, want %d", window, i, res, hit)
				}
			}
		}
	}
}
