package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/ring"
)

// TestSuccessorGetsReplicaInTheEnd requires that a successor gets a replica soon after it can be reached again if
// another member has confirmed it instead and the key is above its limit, so that no later charge is sent. It is the
// successor that takes over.
func TestSuccessorGetsReplicaInTheEnd(t *testing.T) {
	w := newNetwork(t, 1, Options{}, "a", "b", "c")
	req := strictOf(t, w, "a", "b")
	knows := func(id ring.ID) bool {
		s, hash := w.nodes[id].shard(req.Key)
		return s.counters.Owned.Find(hash, req.Key) != nil
	}
	w.cut = func(from, to ring.ID) bool { return from == "a" && to == "b" }
	admitted := false
	w.ask("a", req, func(res Result) { admitted = admittedFully(&res) })
	w.run(300 * time.Millisecond)
	if !admitted || knows("b") || !knows("c") {
		t.Fatalf("admitted %v; the successor has: %v, the other: %v", admitted, knows("b"), knows("c"))
	}
	w.cut = nil
	w.run(time.Second) // it is heard of by its next heartbeat
	if !knows("b") {
		t.Fatal("the successor has no replica of the key")
	}
	sent := w.seen[protocol.Replica]
	w.run(500 * time.Millisecond)
	if n := w.seen[protocol.Replica]; n != sent {
		t.Fatalf("%d more batches, with nothing to replicate", n-sent)
	}
}

// TestSuccessorHasWhatAnotherConfirmed crashes the member that has confirmed a replica instead of the successor, and
// long after it the owner. It requires that no member treats the state as lost, because the successor is live.
func TestSuccessorHasWhatAnotherConfirmed(t *testing.T) {
	w := newNetwork(t, 1, Options{}, "a", "b", "c")
	req := strictOf(t, w, "a", "b")
	w.cut = func(from, to ring.ID) bool { return from == "a" && to == "b" }
	admitted := w.admits("a", req)
	w.cut = nil
	for _, dies := range []ring.ID{"c", "a"} {
		w.run(4 * time.Second)
		delete(w.nodes, dies)
		w.nref = len(w.nodes)
		w.adopt()
	}
	w.run(4 * time.Second)
	w.requireOne(t, "b", req, admitted)
}

// TestNextOwnerHasWhatTheFormerOneReplicated cuts a key's owner off the member that is to own it next, so that it goes on
// deciding, and another member confirms its charges. Then the owner crashes. It requires that the next owner has them from
// that member, which has transferred the key's counter long before, on the same ring.
func TestNextOwnerHasWhatTheFormerOneReplicated(t *testing.T) {
	for name, change := range map[string]struct {
		members []ring.ID
		begin   func(*network)
	}{
		"the next owner joins": {[]ring.ID{"a", "b"}, func(w *network) { w.boot("c", membership.Active) }},
		"the owner leaves":     {[]ring.ID{"a", "b", "c"}, func(w *network) { w.states["b"] = membership.Leaving }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newNetwork(t, 1, Options{}, change.members...)
			before := w.ring()
			w.cut = func(from, to ring.ID) bool { return from == "b" && to == "c" || from == "c" && to == "b" }
			change.begin(w)
			w.nref = 3
			w.adopt()
			w.run(2 * time.Second)
			req, r := Request{}, w.ring()
			for i := 0; i == 0 || r.At(r.Owner(req.RingPos)).ID != "c" || before.At(before.Owner(req.RingPos)).ID != "b"; i++ {
				req = ask(i, 1, time.Minute, 1)
			}
			req.Strict = true
			admitted := w.admits("b", req)
			if *admitted != 1 {
				t.Fatal("the owner does not decide while the next one cannot reach it")
			}
			w.run(300 * time.Millisecond)
			delete(w.nodes, "b")
			w.adopt()
			w.run(4 * time.Second)
			w.requireOne(t, "c", req, admitted)
		})
	}
}

// TestNextOwnerHasWhatALeaverCopied makes the only member leave when two others have started, cuts it off the one that is to
// own a key, and crashes it. It requires that this one gets the key from the other one, which has the leaver's copy for the
// key's successor, but had transferred what it had, nothing, before that.
func TestNextOwnerHasWhatALeaverCopied(t *testing.T) {
	w := newNetwork(t, 1, Options{}, "a")
	w.cut = func(from, to ring.ID) bool { return from == "a" && to == "c" || from == "c" && to == "a" }
	w.boot("b", membership.Active)
	w.boot("c", membership.Active)
	w.states["a"], w.nref = membership.Leaving, 2
	req := strictOf(t, w, "c", "b")
	admitted := w.admits("a", req)
	w.adopt()
	w.run(3 * time.Second)
	delete(w.nodes, "a")
	w.adopt()
	w.run(4 * time.Second)
	w.requireOne(t, "c", req, admitted)
}

// admits asks member id, and returns how many hits owners have admitted for that so far: the answer may come later.
func (w *network) admits(id ring.ID, req Request) *int {
	n := new(int)
	w.ask(id, req, func(res Result) { *n += b2i(admittedFully(&res)) })
	return n
}

// requireOne asks member id again. It requires that id decides as the owner, and that one hit was admitted, with those of
// before.
func (w *network) requireOne(t *testing.T, id ring.ID, req Request, before *int) {
	t.Helper()
	decided := Result{}
	w.ask(id, req, func(res Result) { decided = res; *before += b2i(admittedFully(&res)) })
	if *before != 1 || decided.Authority != Full {
		t.Fatalf("%d admitted of 1, the last answer is %+v", *before, decided)
	}
}

func admittedFully(res *Result) bool {
	return res.Kind == Decided && res.Authority == Full && !res.Over
}

// strictOf returns a request for a key of owner, with a successor, of which one hit a minute is admitted and
// replicated before it is decided.
func strictOf(t *testing.T, w *network, owner, successor ring.ID) Request {
	t.Helper()
	for i, r := 0, w.ring(); i < 10_000; i++ {
		req := ask(i, 1, time.Minute, 1)
		if req.Strict = true; r.At(r.Owner(req.RingPos)).ID == owner && r.At(r.Successor(req.RingPos)).ID == successor {
			return req
		}
	}
	t.Fatalf("%s has no key with successor %s", owner, successor)
	return Request{}
}
