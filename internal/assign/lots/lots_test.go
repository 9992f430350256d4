package lots

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/quota"
	"github.com/keyward/keyward/owner"
)

// TestClocksDiffer checks that a charge is assigned although the owner's clock differs by less than half a window, and that one
// which the owner may have charged to another window is released.
func TestClocksDiffer(t *testing.T) {
	const window = 10 * time.Second
	now := 1_000_000*int64(window) + int64(time.Second)
	r := owner.Request{Rule: limit.Rule{Limit: 100, Window: window}}
	for ahead, want := range map[time.Duration]bool{ // how much the owner's clock is ahead
		0: true, time.Second: true, 4 * time.Second: true, 6 * time.Second: false, 10 * time.Second: false,
		-4 * time.Second: true, -6 * time.Second: false,
	} {
		for _, next := range []int64{0, 1} {
			h := quota.WindowHits{Window: r.Rule.Index(now) + next, Hits: 10}
			q, l, ok := Reserve(r, h, now, claim.Ident{1})
			if !ok || q.Hold.Ahead != (next == 1) {
				t.Fatalf("window %d: %+v, %v", next, q, ok)
			}
			left := time.Duration(r.Rule.End(h.Window)-now) - ahead
			charged, release, _ := Charged(&q, &l, &owner.Result{Decision: limit.Decision{After: 10, Reset: left}, Authority: owner.Full}, now)
			if charged != want || release == want {
				t.Errorf("the owner is %v ahead, window %d: charged %v, release %v", ahead, next, charged, release)
			}
		}
	}
}
