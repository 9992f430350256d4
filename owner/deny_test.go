package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/ring"
)

// As with the original's local cache: of 25 hits on 20 the 21st is counted, the rest are answered from memory.
func TestDenyCacheOfOwnKeys(t *testing.T) {
	n := alone(Options{DenyCache: 10})
	for i := range 25 {
		a := take(n, t0, ask(1, 20, time.Minute, 1))
		if a.Over != (i >= 20) || (a.Authority == Cached) != (i > 20) {
			t.Fatalf("hit %d: %+v", i, a)
		}
		if a.Authority == Cached && (a.Reset != time.Minute || a.Remaining != 0 || a.After <= 20) {
			t.Fatalf("hit %d: %+v", i, a)
		}
	}
	if f := n.Stats(t0); f.DenyHits != 4 || f.DenyMisses != 21 || f.DenyKeys != 1 || f.Decided[Cached] != 4 {
		t.Errorf("facts: %+v", f)
	}
	if a := take(n, t0, ask(1, 20, time.Minute, 0)); a.Authority != Cached || !a.Over || a.Remaining != 0 {
		t.Errorf("check: %+v", a)
	}
	if a := take(n, t0, ask(1, 15, time.Minute, 1)); a.Authority != Cached {
		t.Errorf("lower limit: %+v", a)
	}
	if a := take(n, t0, ask(1, 30, time.Minute, 1)); a.Authority != Full || a.Over {
		t.Errorf("raised limit: %+v", a)
	}
	if a := take(n, t0, ask(1, 20, time.Minute, 5).op(Refund)); a.After != 17 {
		t.Errorf("refund: %+v", a)
	}
	if a := take(n, t0, ask(1, 20, time.Minute, 1)); a.Authority != Full || a.Over {
		t.Errorf("after the refund: %+v", a)
	}
	take(n, t0, ask(1, 20, time.Minute, 5))
	if a := take(n, t0+60*second, ask(1, 20, time.Minute, 1)); a.Authority != Full || a.Over {
		t.Errorf("the next window: %+v", a)
	}
}

func TestDenyCacheOfOthersKeys(t *testing.T) {
	ids := []ring.ID{"a", "b"}
	i := ownedBy(t, ringOf(ids...), "b", 0)
	q := ask(i, 5, time.Minute, 3)
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
		asked := q.op(c.op)
		_, d := q.Rule.TakeTally(limit.Tally{Window: q.Rule.Index(t0), Charged: c.state}, t0, 3)
		n.Observe(t0, &asked, &Result{Decision: d, Kind: Decided, Authority: c.auth})
		if a := take(n, t0, q); (a.Authority == Cached) != c.cached || !c.cached && a.Kind != Forward {
			t.Errorf("%s: %+v", name, a)
			continue
		}
		if !c.cached {
			continue
		}
		back := q.op(Refund)
		if a := take(n, t0, back); a.Kind != Forward {
			t.Errorf("%s, refund: %+v", name, a)
		}
		if a := take(n, t0, q); a.Kind != Forward {
			t.Errorf("%s, after a refund: %+v", name, a)
		}
		n.Observe(t0, &asked, &Result{Decision: d, Kind: Decided, Authority: c.auth})
		move(n, t0, "a", "b", "c")
		if a := take(n, t0, q); a.Authority == Cached {
			t.Errorf("%s, after a ring change: %+v", name, a)
		}
	}
}

// A key that stands at its limit, no further, is over for hits only: a check of it goes to its owner.
func TestDenyCacheAtTheLimit(t *testing.T) {
	ids := []ring.ID{"a", "b"}
	q := ask(ownedBy(t, ringOf(ids...), "b", 0), 5, time.Minute, 3)
	check := q
	check.Hits = 0
	n := member(Options{Self: "a", DenyCache: 10}, t0, ids...)
	for _, c := range []struct {
		standing uint64
		cached   bool
	}{{5, false}, {6, true}, {5, true}} {
		peeked := q.op(DryRun)
		d := q.Rule.PeekTally(limit.Tally{Window: q.Rule.Index(t0), Charged: c.standing}, t0, 3)
		n.Observe(t0, &peeked, &Result{Decision: d, Kind: Decided, Authority: Full})
		if a := take(n, t0, check); (a.Authority == Cached) != c.cached {
			t.Errorf("standing at %d: %+v", c.standing, a)
		}
		if a := take(n, t0, q); a.Authority != Cached {
			t.Errorf("standing at %d, hits: %+v", c.standing, a)
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
	if a := take(n, t0, ask(1, 0, time.Minute, 1)); a.Authority != Full || n.Stats(t0).DenyKeys != 0 {
		t.Errorf("without a cache: %+v", a)
	}
}
