package owner

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/ring"
)

// aheadRule has windows that are much longer than the clock tolerance.
var aheadRule = limit.Rule{Window: 10 * time.Second, Limit: 100}

// aheadOf returns a Reserve of the next window.
func aheadOf(id uint64, hits uint64) Request {
	q := hold(1, id, Reserve, aheadRule, hits)
	q.Hold.Ahead, q.Strict = true, true
	return q
}

// TestAheadChargesTheNextWindow checks that charges of the next window leave the current one alone, that both keep the
// limit, and that the count is there when the window begins.
func TestAheadChargesTheNextWindow(t *testing.T) {
	n := alone(Options{})
	start := aheadRule.End(aheadRule.Index(t0))
	now := start + 5*second
	do := func(q Request) Result { return n.Decide(now, &q) }
	take := func(hits uint64) Result { return do(ask(1, aheadRule.Limit, aheadRule.Window, hits)) }
	if res := do(aheadOf(1, 60)); res.Over || res.After != 60 || res.Reset != 15*time.Second {
		t.Fatalf("%+v", res)
	}
	for range 10 { // the current window has all of its limit
		if res := take(10); res.Over {
			t.Fatalf("%+v", res)
		}
	}
	if res := take(1); !res.Over {
		t.Errorf("above the limit of the current window: %+v", res)
	}
	if res := do(aheadOf(2, 41)); !res.Over || res.Before != 60 {
		t.Errorf("above the limit of the next window: %+v", res)
	}
	if res := do(aheadOf(3, 40)); res.Over || res.After != 100 {
		t.Errorf("the rest of the next window: %+v", res)
	}
	now = start + 10*second
	if res := take(1); !res.Over || res.Before != 100 {
		t.Errorf("the next window has begun, and all of it is charged: %+v", res)
	}
	if res := do(hold(1, 1, Commit, aheadRule, 20)); res.After < 60 || res.After > 61 { // the refused hit counts, too
		t.Errorf("of a hold of 60, 20 were used: %+v", res)
	}
	now = start + 20*second
	if res := take(100); res.Over {
		t.Errorf("the window after it is empty: %+v", res)
	}
}

// TestAheadOfOtherAlgorithms checks that only fixed windows can be charged ahead: a sliding window counts hits of the
// current one, of which more may come, against the next.
func TestAheadOfOtherAlgorithms(t *testing.T) {
	for _, a := range algorithms {
		n := alone(Options{})
		q := aheadOf(1, 1)
		q.Rule.Algorithm = a
		res := n.Decide(t0, &q)
		if res.Over != (a != limit.FixedWindow) {
			t.Errorf("%v: %+v", a, res)
		}
		if used := heldCount(t, n, t0, q); used != 0 {
			t.Errorf("%v: %d hits are charged to the current window", a, used)
		}
	}
}

// loseOwner makes the owner of q crash or leave, and returns it.
func (w *network) loseOwner(t *testing.T, q *Request, crash bool) (first ring.ID) {
	first = w.ownerOf(q)
	if crash {
		delete(w.nodes, first)
		w.adopt()
	} else {
		w.leave(t, first, func(int) {})
	}
	return first
}

// TestAheadSurvives checks that the next owner of a key has what was charged ahead, whether the owner crashes or leaves,
// in the current window or after it.
func TestAheadSurvives(t *testing.T) {
	for _, crash := range []bool{true, false} {
		for _, after := range []time.Duration{time.Second, 9 * time.Second} {
			w := newNetwork(t, 1, Options{}, "a", "b", "c")
			w.run(time.Duration(aheadRule.End(aheadRule.Index(w.now)) - w.now + 3*second))
			q := aheadOf(1, 70)
			admitted := false
			w.ask("a", q, func(res Result) { admitted = !res.Over && res.Authority == Full })
			w.run(time.Second)
			if !admitted {
				t.Fatal("not admitted")
			}
			end := aheadRule.End(aheadRule.Index(w.now))
			w.run(after)
			first := w.loseOwner(t, &q, crash)
			w.run(time.Duration(end-w.now) + 2*time.Second)
			if after > 5*time.Second {
				w.run(3 * time.Second)
			}
			if aheadRule.Index(w.now) != aheadRule.Index(end) {
				t.Fatal("the test has missed the window")
			}
			n := w.nodes[w.ownerOf(&q)]
			if got := heldCount(t, n, w.now, q); got != 70 || w.ownerOf(&q) == first {
				t.Errorf("crash %v after %v: the next owner has %d of 70 hits", crash, after, got)
			}
		}
	}
}

// TestAheadKeepsTheLimit runs random charges of the current and the next window, and checks after each that no window
// has more admitted hits than the limit.
func TestAheadKeepsTheLimit(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	n := alone(Options{})
	now := t0
	admitted := map[int64]uint64{}
	for id := range uint64(20000) {
		now += rnd.Int64N(int64(300 * time.Millisecond))
		hits := 1 + rnd.Uint64N(12)
		w := aheadRule.Index(now)
		q := hold(1, id+1, Reserve, aheadRule, hits)
		if rnd.IntN(2) == 0 {
			q, w = aheadOf(id+1, hits), w+1
		}
		res := n.Decide(now, &q)
		if res.Over {
			continue
		}
		if !q.Hold.Ahead && now+int64(res.Reset) > aheadRule.End(w)+second {
			w++ // in the last moments of a window, hits count in the next one if that has a count
		}
		if admitted[w] += hits; admitted[w] > 100 {
			t.Fatalf("%d hits are admitted in window %d", admitted[w], w)
		}
	}
	full := 0
	for _, hits := range admitted {
		if hits > 90 {
			full++
		}
	}
	if full < len(admitted)/2 {
		t.Errorf("only %d of %d windows were used up: the test shows little", full, len(admitted))
	}
}

// TestAheadWithSlowClocks checks that the next owner keeps what was charged ahead at the very beginning of a window, which
// has not begun by its own clock: that window is the one after its next.
func TestAheadWithSlowClocks(t *testing.T) {
	w := newNetwork(t, 1, Options{}, "a", "b", "c")
	q := aheadOf(1, 70)
	first := w.ownerOf(&q)
	for _, id := range w.ids() {
		if id != first {
			w.skew[id] = -int64(200 * time.Millisecond)
		}
	}
	start := aheadRule.End(aheadRule.Index(w.now))
	w.run(time.Duration(start - w.now + 50*milli))
	admitted := false
	w.ask(first, q, func(res Result) { admitted = !res.Over && res.Authority == Full })
	w.run(100 * time.Millisecond)
	delete(w.nodes, first)
	w.adopt()
	w.run(12 * time.Second)
	n := w.nodes[w.ownerOf(&q)]
	if got := heldCount(t, n, w.now, q); !admitted || got != 70 {
		t.Errorf("admitted %v; the next owner has %d of 70 hits", admitted, got)
	}
}

// TestShareAfterChargesAhead checks that the local share of a member that is cut off is the same whether hits were charged
// to the next window or not.
func TestShareAfterChargesAhead(t *testing.T) {
	admits := func(before ...Request) (n int) {
		w := newNetwork(t, 1, Options{}, "a", "b", "c")
		w.run(time.Duration(aheadRule.End(aheadRule.Index(w.now)) - w.now + 2*second))
		q := aheadOf(1, 0)
		first := w.ownerOf(&q)
		for i := range before {
			w.ask(first, before[i], func(Result) {})
			w.run(50 * time.Millisecond)
		}
		now := w.now + 4*second // it has no authority any more
		for range 2 * int(aheadRule.Limit) {
			x := ask(1, aheadRule.Limit, aheadRule.Window, 1)
			if res := w.nodes[first].Decide(now, &x); res.Kind == Decided && !res.Over && res.Authority == Share {
				n++
			}
		}
		return n
	}
	used := hold(1, 2, Reserve, aheadRule, 10)
	if with, without := admits(used, aheadOf(1, 70)), admits(used); with != without || with == 0 {
		t.Errorf("the share admits %d hits with charges ahead, and %d without", with, without)
	}
}

// TestAheadIsReleasedByTheNextOwner checks that the next owner of a key gives back what was charged ahead at the one before.
func TestAheadIsReleasedByTheNextOwner(t *testing.T) {
	for _, crash := range []bool{true, false} {
		w := newNetwork(t, 1, Options{}, "a", "b", "c")
		w.run(time.Duration(aheadRule.End(aheadRule.Index(w.now)) - w.now + 3*second))
		q := aheadOf(1, 70)
		w.ask("a", q, func(Result) {})
		w.run(time.Second)
		first := w.loseOwner(t, &q, crash)
		w.run(4 * time.Second)
		end := aheadRule.End(aheadRule.Index(w.now))
		from := w.ownerOf(&q)
		release := hold(1, 1, Release, aheadRule, 0)
		w.ask(from, release, func(Result) {})
		w.run(time.Duration(end-w.now) + 2*time.Second)
		if got := heldCount(t, w.nodes[w.ownerOf(&q)], w.now, q); got != 0 || w.ownerOf(&q) == first {
			t.Errorf("crash %v: %d hits of the window are still charged", crash, got)
		}
	}
}

// TestAheadByShare checks that a charge of the next window that only a member's share has admitted, in the current window, takes
// nothing from the next one when it is released.
func TestAheadByShare(t *testing.T) {
	w := newNetwork(t, 3, Options{}, "a", "b", "c")
	key := ownedBy(t, w.ring(), "b", 0)
	w.run(time.Duration(aheadRule.End(aheadRule.Index(w.now)) - w.now + 2*second))
	of := func(id uint64, op Op, hits uint64, ahead bool) Request {
		q := ask(key, aheadRule.Limit, aheadRule.Window, hits)
		q.Op, q.Strict = op, true
		q.Hold = &Hold{ID: claim.Ident{id, id}, TTL: time.Minute, Ahead: ahead}
		return q
	}
	w.ask("c", of(1, Reserve, 50, true), func(res Result) {
		if res.Over || res.Authority != Full {
			t.Errorf("by the owner: %+v", res)
		}
	})
	w.run(100 * time.Millisecond)
	w.cut = func(from, to ring.ID) bool { return from == "a" && to == "b" || from == "b" && to == "a" }
	byShare := false
	w.ask("a", of(2, Reserve, 20, true), func(res Result) { byShare = !res.Over && res.Authority == Share })
	w.run(time.Second)
	if w.cut = nil; !byShare {
		t.Fatal("not decided by a share")
	}
	w.ask("a", of(2, Release, 0, false), func(Result) {})
	w.run(2 * time.Second)
	q := ask(key, aheadRule.Limit, aheadRule.Window, 0)
	w.run(time.Duration(aheadRule.End(aheadRule.Index(w.now))-w.now) + time.Second)
	if got := heldCount(t, w.nodes["b"], w.now, q); got != 50 {
		t.Errorf("the next window has %d of 50 hits", got)
	}
}
