package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/lease"
)

// A member of an approximate rule restarts before it has reported what it admitted. The owner never learns of those hits, and the new boot
// has nothing to report: beyond the slack, only the member's part of it is added.
func TestApproximateForgetsAtMostItsPart(t *testing.T) {
	const limit, slack, members = 1000, 200, 4
	w := newNetwork(t, 1, Options{}, "a", "b", "c", "d")
	q := ask(1, limit, 365*24*time.Hour, 1)
	q.Mechanism, q.Knobs = Approximate, &lease.Knobs{Slack: slack}
	owner := w.ring().At(w.ring().Owner(q.Owner)).ID
	restarted := w.ids()[0]
	if restarted == owner {
		restarted = w.ids()[1]
	}
	w.mute = true
	var sum tally
	w.pour(q, 2000, 200*time.Millisecond, &sum)
	if f := w.nodes[restarted].Facts(w.now).Lease; f.Unsynced != slack/members {
		t.Fatalf("before the restart: %+v", f)
	}
	w.boot(restarted, handoff.Active)
	w.adopt()
	if f := w.nodes[restarted].Facts(w.now).Lease; f.Unsynced != 0 {
		t.Errorf("after the restart: %+v", f)
	}
	w.mute = false
	w.run(5 * time.Second)
	known := take(w.nodes[owner], w.now, q.op(Look)).After
	if lost := sum.admitted - known; lost != slack/members {
		t.Errorf("%d admitted, the owner knows of %d: %d are lost, want %d", sum.admitted, known, lost, slack/members)
	}
	w.pour(q, 2000, 3*time.Second, &sum)
	if sum.admitted < limit || sum.admitted > limit+slack+slack/members {
		t.Errorf("%d of %d admitted, want at most %d more", sum.admitted, limit, slack+slack/members)
	}
}
