package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/ring"
)

// TestTakeBackReachesOwner requires that hits that a member gives back count no more at the owner, whether or not its
// share has reached the owner before, and that it gives back each hit once.
func TestTakeBackReachesOwner(t *testing.T) {
	for _, reported := range []bool{false, true} {
		w := newNetwork(t, 3, Options{}, "a", "b", "c")
		req := ask(ownedBy(t, w.ring(), "b", 0), 30, time.Hour, 4)
		apart := func(from, to ring.ID) bool { return from == "a" && to == "b" || from == "b" && to == "a" }
		w.ask("c", req, func(res Result) { // the owner's charge of the request, of which "a" gets no reply in time
			if res.Authority != Full || res.After != 4 {
				t.Errorf("by the owner: %+v", res)
			}
		})
		w.cut = apart
		w.ask("a", req, func(res Result) {
			if res.Authority != Share || res.Over {
				t.Errorf("by share: %+v", res)
			}
		})
		at := w.now
		if reported {
			w.cut = nil
			w.run(300 * time.Millisecond)
		}
		w.nodes["a"].TakeBack(w.now, at, &req)
		w.nodes["a"].TakeBack(w.now, at, &req) // the share has charged nothing else
		w.cut = nil
		w.run(300 * time.Millisecond)
		probe := req
		probe.Hits = 0
		for _, id := range []ring.ID{"c", "b"} {
			w.ask(id, probe, func(res Result) {
				if res.Authority != Full || res.Before != 4 {
					t.Errorf("reported %v, at %s: %+v, want a count of 4", reported, id, res)
				}
			})
		}
		if f := w.nodes["a"].Stats(w.now); f.ShareTakenBack != 4 || f.ShareUnreported != 0 {
			t.Errorf("reported %v: %d hits taken back, want 4", reported, f.ShareTakenBack)
		}
	}
}

// TestTakeBackEndsWithWindow requires that nothing is given back of another window, and nothing that the share has not
// charged.
func TestTakeBackEndsWithWindow(t *testing.T) {
	w := newNetwork(t, 3, Options{}, "a", "b", "c")
	req := ask(ownedBy(t, w.ring(), "b", 0), 30, time.Second, 4)
	taken := func() uint64 { return w.nodes["a"].Stats(w.now).ShareTakenBack }
	w.nodes["a"].TakeBack(w.now, w.now, &req)
	if n := taken(); n != 0 {
		t.Errorf("%d hits taken back of a counter that does not exist", n)
	}
	w.ask("c", req, func(Result) {})
	w.run(100 * time.Millisecond) // "a" may have a replica
	w.nodes["a"].TakeBack(w.now, w.now, &req)
	if n := taken(); n != 0 {
		t.Errorf("%d hits of the owner's charges taken back", n)
	}
	w.cut = func(from, to ring.ID) bool { return from == "a" || to == "a" }
	w.ask("a", req, func(res Result) {
		if res.Authority != Share || res.Over {
			t.Errorf("by share: %+v", res)
		}
	})
	at := w.now
	w.run(1100 * time.Millisecond)
	w.nodes["a"].TakeBack(w.now, at, &req)
	if n := taken(); n != 0 {
		t.Errorf("%d hits of the last window taken back", n)
	}
}

// TestChargesTwice requires that only charges are given back that the owner and the share count in the same way.
func TestChargesTwice(t *testing.T) {
	plain := ask(1, 30, time.Hour, 1)
	if !ChargesTwice(&plain) {
		t.Error("a plain request is charged twice")
	}
	for name, change := range map[string]func(*Request){
		"a read":         func(q *Request) { q.Op = Read },
		"no hits":        func(q *Request) { q.Hits = 0 },
		"fail_open":      func(q *Request) { q.Degraded = policy.FailOpen },
		"fail_closed":    func(q *Request) { q.Degraded = policy.FailClosed },
		"a static rule":  func(q *Request) { q.Mechanism = policy.Static },
		"a bucket":       func(q *Request) { q.Rule.Algorithm = limit.TokenBucket },
		"a hold":         func(q *Request) { q.Hold = &Hold{Flags: claim.Once} },
		"a tenant's hit": func(q *Request) { q.Tenant = 1 },
	} {
		req := plain
		change(&req)
		if ChargesTwice(&req) {
			t.Errorf("%s is charged twice", name)
		}
	}
}
