package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/ring"
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

// TestApproximateBelowTheLowWatermark requires that the owner decides every request once less than the watermark of the
// limit is left, and again none when a new window has begun.
func TestApproximateBelowTheLowWatermark(t *testing.T) {
	for _, watermark := range []uint8{0, 50} {
		w := newNetwork(t, 1, Options{}, "a", "b", "c", "d")
		req := ask(1, 2000, 10*time.Second, 1)
		req.Mechanism, req.LeaseTerms = policy.Approximate, &lease.Terms{Slack: 400, Watermark: watermark}
		others := func() (ids []ring.ID) {
			for _, id := range w.ids() {
				if id != w.ring().At(w.ring().Owner(req.RingPos)).ID {
					ids = append(ids, id)
				}
			}
			return ids
		}()
		w.run(time.Duration(10*second - w.now%(10*second))) // to the next window
		askEach := func(n int) (sum tally) {
			for range n {
				for _, id := range others {
					w.ask(id, req, sum.count(&req))
					w.run(2 * time.Millisecond)
				}
			}
			return sum
		}
		askEach(320) // 960 hits: more than half is left
		first := askEach(50)
		w.run(2 * time.Second) // all of them are reported
		later := askEach(50)
		exact := later.local == 0 && later.admitted == 150
		if first.local == 0 || exact != (watermark > 0) {
			t.Errorf("watermark %d: %+v above it, %+v below it", watermark, first, later)
		}
		for _, id := range w.ids() {
			if f := w.nodes[id].Stats(w.now).Lease; watermark > 0 && f.Unsynced != 0 {
				t.Errorf("watermark %d: %s: %+v", watermark, id, f)
			}
		}
		w.run(time.Duration(10*second - w.now%(10*second)))
		if next := askEach(10); next.local != 30 {
			t.Errorf("watermark %d: %+v in the next window", watermark, next)
		}
	}
}

// TestApproximateBelowTheLocalWatermark requires that the owner decides requests while less than the watermark of a
// member's own part of the slack is left, until the member has reported what it has admitted.
func TestApproximateBelowTheLocalWatermark(t *testing.T) {
	w := newNetwork(t, 1, Options{}, "a", "b", "c", "d")
	req := ask(1, 1_000_000, time.Hour, 1)
	req.Mechanism, req.LeaseTerms = policy.Approximate, &lease.Terms{Slack: 200, LocalWatermark: 20}
	w.mute = true
	var sum tally
	w.pour(req, 2000, time.Second, &sum)
	owner := w.ring().At(w.ring().Owner(req.RingPos)).ID
	for _, id := range w.ids() {
		if f := w.nodes[id].Stats(w.now).Lease; id != owner && (f.Unsynced != 40 || f.Approximated != 40) {
			t.Errorf("%s: %+v", id, f)
		}
	}
	w.mute = false
	w.run(2 * time.Second)
	for _, id := range w.ids() {
		before := w.nodes[id].Stats(w.now).Lease
		res := take(w.nodes[id], w.now, req)
		if f := w.nodes[id].Stats(w.now).Lease; id != owner && (before.Unsynced != 0 || f.Approximated != 41 || res.Path != Leased) {
			t.Errorf("%s, after its report: %+v, %+v", id, f, res)
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

// TestApproximateReportsAtItsInterval requires that a member reports few hits after the rule's interval, 2 s by default,
// and not before.
func TestApproximateReportsAtItsInterval(t *testing.T) {
	for sync, interval := range map[time.Duration]time.Duration{
		0: 2 * time.Second, 300 * time.Millisecond: 300 * time.Millisecond, 5 * time.Second: 5 * time.Second,
	} {
		w := newNetwork(t, 1, Options{}, "a", "b", "c", "d")
		req := ask(1, 1_000_000, time.Hour, 1)
		req.Mechanism, req.LeaseTerms = policy.Approximate, &lease.Terms{Slack: 400, Sync: sync}
		holder := w.ids()[0]
		if holder == w.ring().At(w.ring().Owner(req.RingPos)).ID {
			holder = w.ids()[1]
		}
		n, begin := w.nodes[holder], w.now
		unsynced := func(after time.Duration) uint64 {
			w.run(after - time.Duration(w.now-begin))
			return n.Stats(w.now).Lease.Unsynced
		}
		take(n, w.now, req)
		if u := unsynced(100 * time.Millisecond); u != 0 { // the first report is sent at once
			t.Fatalf("sync_interval %v: the first hit is not reported", sync)
		}
		if res := take(n, w.now, req); res.Path != Leased {
			t.Fatalf("sync_interval %v: %+v", sync, res)
		}
		if u := unsynced(interval - 20*time.Millisecond); u != 1 {
			t.Errorf("sync_interval %v: %d hits are not reported before the interval ends, want 1", sync, u)
		}
		if u := unsynced(interval + 300*time.Millisecond); u != 0 {
			t.Errorf("sync_interval %v: %d hits are not reported after the interval", sync, u)
		}
	}
}
