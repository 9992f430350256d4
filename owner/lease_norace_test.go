//go:build !race

package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
)

// TestLeasesAdmitTheLimit requires that members with leases together admit exactly the limit.
func TestLeasesAdmitTheLimit(t *testing.T) {
	for _, c := range []struct {
		members int
		limit   uint32
		asks    int
		over    time.Duration
	}{
		{2, 1000, 3000, time.Second}, {3, 5000, 8000, time.Second}, {10, 2000, 5000, 500 * time.Millisecond}, {50, 1000, 10_000, 100 * time.Millisecond},
	} {
		if c.members == 50 && testing.Short() {
			continue
		}
		for _, algorithm := range []limit.Algorithm{limit.FixedWindow, limit.SlidingWindow} {
			ids := many(c.members)
			w := newNetwork(t, 1, Options{}, ids...)
			w.now = t0 + int64(time.Hour)
			w.run(3 * time.Second)
			req := leased(1, c.limit, time.Minute)
			req.Rule.Algorithm = algorithm
			var sum tally
			for i := range c.asks {
				w.ask(ids[w.rnd.IntN(len(ids))], req, sum.count(&req))
				if i%max(1, c.asks*2/int(c.over/time.Millisecond)) == 0 {
					w.run(2 * time.Millisecond)
				}
			}
			for range 3 * c.limit / 100 { // what was left over is given back and can be had
				w.run(100 * time.Millisecond)
				w.ask(ids[w.rnd.IntN(len(ids))], req, sum.count(&req))
			}
			t.Logf("%d members, %v, limit %d: %+v, %d messages, %+v", c.members, algorithm, c.limit, sum, w.leased, facts(w))
			if sum.admitted != uint64(c.limit) {
				t.Errorf("%d members, %v: %d admitted of %d", c.members, algorithm, sum.admitted, c.limit)
			}
		}
	}
}
