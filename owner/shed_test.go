package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
)

// A question that is shed is refused and charged nowhere; a rule that fails open is answered by its fallback.
func TestShed(t *testing.T) {
	for _, alg := range []limit.Algorithm{limit.FixedWindow, limit.SlidingLog, limit.TokenBucket} {
		for _, fallback := range []policy.Degraded{policy.LocalShare, policy.FailClosed} {
			n := member(Options{Self: "a"}, t0, "a", "b")
			q := ask(1, 10, time.Minute, 1).degraded(fallback)
			q.Rule.Algorithm = alg
			for range 3 {
				a := n.Shed(t0, &q)
				if !a.Over || a.Authority != Shed || a.Kind != Decided || a.Path != Fallback || a.Remaining != 0 {
					t.Fatalf("%v, %v: %+v", alg, fallback, a)
				}
			}
			f := n.Stats(t0)
			if f.Decided[Shed] != 3 || f.Bound() != 0 || f.Keys+f.ShareKeys+f.ClosedKeys != 0 {
				t.Errorf("%v, %v: %+v", alg, fallback, f)
			}
			if d, _ := n.Decisions(); d[Shed] != 3 {
				t.Errorf("%v, %v: %v decisions", alg, fallback, d)
			}
			if q.Op = Refund; n.Shed(t0, &q).Over {
				t.Errorf("%v, %v: a refund is over", alg, fallback)
			}
		}
	}
	n := member(Options{Self: "a"}, t0, "a", "b")
	open := ask(1, 10, time.Minute, 1).degraded(policy.FailOpen)
	if a := n.Shed(t0, &open); a.Over || a.Authority != Open {
		t.Errorf("fail_open: %+v", a)
	}
}
