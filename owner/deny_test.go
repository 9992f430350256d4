package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/ring"
)

// TestDenyCacheOfOwnKeys requires the behavior of the local cache of envoyproxy/ratelimit: of 25 hits on a limit of
// 20, the 21st is counted and the others are refused from memory.
func TestDenyCacheOfOwnKeys(t *testing.T) {
	n := alone(Options{DenyCache: 10})
	for i := range 25 {
		res := take(n, t0, ask(1, 20, time.Minute, 1))
		if res.Over != (i >= 20) || (res.Authority == Cached) != (i > 20) {
			t.Fatalf("hit %d: %+v", i, res)
		}
		if res.Authority == Cached && (res.Reset != time.Minute || res.Remaining != 0 || res.After <= 20) {
			t.Fatalf("hit %d: %+v", i, res)
		}
	}
	if f := n.Stats(t0); f.DenyHits != 4 || f.DenyMisses != 21 || f.DenyKeys != 1 || f.Decided[Cached] != 4 {
		t.Errorf("facts: %+v", f)
	}
	if res := take(n, t0, ask(1, 20, time.Minute, 0)); res.Authority != Cached || !res.Over || res.Remaining != 0 {
		t.Errorf("check: %+v", res)
	}
	if res := take(n, t0, ask(1, 15, time.Minute, 1)); res.Authority != Cached {
		t.Errorf("lower limit: %+v", res)
	}
	if res := take(n, t0, ask(1, 30, time.Minute, 1)); res.Authority != Full || res.Over {
		t.Errorf("raised limit: %+v", res)
	}
	if res := take(n, t0, withOp(ask(1, 20, time.Minute, 5), Refund)); res.After != 17 {
		t.Errorf("refund: %+v", res)
	}
	if res := take(n, t0, ask(1, 20, time.Minute, 1)); res.Authority != Full || res.Over {
		t.Errorf("after the refund: %+v", res)
	}
	take(n, t0, ask(1, 20, time.Minute, 5))
	if res := take(n, t0+60*second, ask(1, 20, time.Minute, 1)); res.Authority != Full || res.Over {
		t.Errorf("the next window: %+v", res)
	}
}

func TestDenyCacheOfOthersKeys(t *testing.T) {
	ids := []ring.ID{"a", "b"}
	i := ownedBy(t, ringOf(ids...), "b", 0)
	req := ask(i, 5, time.Minute, 3)
	for name, c := range map[string]struct {
		op     Op
		state  uint64
		auth   Authority
		cached bool
	}{
		"over":                       {Take, 3, Full, true},
		"at the limit":               {Take, 2, Full, false},
		"over by the owner's sketch": {Take, 3, Overflow, true},
		"over by a share":            {Take, 3, Share, false},
		"peek that would be over":    {DryRun, 3, Full, false},
		"peek at the limit":          {DryRun, 5, Full, true},
	} {
		n := member(Options{Self: "a", DenyCache: 10}, t0, ids...)
		asked := withOp(req, c.op)
		_, d := req.Rule.TakeTally(limit.Tally{Window: req.Rule.Index(t0), Charged: c.state}, t0, 3)
		n.Observe(t0, &asked, &Result{Decision: d, Kind: Decided, Authority: c.auth})
		if res := take(n, t0, req); (res.Authority == Cached) != c.cached || !c.cached && res.Kind != Forward {
			t.Errorf("%s: %+v", name, res)
			continue
		}
		if !c.cached {
			continue
		}
		back := withOp(req, Refund)
		if res := take(n, t0, back); res.Kind != Forward {
			t.Errorf("%s, refund: %+v", name, res)
		}
		if res := take(n, t0, req); res.Kind != Forward {
			t.Errorf("%s, after a refund: %+v", name, res)
		}
		n.Observe(t0, &asked, &Result{Decision: d, Kind: Decided, Authority: c.auth})
		move(n, t0, "a", "b", "c")
		if res := take(n, t0, req); res.Authority == Cached {
			t.Errorf("%s, after a ring change: %+v", name, res)
		}
	}
}

// TestDenyCacheAtTheLimit requires that a key exactly at its limit is refused only if there are hits: a request with 0
// hits is sent to its owner.
func TestDenyCacheAtTheLimit(t *testing.T) {
	ids := []ring.ID{"a", "b"}
	req := ask(ownedBy(t, ringOf(ids...), "b", 0), 5, time.Minute, 3)
	check := req
	check.Hits = 0
	n := member(Options{Self: "a", DenyCache: 10}, t0, ids...)
	for _, c := range []struct {
		standing uint64
		cached   bool
	}{{5, false}, {6, true}, {5, true}} {
		peeked := withOp(req, DryRun)
		d := req.Rule.PeekTally(limit.Tally{Window: req.Rule.Index(t0), Charged: c.standing}, t0, 3)
		n.Observe(t0, &peeked, &Result{Decision: d, Kind: Decided, Authority: Full})
		if res := take(n, t0, check); (res.Authority == Cached) != c.cached {
			t.Errorf("standing at %d: %+v", c.standing, res)
		}
		if res := take(n, t0, req); res.Authority != Cached {
			t.Errorf("standing at %d, hits: %+v", c.standing, res)
		}
	}
}

func TestDenyCacheIsBounded(t *testing.T) {
	n := alone(Options{DenyCache: 5})
	for i := range 100 {
		take(n, t0, ask(i, 0, time.Minute, 1))
	}
	if f := n.Stats(t0); f.DenyKeys != 5 {
		t.Errorf("%d keys", f.DenyKeys)
	}
	n = alone(Options{})
	take(n, t0, ask(1, 0, time.Minute, 1))
	if res := take(n, t0, ask(1, 0, time.Minute, 1)); res.Authority != Full || n.Stats(t0).DenyKeys != 0 {
		t.Errorf("without a cache: %+v", res)
	}
}
