//go:build !race

package owner

import (
	"testing"
	"time"
)

// TestHotKeyIsLeasedAndCools requires that a hot key is leased within two seconds, has a name at its owner, and is
// decided by its owner alone again when it is not hot any more.
func TestHotKeyIsLeasedAndCools(t *testing.T) {
	w := newNetwork(t, 3, Options{HotRate: 200}, "a", "b", "c")
	req := ask(1, 100_000, time.Hour, 1)
	owner := w.nodes[w.ring().At(w.ring().Owner(req.RingPos)).ID]
	var sum tally
	w.pour(req, 100, 3*time.Second, &sum)
	if sum.local > 0 || len(owner.HotKeys(w.now)) > 0 {
		t.Fatalf("leased at half the rate: %+v", sum)
	}
	w.pour(req, 2000, 2*time.Second, &sum)
	hot := owner.HotKeys(w.now)
	if len(hot) != 1 || !hot[0].Hot || hot[0].RingPos != req.RingPos || hot[0].Rate < 1000 || len(hot[0].Holders) != 2 || !hot[0].Splittable {
		t.Fatalf("hot keys: %+v", hot)
	}
	for _, id := range w.ids() {
		w.nodes[id].Name(req.Key, KeyName{Domain: "shop", Name: "api_key=1", Owner: "1"}, nil)
		w.nodes[id].Name(key(99), KeyName{Domain: "shop", Name: "api_key=2", Owner: "2"}, nil)
	}
	sum = tally{}
	before := owner.Stats(w.now).Decided[Full]
	w.pour(req, 2000, 2*time.Second, &sum)
	if reached := owner.Stats(w.now).Decided[Full] - before; reached > 2000 || sum.local < 2000 {
		t.Errorf("%d of 4000 requests reached the owner, of which a third were sent to it directly: %+v", reached, sum)
	}
	if hot = owner.HotKeys(w.now); hot[0].Name != "api_key=1" || hot[0].Owner != "1" {
		t.Errorf("no name: %+v", hot)
	}
	w.run(45 * time.Second)
	for _, id := range w.ids() {
		n := w.nodes[id]
		if hot, held := n.HotKeys(w.now), n.Held(w.now); len(hot)+len(held) > 0 {
			t.Errorf("%s after it cooled: %+v %+v", id, hot, held)
		}
	}
	var after tally
	w.pour(req, 50, time.Second, &after)
	if after.local > 0 {
		t.Errorf("still leased: %+v", after)
	}
}

// TestHundredThousandRequestsPerSecond requires that members which decide 100,000 requests per second of one key from
// leases exchange at most 1,000 messages and forwarded requests per second with its owner.
func TestHundredThousandRequestsPerSecond(t *testing.T) {
	const rate, most = 100_000, 1000
	for _, members := range []int{3, 10} {
		w := newNetwork(t, 3, Options{}, many(members)...)
		req := leased(1, 2*rate, time.Second)
		exchanged := func() (n uint64) {
			for _, m := range w.nodes {
				n += m.Stats(w.now).Forwarded
			}
			return n + uint64(w.leased)
		}
		var before, sum tally
		w.pour(req, rate, time.Second, &before) // until the leases fit the demand
		was := exchanged()
		w.pour(req, rate, time.Second, &sum)
		n := exchanged() - was
		t.Logf("%d members: %+v, %d messages and forwarded requests", members, sum, n)
		if n > most {
			t.Errorf("%d members: %d messages and forwarded requests for %d requests, want at most %d", members, n, rate, most)
		}
		if sum.admitted != sum.asked {
			t.Errorf("%d members: %d of %d requests admitted below the limit", members, sum.admitted, sum.asked)
		}
	}
}

// TestHotKeyRarelyReachesItsOwner requires that a hot key with more hits than its limit causes at most one message to
// its owner for twenty requests, and that its limit is used completely.
func TestHotKeyRarelyReachesItsOwner(t *testing.T) {
	for _, members := range []int{3, 5} {
		w := newNetwork(t, 3, Options{HotRate: 500}, many(members)...)
		req := ask(1, 5000, time.Second, 1)
		asked := func() (n uint64) {
			for _, m := range w.nodes {
				n += m.Stats(w.now).Forwarded
			}
			return n
		}
		var before, sum tally
		w.pour(req, 8000, 2*time.Second, &before)
		was, messages := asked(), w.leased
		w.pour(req, 8000, 4*time.Second, &sum)
		others := sum.asked * uint64(members-1) / uint64(members)
		t.Logf("%d members: %+v, %d asked of the owner, %d messages", members, sum, asked()-was, w.leased-messages)
		if n := asked() - was; n*20 > others {
			t.Errorf("%d of %d requests reached the owner", n, others)
		}
		if sum.admitted > 4*5000 || sum.admitted < 4*5000*97/100 {
			t.Errorf("%d of %d admitted", sum.admitted, 4*5000)
		}
	}
}
