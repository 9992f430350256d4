//go:build !race

package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
)

// TestApproximateStaysWithinItsSlack requires that an approximate rule admits no more than its slack beyond its limit,
// with few messages.
func TestApproximateStaysWithinItsSlack(t *testing.T) {
	for _, algorithm := range []limit.Algorithm{limit.FixedWindow, limit.SlidingWindow, limit.TokenBucket} {
		for seed := range uint64(6) {
			w := newNetwork(t, seed, Options{}, "a", "b", "c", "d")
			w.lossy = float64(seed%3) * 0.1
			req := ask(1, 20_000, time.Hour, 1)
			req.Rule.Algorithm, req.Mechanism, req.LeaseTerms = algorithm, policy.Approximate, &lease.Terms{Slack: 200}
			before := w.leased
			var sum tally
			begin := w.now
			w.pour(req, 10_000, 3*time.Second, &sum)
			drained := uint64(0)
			if algorithm.Bucket() {
				drained = uint64(w.now-begin) * 20_000 / uint64(time.Hour)
			}
			asked := sum.asked - sum.local
			t.Logf("%v, seed %d: %+v, %d messages, %d asked elsewhere or of the owner itself", algorithm, seed, sum, w.leased-before, asked)
			if sum.admitted < 20_000 || sum.admitted > 20_200+drained {
				t.Errorf("%v, seed %d: %d admitted of 20000", algorithm, seed, sum.admitted)
			}
		}
	}
}
