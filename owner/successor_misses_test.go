package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/ring"
)

// A copy does not reach the heir, another member confirms it instead, and the key is over its limit, so that no later
// charge tells of it. The heir must not be without it for longer than it cannot be reached, for it is the one that
// takes over.
func TestHeirIsToldInTheEnd(t *testing.T) {
	w := newNetwork(t, 1, Options{}, "a", "b", "c")
	req := strictOf(t, w, "a", "b")
	knows := func(id ring.ID) bool {
		s, hash := w.nodes[id].shard(req.Key)
		return s.counters.Owned.Find(hash, req.Key) != nil
	}
	w.cut = func(from, to ring.ID) bool { return from == "a" && to == "b" }
	admitted := false
	w.ask("a", req, func(res Result) { admitted = res.Kind == Decided && res.Authority == Full && !res.Over })
	w.run(300 * time.Millisecond)
	if !admitted || knows("b") || !knows("c") {
		t.Fatalf("admitted %v; the heir knows: %v, the other: %v", admitted, knows("b"), knows("c"))
	}
	w.cut = nil
	w.run(time.Second) // it is heard of by its next heartbeat
	if !knows("b") {
		t.Fatal("the heir knows nothing of the key")
	}
	if c := &w.nodes["a"].serial.replicator; len(c.successorMisses) > 0 {
		t.Fatalf("still astray: %v", c.successorMisses)
	}
	sent := w.nodes["a"].serial.replicator.next
	w.run(500 * time.Millisecond)
	if n := w.nodes["a"].serial.replicator.next; n != sent {
		t.Fatalf("%d more batches, with nothing to tell", n-sent)
	}
}

// The one that has confirmed instead of the heir dies, and long after it the owner. Nobody takes the state for lost,
// as the heir lives.
func TestHeirKnowsWhatAnotherConfirmed(t *testing.T) {
	w := newNetwork(t, 1, Options{}, "a", "b", "c")
	req := strictOf(t, w, "a", "b")
	w.cut = func(from, to ring.ID) bool { return from == "a" && to == "b" }
	admitted := 0
	count := func(res Result) { admitted += b2i(res.Kind == Decided && res.Authority == Full && !res.Over) }
	w.ask("a", req, count)
	w.cut = nil
	for _, dies := range []ring.ID{"c", "a"} {
		w.run(4 * time.Second)
		delete(w.nodes, dies)
		w.nref = len(w.nodes)
		w.adopt()
	}
	w.run(4 * time.Second)
	decided := Result{}
	w.ask("b", req, func(res Result) { decided = res; count(res) })
	if admitted != 1 || decided.Authority != Full {
		t.Fatalf("%d admitted of 1, the last answer is %+v", admitted, decided)
	}
}

// strictOf is a question on a key of owner, with an heir, of which one hit a minute is admitted and known to two
// before it is answered.
func strictOf(t *testing.T, w *network, owner, heir ring.ID) Request {
	t.Helper()
	for i, r := 0, w.ring(); i < 10_000; i++ {
		req := ask(i, 1, time.Minute, 1)
		if req.Strict = true; r.At(r.Owner(req.RingPos)).ID == owner && r.At(r.Successor(req.RingPos)).ID == heir {
			return req
		}
	}
	t.Fatalf("%s has no key with heir %s", owner, heir)
	return Request{}
}
