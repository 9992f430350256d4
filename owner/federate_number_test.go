package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/handoff"
)

// TestNumbersOfRequestsDiffer requires that the requests of two escrows of a key, of which one ends at the time at which the
// other one begins, have different numbers: the reply to the first would lend to the second what the pool has
// been given back.
func TestNumbersOfRequestsDiffer(t *testing.T) {
	w := newRegions(t, 1, 1)
	n := w.nodes[0]
	q := w.ask(100, time.Minute)
	for waiter := range 20 { // more than the floor
		q.Waiter = waiter
		n.Decide(w.now, &q)
	}
	w.perform(0, n.Flush(w.now))
	w.wait(1000)
	s, _ := n.shard(q.Key)
	x := s.escrows.keys[q.Key]
	if x == nil {
		t.Fatal("the key has no escrow")
	}
	if len(w.flights) == 0 {
		t.Fatal("no request is on its way")
	}
	first := w.flights[len(w.flights)-1].r.Request.Seq
	w.flights = nil
	var fx Ready
	n.passOn(s, q.Key, x, w.now, handoff.Ownership{}, &fx)
	n.dropEscrow(s, q.Key)
	w.perform(0, fx)
	for waiter := range 200 {
		q.Waiter = 100 + waiter
		n.Decide(w.now, &q)
	}
	w.perform(0, n.Flush(w.now))
	if len(w.flights) == 0 || w.flights[len(w.flights)-1].r.Request.Seq <= first {
		t.Errorf("after number %d: %+v", first, w.flights)
	}
}
