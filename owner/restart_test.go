package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/policy"
)

// TestApproximateLosesAtMostItsPart restarts a member before it has reported its hits of an approximate rule. The
// owner never counts them, and the new boot has nothing to report: only the member's part of the slack is added.
func TestApproximateLosesAtMostItsPart(t *testing.T) {
	const most, slack, members = 1000, 200, 4
	w := newNetwork(t, 1, Options{}, "a", "b", "c", "d")
	req := ask(1, most, 365*24*time.Hour, 1)
	req.Mechanism, req.LeaseTerms = policy.Approximate, &lease.Terms{Slack: slack}
	owner := w.ring().At(w.ring().Owner(req.RingPos)).ID
	restarted := w.ids()[0]
	if restarted == owner {
		restarted = w.ids()[1]
	}
	w.mute = true
	var sum tally
	w.pour(req, 2000, 200*time.Millisecond, &sum)
	if f := w.nodes[restarted].Stats(w.now).Lease; f.Unsynced != slack/members {
		t.Fatalf("before the restart: %+v", f)
	}
	w.boot(restarted, membership.Active)
	w.adopt()
	if f := w.nodes[restarted].Stats(w.now).Lease; f.Unsynced != 0 {
		t.Errorf("after the restart: %+v", f)
	}
	w.mute = false
	w.run(5 * time.Second)
	known := take(w.nodes[owner], w.now, withOp(req, Read)).After
	if lost := sum.admitted - known; lost != slack/members {
		t.Errorf("%d admitted, the owner knows of %d: %d are lost, want %d", sum.admitted, known, lost, slack/members)
	}
	w.pour(req, 2000, 3*time.Second, &sum)
	if sum.admitted < most || sum.admitted > most+slack+slack/members {
		t.Errorf("%d of %d admitted, want at most %d more", sum.admitted, most, slack+slack/members)
	}
}

// TestAllMembersRestart restarts all members. Their counters are lost, so a key has its limit again: L for a window,
// the depth for a bucket.
func TestAllMembersRestart(t *testing.T) {
	for _, alg := range algorithms {
		w := newNetwork(t, 1, Options{}, "a", "b", "c")
		req := ask(1, 200, 365*24*time.Hour, 1)
		req.Rule.Algorithm = alg
		spent := uint64(200)
		if alg == limit.TokenBucket || alg == limit.LeakyBucket {
			req.Rule.Burst, spent = 30, 30
		}
		for boot := range 2 {
			var sum tally
			w.pour(req, 2000, 500*time.Millisecond, &sum)
			if sum.admitted != spent {
				t.Errorf("%v, boot %d: %d admitted, want %d", alg, boot, sum.admitted, spent)
			}
			for _, id := range w.ids() {
				w.boot(id, membership.Active)
			}
			w.queue = nil
			w.adopt()
			w.run(6 * time.Second)
		}
	}
}
