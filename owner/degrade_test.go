package owner

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/ring"
)

func names(n int) (ids []ring.ID) {
	for i := range n {
		ids = append(ids, ring.ID(fmt.Sprintf("pod-%d", i)))
	}
	return ids
}

// TestSharesSumToTheLimit requires that the local shares of all members sum to the limit.
func TestSharesSumToTheLimit(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5, 7} {
		r := ringOf(names(n)...)
		for i := range 50 {
			for _, lim := range []uint32{0, 1, 2, 3, 10, 101, math.MaxUint32} {
				sum, most, least := uint64(0), uint32(0), uint32(math.MaxUint32)
				for m := range n {
					v := viewOf(r, m, n)
					s := v.LocalShare(lim, counter.Mix(uint64(i)))
					sum += uint64(s)
					most, least = max(most, s), min(least, s)
				}
				if sum != uint64(lim) || most-least > 1 {
					t.Fatalf("%d members share %d as %d, from %d to %d", n, lim, sum, least, most)
				}
			}
		}
	}
}

// TestSharesOfAPartOfTheCluster requires that missing members keep their shares, and that a member outside the ring
// has no share of the rest.
func TestSharesOfAPartOfTheCluster(t *testing.T) {
	r := ringOf(names(3)...)
	for i := range 50 {
		sum := uint32(0)
		for m := range 3 {
			sum += viewOf(r, m, 5).LocalShare(13, counter.Mix(uint64(i)))
		}
		if sum != 9 { // 2 each, and 3 that stand first of 5 for the rest of 3
			t.Fatalf("key %d: three of five have %d of 13", i, sum)
		}
	}
	if s := viewOf(r, -1, 5).LocalShare(14, 1); s != 2 {
		t.Errorf("off the ring: %d", s)
	}
}

// viewOf returns the view of the member with that index in r.
func viewOf(r *ring.Ring, self, nref int) *handoff.OwnershipView {
	id := ring.ID("none of them")
	if self >= 0 {
		id = r.At(self).ID
	}
	m := handoff.NewMachine(handoff.Options{Self: id, BootID: 3})
	m.SetMembership(t0, &membership.View{Self: id, Ring: r, NRef: nref, Joined: true})
	return m.View()
}

// TestLocalShare requires that degraded decisions of all members together admit exactly the limit.
func TestLocalShare(t *testing.T) {
	ids := names(3)
	admitted := 0
	for _, id := range ids {
		n := member(Options{Self: id}, t0, ids...)
		for range 20 {
			req := ask(1, 10, time.Hour, 1)
			if res := n.Degrade(t0, &req); !res.Over {
				admitted++
			} else if res.Authority != Share || res.Path != Fallback || res.Kind != Decided {
				t.Fatalf("%+v", res)
			}
		}
	}
	if admitted != 10 {
		t.Errorf("admitted %d of 10", admitted)
	}
}

func TestFailOpen(t *testing.T) {
	for _, c := range []struct{ limit, localCap, want uint32 }{{10, 0, 5}, {1, 0, 1}, {0, 0, 0}, {10, 3, 3}, {10, 25, 25}, {0, 2, 2}} {
		n := member(Options{Self: "a"}, t0, "a", "b")
		req := withDegraded(ask(1, c.limit, time.Minute, 1), policy.FailOpen)
		req.LocalCap = c.localCap
		for _, now := range []int64{t0, t0 + 60*second} {
			admitted := uint32(0)
			for range 40 {
				res := n.Degrade(now, &req)
				if res.Authority != Open || res.Over != (res.After > uint64(c.limit)) {
					t.Fatalf("%+v: %+v", c, res)
				}
				if !res.Over {
					admitted++
					if res.Remaining != c.want-admitted {
						t.Fatalf("%+v: %+v after %d", c, res, admitted)
					}
				}
			}
			if admitted != c.want {
				t.Errorf("%+v: admitted %d", c, admitted)
			}
			if f := n.Stats(now); f.OpenAdmitted != uint64(c.want) || f.Bound() != 0 {
				t.Errorf("%+v: facts %+v", c, f)
			}
		}
		if f := n.Stats(t0 + 120*second); f.OpenAdmitted != 0 {
			t.Errorf("%+v: open %d after the windows", c, f.OpenAdmitted)
		}
	}
}

func TestFailClosed(t *testing.T) {
	n := member(Options{Self: "a"}, t0, "a", "b")
	req := withDegraded(ask(ownedBy(t, ringOf("a", "b"), "b", 0), 100, time.Hour, 1), policy.FailClosed)
	if res := n.Degrade(t0, &req); res.Authority != Closed || !res.Over || res.Remaining != 0 || res.Reset != time.Hour {
		t.Errorf("nothing known: %+v", res)
	}
	if p := withOp(req, DryRun); !n.Degrade(t0, &p).Over {
		t.Error("nothing known: a peek passes")
	}
	r := limit.Rule{Window: time.Hour, Limit: 100}
	_, d := r.TakeTally(limit.Tally{}, t0, 80)
	n.Observe(t0, &req, &Result{Decision: d, Kind: Decided, Authority: Share})
	if res := n.Degrade(t0, &req); !res.Over {
		t.Errorf("learnt from a degraded answer: %+v", res)
	}
	n.Observe(t0, &req, &Result{Decision: d, Kind: Decided})
	admitted := 0
	for range 30 {
		res := n.Degrade(t0+59*second, &req)
		if res.Over != (res.After > 100) {
			t.Fatalf("%+v", res)
		}
		if !res.Over {
			admitted++
		}
	}
	if admitted != 10 {
		t.Errorf("admitted %d, half of the 20 that are left", admitted)
	}
	if f := n.Stats(t0 + 59*second); f.ClosedBound != 10 || f.Bound() != 10 || f.Admitted[Closed] != 10 || f.ClosedKeys != 1 {
		t.Errorf("facts: %+v", f)
	}
	// A new report does not include what was spent here meanwhile.
	n.Observe(t0+59*second, &req, &Result{Decision: d, Kind: Decided})
	if res := n.Degrade(t0+59*second, &req); !res.Over {
		t.Errorf("spent twice: %+v", res)
	}
	_, d = r.TakeTally(limit.Tally{}, t0, 20)
	n.Observe(t0+60*second, &req, &Result{Decision: d, Kind: Decided})
	if res := n.Degrade(t0+60*second, &req); res.Over || res.Remaining != 29 {
		t.Errorf("80 left: %+v", res)
	}
	if res := n.Degrade(t0+121*second, &req); !res.Over {
		t.Errorf("too old: %+v", res)
	}
	n.Observe(t0+3599*second, &req, &Result{Decision: d, Kind: Decided})
	if res := n.Degrade(t0+3600*second, &req); !res.Over {
		t.Errorf("of another window: %+v", res)
	}
}

func TestDegradedRefundsAreDropped(t *testing.T) {
	n := member(Options{Self: "a"}, t0, "a", "b")
	for i, d := range []policy.Degraded{policy.LocalShare, policy.FailOpen, policy.FailClosed, 77} {
		req := withDegraded(ask(i, 10, time.Hour, 3), d)
		n.Degrade(t0, &req)
		back := withOp(req, Refund)
		if res := n.Degrade(t0, &back); res.Over || res.Before != res.After {
			t.Errorf("policy %d: %+v", d, res)
		}
		p := withOp(req, DryRun)
		p.Hits = 0
		if res := n.Degrade(t0, &p); d != policy.FailClosed && (res.Over || res.After != res.Before) {
			t.Errorf("policy %d, peek: %+v", d, res)
		}
		if f := n.Stats(t0); f.RefundsDropped != uint64(i+1) {
			t.Errorf("policy %d: %d dropped", d, f.RefundsDropped)
		}
	}
}

// TestShareIncludesOwnCharges requires that a former owner whose counter is spent admits nothing from its local share.
func TestShareIncludesOwnCharges(t *testing.T) {
	n := member(Options{Self: "a"}, t0, "a")
	req := ask(1, 10, time.Hour, 10)
	n.Decide(t0, &req)
	move(n, t0, "a", "b")
	req.Hits = 1
	if res := n.Degrade(t0, &req); !res.Over {
		t.Errorf("%+v", res)
	}
}

// TestDegradedDecisionsAreConsistent requires that Before, After, Hits and the limit, of which statistics are made,
// agree with Over under every policy.
func TestDegradedDecisionsAreConsistent(t *testing.T) {
	rnd := random(3)
	n := member(Options{Self: "a", MaxKeys: 40}, t0, "a", "b", "c")
	for now := t0; now < t0+1000*second; now += rnd.Int64N(second) {
		req := withDegraded(withOp(ask(rnd.IntN(60), rnd.Uint32N(20), 30*time.Second, rnd.Uint64N(5)), Op(rnd.IntN(4))), policy.Degraded(rnd.IntN(3)))
		req.LocalCap = rnd.Uint32N(30)
		if rnd.IntN(9) == 0 {
			req.Hits = math.MaxUint64 - rnd.Uint64N(3)
		}
		if rnd.IntN(4) == 0 {
			_, d := req.Rule.TakeTally(limit.Tally{}, now, rnd.Uint64N(20))
			n.Observe(now, &req, &Result{Decision: d, Kind: Decided})
		}
		res := n.Degrade(now, &req)
		if res.Kind != Decided || res.Reset < time.Second || res.Reset > 30*time.Second || res.Over && res.Remaining > 0 {
			t.Fatalf("%+v: %+v", req, res)
		}
		if req.Op != Refund && res.Over != (res.After > uint64(req.Rule.Limit)) {
			t.Fatalf("%+v: %+v", req, res)
		}
		if req.Op == Take && res.After < res.Before {
			t.Fatalf("%+v: %+v", req, res)
		}
	}
}
