package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/ring"
)

// outage is a cluster of a, b and c with a fail_closed key of b, whose successor is a.
type outage struct {
	*network
	key       int
	algorithm limit.Algorithm
	strict    bool
}

func newOutage(t *testing.T, alg limit.Algorithm, o Options) *outage {
	w := newNetwork(t, 3, o, "a", "b", "c")
	r := w.ring()
	for i := 0; ; {
		i = ownedBy(t, r, "b", i)
		if s := r.Successor(ask(i, 1, time.Second, 1).RingPos); r.At(s).ID == "a" {
			return &outage{network: w, key: i, algorithm: alg}
		}
		i++
	}
}

func (o *outage) request(hits uint64) Request {
	req := withDegraded(ask(o.key, 30, time.Hour, hits), policy.FailClosed)
	req.Rule.Algorithm, req.Strict = o.algorithm, o.strict
	return req
}

// charge lets the owner decide hits, and waits until its successor has them.
func (o *outage) charge(hits uint64) {
	o.t.Helper()
	o.ask("b", o.request(hits), func(res Result) {
		if res.Over || res.Authority != Full {
			o.t.Errorf("%v: by the owner: %+v", o.algorithm, res)
		}
	})
	o.run(200 * time.Millisecond)
}

// admit returns how many of n hits member id admits one by one, with that authority if it is not Full.
func (o *outage) admit(id ring.ID, n int, by Authority) (admitted uint64) {
	o.t.Helper()
	for range n {
		o.ask(id, o.request(1), func(res Result) {
			if res.Authority != by || res.Over != (res.After > 30) || res.Over && res.Remaining > 0 {
				o.t.Errorf("%v: at %s: %+v", o.algorithm, id, res)
			}
			if !res.Over {
				admitted++
			}
		})
	}
	return admitted
}

// unreachable makes the owner unreachable for the others.
func (o *outage) unreachable() {
	o.cut = func(from, to ring.ID) bool { return from == "b" || to == "b" }
}

// TestSuccessorUsesItsReplica requires that the successor of an owner that fails closed admits its share of what its
// replica says is left, minus U, and as the owner all that is left then.
func TestSuccessorUsesItsReplica(t *testing.T) {
	for _, alg := range algorithms {
		for _, strict := range []bool{false, true} {
			o := newOutage(t, alg, Options{})
			o.strict = strict
			o.charge(15)
			o.unreachable()
			left := uint32(14) // U is 1
			if strict {
				left = 15
			}
			req := o.request(1)
			share := uint64(o.nodes["a"].serial.view.LocalShare(left, req.RingPos))
			if n := o.admit("a", 20, Closed); n != share || n == 0 {
				t.Errorf("%v, strict %v: the successor admitted %d, its share is %d", alg, strict, n, share)
			}
			if n := o.admit("c", 5, Closed); n != 0 {
				t.Errorf("%v: a member without a replica admitted %d", alg, n)
			}
			if f := o.nodes["a"].Stats(o.now); f.ClosedBound != share || f.Bound() != share || f.ShareUnreported != 0 {
				t.Errorf("%v: %+v", alg, f)
			}
			delete(o.nodes, "b")
			o.adopt()
			o.run(50 * time.Millisecond)
			if n := o.admit("a", 5, Closed); n != 0 {
				t.Errorf("%v: during the takeover: %d more", alg, n)
			}
			o.run(5 * time.Second)
			o.strict = false
			if n := 15 + share + o.admit("a", 40, Full); n != 30 {
				t.Errorf("%v, strict %v: %d admitted of 30", alg, strict, n)
			}
		}
	}
}

// TestReplicaDuringTakeover requires that the successor uses its replica from the ring change until the takeover.
func TestReplicaDuringTakeover(t *testing.T) {
	o := newOutage(t, limit.FixedWindow, Options{})
	o.charge(15)
	o.unreachable()
	delete(o.nodes, "b")
	o.adopt()
	if n := o.admit("a", 20, Closed); n < 4 || n > 5 {
		t.Errorf("admitted %d, a third of 14", n)
	}
}

// TestSnapshotAge requires that neither a replica nor a reply is used when it is older than SnapshotAge.
func TestSnapshotAge(t *testing.T) {
	for _, age := range []time.Duration{0, 2 * time.Second} {
		o := newOutage(t, limit.FixedWindow, Options{SnapshotAge: age})
		o.ask("c", o.request(15), func(Result) {})
		o.run(200 * time.Millisecond)
		o.unreachable()
		o.run(3 * time.Second)
		for _, id := range []ring.ID{"a", "c"} {
			if n := o.admit(id, 1, Closed); n != uint64(b2i(age == 0)) {
				t.Errorf("%s, age %v: %d admitted", id, age, n)
			}
		}
	}
}

// TestClosedHitsAreDeductedOnce requires that hits admitted without the owner reach it, and that its next reply does
// not take them from this member's share again.
func TestClosedHitsAreDeductedOnce(t *testing.T) {
	for _, alg := range algorithms {
		o := newOutage(t, alg, Options{})
		o.ask("c", o.request(6), func(Result) {})
		o.run(200 * time.Millisecond)
		o.unreachable()
		if n := o.admit("c", 4, Closed); n != 4 {
			t.Errorf("%v: %d of 4 admitted", alg, n)
		}
		o.run(100 * time.Millisecond)
		o.cut = nil
		o.run(time.Second)
		o.ask("c", o.request(0), func(res Result) {
			if res.Authority != Full || res.Before != 10 {
				t.Errorf("%v: by the owner: %+v", alg, res)
			}
		})
		o.unreachable()
		if n := o.admit("c", 9, Closed); n != 4 { // 24 are left to all but what c has admitted itself
			t.Errorf("%v: then %d more admitted of a share of 8", alg, n)
		}
	}
}

// TestOwnReportsAreNoReplica requires that a successor does not take its own reports for a replica of the counter.
func TestOwnReportsAreNoReplica(t *testing.T) {
	for _, alg := range algorithms {
		o := newOutage(t, alg, Options{})
		o.unreachable()
		req := withDegraded(o.request(2), policy.LocalShare)
		o.ask("a", req, func(res Result) {
			if res.Authority != Share || res.Over {
				t.Errorf("%v: %+v", alg, res)
			}
		})
		if n := o.admit("a", 3, Closed); n != 0 {
			t.Errorf("%v: %d admitted although nothing is known", alg, n)
		}
	}
}
