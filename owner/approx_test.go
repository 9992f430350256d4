package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
)

// TestApproximateWaitsForTheOwner requires that members whose reports do not arrive admit their part of the slack and
// no more, and that all hits are counted when the reports arrive.
func TestApproximateWaitsForTheOwner(t *testing.T) {
	w := newNetwork(t, 1, Options{}, "a", "b", "c", "d")
	req := ask(1, 1_000_000, time.Hour, 1)
	req.Mechanism, req.LeaseTerms = policy.Approximate, &lease.Terms{Slack: 200}
	w.mute = true
	var sum tally
	w.pour(req, 2000, time.Second, &sum)
	owner := w.ring().At(w.ring().Owner(req.RingPos)).ID
	for _, id := range w.ids() {
		if f := w.nodes[id].Stats(w.now).Lease; id != owner && (f.Unsynced != 50 || f.Approximated != 50) {
			t.Errorf("%s: %+v", id, f)
		}
	}
	w.mute = false
	w.run(3 * time.Second)
	if used := take(w.nodes[owner], w.now, withOp(req, Read)).After; used != sum.admitted {
		t.Errorf("%d were admitted, the owner knows of %d", sum.admitted, used)
	}
	for _, id := range w.ids() {
		if f := w.nodes[id].Stats(w.now).Lease; f.Unsynced != 0 {
			t.Errorf("%s: %+v", id, f)
		}
	}
}

// TestApproximateReportsWhatHasDrained requires that a hit that has drained from a member's copy of a bucket is
// reported: the owner's bucket may be full.
func TestApproximateReportsWhatHasDrained(t *testing.T) {
	w := newNetwork(t, 1, Options{}, "a", "b", "c", "d")
	req := ask(1, 36_000, time.Hour, 1) // ten a second
	req.Rule.Algorithm, req.Rule.Burst, req.Mechanism, req.LeaseTerms = limit.TokenBucket, 100, policy.Approximate, &lease.Terms{Slack: 40}
	owner := w.ring().At(w.ring().Owner(req.RingPos)).ID
	begin := w.now
	for range 2 { // the first is reported at once, the second after two seconds
		for _, id := range w.ids() {
			if res := take(w.nodes[id], w.now, req); id != owner && res.Path != Leased {
				t.Fatalf("%s: %+v", id, res)
			}
		}
		w.run(100 * time.Millisecond)
	}
	for range 85 {
		take(w.nodes[owner], w.now, req)
	}
	w.run(4 * time.Second)
	want := 93 - uint64(time.Duration(w.now-begin)/(100*time.Millisecond))
	if used := take(w.nodes[owner], w.now, withOp(req, Read)).After; used != want && used != want+1 {
		t.Errorf("the owner's bucket has %d hits, not %d", used, want)
	}
}
