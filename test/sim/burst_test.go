package sim

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
)

// Fifty members receive 10,000 requests within 100 ms, and a few more after that, for a limit of 1,000: they admit
// exactly 1,000 hits.
func TestFiftyMembersAdmitExactlyTheLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	o := options{
		Seed: 1, Members: 50, Slots: 50, Keys: 1, Length: time.Minute, Requests: 1, Deadline: time.Second,
		Delay: time.Millisecond, Decay: time.Minute, Serial: true, Algorithms: []limit.Algorithm{limit.FixedWindow},
		Leases: leaseOptions{On: true, Wide: true, Calm: true, ByLease: 1},
	}
	w := newRunner(false).newWorld(o, noBug)
	r := &w.rules[0][0]
	r.limit = limit.Rule{Algorithm: limit.FixedWindow, Limit: 1000, Window: time.Minute}
	r.name(w.keys[0])
	w.safetySince = w.now
	if left := time.Duration(r.limit.End(r.limit.Index(w.now)) - w.now); left < 20*time.Second {
		t.Fatalf("the window ends in %v", left)
	}
	for range 10_000 {
		w.after(w.randomBelow(100*time.Millisecond), nil, w.sendRequest)
	}
	for range 500 {
		w.after(100*time.Millisecond+w.randomBelow(5*time.Second), nil, w.sendRequest)
	}
	w.run(8 * time.Second)
	w.oracle.finish()
	if w.failure != "" {
		t.Fatal(w.failure)
	}
	x := w.oracle.accountOrder[0].spans[0]
	t.Logf("%d requests, %d admitted, %d of them by owners, %d requests for leases", w.requests, x.admitted,
		x.byOwner, w.stats.Counts["lease: Ask for more"])
	if x.admitted != 1000 || w.stats.Counts["lease: admitted by its holder"] == 0 {
		t.Errorf("admitted %d of 1000, %d by holders", x.admitted, w.stats.Counts["lease: admitted by its holder"])
	}
}
