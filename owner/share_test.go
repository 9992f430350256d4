package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/ring"
)

// TestSharesAreReported requires that hits admitted from a local share reach the owner, exactly once, also if the
// owner changes.
func TestSharesAreReported(t *testing.T) {
	for _, alg := range algorithms {
		w := newNetwork(t, 3, Options{}, "a", "b", "c")
		key := ownedBy(t, w.ring(), "b", 0)
		q := func(hits uint64) Request {
			req := ask(key, 30, time.Hour, hits)
			req.Rule.Algorithm = alg
			return req
		}
		w.cut = func(from, to ring.ID) bool { return from == "a" && to == "b" || from == "b" && to == "a" }
		w.ask("c", q(5), func(res Result) {
			if res.Authority != Full || res.After != 5 {
				t.Errorf("%v: by the owner: %+v", alg, res)
			}
		})
		w.ask("a", q(4), func(res Result) {
			if res.Authority != Share || res.Over {
				t.Errorf("%v: by share: %+v", alg, res)
			}
		})
		w.run(100 * time.Millisecond)
		w.cut = nil
		w.run(300 * time.Millisecond)
		w.ask("c", q(0), func(res Result) {
			if res.Authority != Full || res.Before != 9 {
				t.Errorf("%v: the share did not reach the owner: %+v", alg, res)
			}
		})
		// The member that decided becomes the owner.
		w.states["b"], w.states["c"], w.nref = membership.Leaving, membership.Leaving, 1
		w.adopt()
		w.run(3 * time.Second)
		w.ask("a", q(0), func(res Result) {
			if res.Authority != Full || res.Before != 9 {
				t.Errorf("%v: at the new owner: %+v", alg, res)
			}
		})
		if f := w.nodes["a"].Stats(w.now); f.ShareBound != 4 || f.ShareUnreported != 0 {
			t.Errorf("%v: %+v", alg, f)
		}
	}
}

// TestPartition requires that both sides of a partition admit no more than the limit plus the parts that were allowed,
// and that one side alone can continue.
func TestPartition(t *testing.T) {
	for _, c := range []struct {
		policy policy.Partition
		rule   policy.PartitionChoice
		by     policy.Mechanism
		part   uint64 // admitted by the part of two of five
	}{
		{policy.PartShare, 0, policy.ByOwner, 40},
		{policy.PartAvailable, 0, policy.ByOwner, 100},
		{policy.PartQuorum, 0, policy.ByOwner, 0},
		{policy.PartQuorum, policy.Choose(policy.PartShare), policy.ByOwner, 40},
		{policy.PartShare, policy.Choose(policy.PartAvailable), policy.ByOwner, 100},
		{policy.PartAvailable, policy.Choose(policy.PartQuorum), policy.ByOwner, 0},
		{policy.PartAvailable, policy.Choose(policy.PartQuorum), policy.ByLease, 0},
		{policy.PartAvailable, policy.Choose(policy.PartShare), policy.ByLease, 40},
		{policy.PartQuorum, policy.Choose(policy.PartAvailable), policy.ByLease, 100},
	} {
		w := newNetwork(t, 3, Options{Policy: c.policy}, "a", "b", "c", "d", "e")
		side := func(id ring.ID) bool { return id == "a" || id == "b" }
		w.cut = func(from, to ring.ID) bool { return side(from) != side(to) }
		w.run(2 * time.Second)
		key := ownedBy(t, w.ring(), "a", 0)
		admitted := uint64(0)
		for range 150 {
			req := ask(key, 100, time.Hour, 1)
			req.Partition, req.Mechanism, req.LeaseTerms = c.rule, c.by, &lease.Terms{Partition: c.rule}
			w.ask("b", req, func(res Result) {
				if res.Authority == Share {
					t.Fatalf("policy %d: %+v", c.policy, res)
				}
				if !res.Over {
					admitted++
				}
				if res.Over != (res.After > 100) && res.Path != Leased {
					t.Fatalf("policy %d: %+v", c.policy, res)
				}
			})
			w.run(4 * time.Millisecond)
		}
		if admitted != c.part {
			t.Errorf("%+v: %d admitted", c, admitted)
		}
	}
}

// TestCutOffMemberFallsToItsShare requires that a member that no other confirms decides from its local share, and as
// the owner again when it is confirmed.
func TestCutOffMemberFallsToItsShare(t *testing.T) {
	w := newNetwork(t, 3, Options{}, "a", "b", "c")
	key := ownedBy(t, w.ring(), "a", 0)
	w.cut = func(from, to ring.ID) bool { return from == "a" || to == "a" }
	w.run(2 * time.Second)
	w.ask("a", ask(key, 30, time.Hour, 1), func(res Result) {
		if res.Authority != Share {
			t.Errorf("cut off: %+v", res)
		}
	})
	w.cut = nil
	w.run(5 * time.Second)
	w.ask("b", ask(key, 30, time.Hour, 0), func(res Result) {
		if res.Authority != Full || res.Before != 1 {
			t.Errorf("healed: %+v", res)
		}
	})
}

// TestUnconfirmedChargesWait requires that no more than U hits are admitted with full authority if no replica is
// confirmed, and that a strict request waits from the first hit on.
func TestUnconfirmedChargesWait(t *testing.T) {
	w := newNetwork(t, 3, Options{}, "a", "b", "c")
	n := w.nodes["a"]
	key := ownedBy(t, w.ring(), "a", 0)
	req := ask(key, 1000, time.Hour, 4)
	for i, want := range []ResultKind{Decided, Decided, Pending, Pending} { // U is 10
		req.Waiter = i
		if res := take(n, w.now, req); res.Kind != want {
			t.Fatalf("hit %d: %+v", i, res)
		}
	}
	if f := n.Stats(w.now); f.Unreplicated != 16 || f.UnreplicatedIn != 16 || f.Pending != 2 {
		t.Errorf("%+v", f)
	}
	if res := take(n, w.now, withOp(req, DryRun)); res.Kind != Decided || res.Before != 16 {
		t.Errorf("a peek waits: %+v", res)
	}
	w.run(20 * time.Millisecond)
	if f := n.Stats(w.now); f.Unreplicated != 0 || f.Pending != 0 || len(w.done["a"]) != 2 {
		t.Errorf("%+v, %v", f, w.done["a"])
	}
	strict := ask(key, 1000, time.Hour, 1)
	strict.Strict = true
	res := take(n, w.now, strict)
	if res.Kind != Pending || !n.Cancel(strict.Key, nil) || n.Cancel(strict.Key, nil) {
		t.Errorf("strict: %+v", res)
	}
	over := ask(key, 10, time.Hour, 1)
	if res := take(n, w.now, over); res.Kind != Decided || !res.Over {
		t.Errorf("a denial waits: %+v", res)
	}
}

// TestLostStateIsProRata requires that a key that was lost with its owner and its successor admits only what is left
// of the window.
func TestLostStateIsProRata(t *testing.T) {
	for _, alg := range []limit.Algorithm{limit.FixedWindow, limit.TokenBucket} {
		for _, proRata := range []bool{true, false} {
			w := newNetwork(t, 3, Options{ProRata: proRata}, "a", "b", "c")
			r := w.ring()
			key := 0
			for i := 0; key == 0; i++ {
				o := ask(i, 1, time.Hour, 1).RingPos
				if r.At(r.Owner(o)).ID == "a" && r.At(r.Successor(o)).ID == "b" {
					key = i
				}
			}
			req := ask(key, 100, 20*time.Second, 1)
			req.Rule.Algorithm = alg
			for range 100 {
				w.ask("a", req, func(Result) {})
			}
			delete(w.nodes, "a")
			delete(w.nodes, "b")
			w.adopt()
			w.run(6 * time.Second) // nine of the window's twenty seconds have passed
			w.nref = 1
			w.adopt()
			w.run(100 * time.Millisecond)
			req.Hits = 0
			w.ask("c", req, func(res Result) {
				low, high := uint64(20), uint64(60)
				if alg == limit.TokenBucket {
					low, high = 60, 100 // full when it was taken over, drained since
				}
				if !proRata {
					low, high = 0, 0
				}
				if res.Authority != Full || res.Before < low || res.Before > high {
					t.Errorf("%v, pro rata %v: %+v", alg, proRata, res)
				}
			})
		}
	}
}

// TestLostStateWithADrainedShare requires that hits that the next owner has admitted from its local share, and what
// has drained since, do not count as a part of the lost state.
func TestLostStateWithADrainedShare(t *testing.T) {
	w := newNetwork(t, 3, Options{ProRata: true}, "a", "b", "c")
	r := w.ring()
	key := 0
	for i := 0; key == 0; i++ {
		o := ask(i, 1, time.Hour, 1).RingPos
		if r.At(r.Owner(o)).ID == "a" && r.At(r.Successor(o)).ID == "b" {
			key = i
		}
	}
	req := ask(key, 100, 20*time.Second, 1) // five a second
	req.Rule.Algorithm = limit.TokenBucket
	delete(w.nodes, "a")
	delete(w.nodes, "b")
	w.run(3 * time.Second)
	w.ask("c", req, func(res Result) {
		if res.Authority != Share || res.Over {
			t.Fatalf("%+v", res)
		}
	})
	w.run(400 * time.Millisecond) // it has drained, and is not forgotten
	w.nref = 1
	w.adopt()
	w.run(100 * time.Millisecond)
	w.ask("c", req, func(res Result) {
		if res.Authority != Full || res.Before < 60 {
			t.Errorf("%+v", res)
		}
	})
}

// TestLossGoesWithOwnership moves a key to a third owner before the second, which has recorded that its state was
// lost, has decided it once.
func TestLossGoesWithOwnership(t *testing.T) {
	for i, alone := range []bool{true, false, true, false} {
		asked := i < 2 // otherwise the member that passes it on has had no request for it
		w := newNetwork(t, 3, Options{ProRata: true}, "a", "b", "c")
		r, next := w.ring(), ringOf("c", "d")
		key := 0
		for i := 0; key == 0; i++ {
			o := ask(i, 1, time.Hour, 1).RingPos
			if r.At(r.Owner(o)).ID == "a" && r.At(r.Successor(o)).ID == "b" && next.At(next.Owner(o)).ID == "d" {
				key = i
			}
		}
		req := ask(key, 100, 20*time.Second, 30)
		req.Rule.Algorithm = limit.TokenBucket
		delete(w.nodes, "a")
		delete(w.nodes, "b")
		w.run(2 * time.Second)
		if asked {
			w.ask("c", req, func(res Result) {
				if res.Authority != Share || res.Over {
					t.Fatalf("%+v", res)
				}
			})
		}
		w.adopt()
		w.run(2500 * time.Millisecond)
		w.nref = 1
		w.still = alone // so that the token has to come by itself
		w.boot("d", membership.Joining)
		w.adopt()
		w.run(20 * time.Millisecond)
		w.states["d"] = membership.Active
		w.adopt()
		w.run(100 * time.Millisecond)
		w.ask("d", req, func(res Result) {
			if res.Authority != Full || res.Before < 60 {
				t.Errorf("alone %v, asked %v: %+v", alone, asked, res)
			}
		})
	}
}

// TestShareWithKnownUsage requires that a local share is spent completely while the recorded usage leaves room for it.
func TestShareWithKnownUsage(t *testing.T) {
	for known, want := range map[uint64]int{0: 5, 3: 5, 5: 5, 7: 3, 10: 0} {
		n := member(Options{Self: "a"}, t0, "a", "b")
		req := ask(1, 10, time.Hour, 1)
		slot := limit.Slot{Writer: 0x201, At: req.Rule.Index(t0), Charged: known}
		n.Step(t0, "b", 1, &protocol.Message{Kind: protocol.Replica, Counters: []protocol.CounterRecord{counterOf(req, slot)}})
		admitted := 0
		for range 10 {
			if res := n.Degrade(t0, &req); !res.Over {
				admitted++
			}
		}
		if admitted != want {
			t.Errorf("%d of 10 known to be spent: %d of a share of 5 admitted, want %d", known, admitted, want)
		}
	}
}

// TestRecordedUsage requires that a member returns what it has recorded of a key while it decides without the owner:
// the hits in its replica, and those it has admitted itself.
func TestRecordedUsage(t *testing.T) {
	w := newNetwork(t, 3, Options{}, "a", "b", "c")
	req := ask(ownedBy(t, w.ring(), "b", 0), 30, time.Hour, 5)
	successor, other := ring.ID("a"), ring.ID("c")
	if r := w.ring(); r.At(r.Successor(req.RingPos)).ID == other {
		successor, other = other, successor
	}
	w.ask(other, req, func(Result) {})
	w.run(100 * time.Millisecond)
	req.Hits = 4
	for _, id := range []ring.ID{successor, other} {
		if r := w.nodes[id].Degrade(w.now, &req); r.Over {
			t.Fatalf("%s: %+v", id, r)
		}
	}
	if n := w.nodes[successor].RecordedUsage(w.now, &req); n != 9 {
		t.Errorf("the successor has recorded %d, want 9", n)
	}
	if n := w.nodes[other].RecordedUsage(w.now, &req); n != 4 {
		t.Errorf("another member has recorded %d, want 4", n)
	}
	if n := w.nodes["b"].RecordedUsage(w.now+int64(time.Hour), &req); n != 0 {
		t.Errorf("%d in the next window", n)
	}
}
