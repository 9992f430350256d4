package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
)

// TestShed requires that a shed request is refused and charged nowhere, and that a rule that fails open is decided by
// its policy.
func TestShed(t *testing.T) {
	for _, alg := range []limit.Algorithm{limit.FixedWindow, limit.SlidingLog, limit.TokenBucket} {
		for _, fallback := range []policy.Degraded{policy.LocalShare, policy.FailClosed} {
			n := member(Options{Self: "a"}, t0, "a", "b")
			req := withDegraded(ask(1, 10, time.Minute, 1), fallback)
			req.Rule.Algorithm = alg
			for range 3 {
				res := n.Shed(t0, &req)
				if !res.Over || res.Authority != Shed || res.Kind != Decided || res.Path != Fallback || res.Remaining != 0 {
					t.Fatalf("%v, %v: %+v", alg, fallback, res)
				}
			}
			f := n.Stats(t0)
			if f.Decided[Shed] != 3 || f.Bound() != 0 || f.Keys+f.ShareKeys+f.ClosedKeys != 0 {
				t.Errorf("%v, %v: %+v", alg, fallback, f)
			}
			if d, _ := n.Decisions(); d[Shed] != 3 {
				t.Errorf("%v, %v: %v decisions", alg, fallback, d)
			}
			if req.Op = Refund; n.Shed(t0, &req).Over {
				t.Errorf("%v, %v: a refund is over", alg, fallback)
			}
		}
	}
	n := member(Options{Self: "a"}, t0, "a", "b")
	open := withDegraded(ask(1, 10, time.Minute, 1), policy.FailOpen)
	if res := n.Shed(t0, &open); res.Over || res.Authority != Open {
		t.Errorf("fail_open: %+v", res)
	}
}
