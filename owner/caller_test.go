package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
)

// slot returns a request for a slot of key i by caller.
func slot(i int, id, caller uint64) Request {
	q := hold(i, id, Reserve, limit.Rule{Algorithm: limit.InFlight, Window: time.Hour, Limit: 1000}, 1)
	q.Hold.Caller, q.Hold.Flags = caller, claim.InFlight
	return q
}

func TestCallers(t *testing.T) {
	plain, a, b := CallerOf(7, ""), CallerOf(7, "a"), CallerOf(7, "b")
	if plain != 7 || Who(a) != 7 || a == b || a == plain || a&^whoMask != MemberCallers("a") {
		t.Errorf("%x, %x, %x", plain, a, b)
	}
	if CallerOf(0, "") == 0 || CallerOf(1<<whoBits, "") == 0 {
		t.Error("a caller is 0")
	}
}

// TestDeadCaller requires that exactly the slots are released that a dead caller, or one behind a dead member, had
// before, of those made now or later known.
func TestDeadCaller(t *testing.T) {
	n := alone(Options{})
	take := func(now int64, q Request) {
		t.Helper()
		if n.Decide(now, &q).Over {
			t.Fatalf("refused: %+v", q)
		}
	}
	x, xa, yb := CallerOf(1, ""), CallerOf(1, "a"), CallerOf(2, "b")
	for i, c := range []uint64{x, xa, yb, yb, 0} {
		take(t0, slot(1, uint64(i), c))
	}
	plain := slot(1, 10, x) // a hold of tokens stays: its caller may be dead, and what it has spent is not known
	plain.Hold.Flags = 0
	take(t0, plain)
	take(t0+second, slot(1, 11, x)) // of the caller's next life
	expect := func(now int64, want uint64) {
		t.Helper()
		for range 9 {
			n.Tick(now)
		}
		if got := heldCount(t, n, now, plain); got != want {
			t.Errorf("%d slots at %v, want %d", got, time.Duration(now-t0), want)
		}
	}
	expect(t0+second, 7)
	n.ReleaseCaller(t0+second, Who(x), t0+second)
	expect(t0+second, 5)
	n.ReleaseCaller(t0+2*second, MemberCallers("b"), t0+second)
	expect(t0+2*second, 3)
	if f := n.Stats(t0 + 2*second).Holds; f.CallersDead != 4 || f.GivenBack != 4 {
		t.Errorf("%+v", f)
	}
	n.Tick(t0 + 63*second)
	if n.dead.m.Load() != nil {
		t.Error("the dead are not forgotten")
	}
}

// TestDeadCallerOfMovingKey requires that a dead caller's slots are released by the last owner of the key, while two
// owners crash one after the other.
func TestDeadCallerOfMovingKey(t *testing.T) {
	for seed := range seeds(12) {
		w := newNetwork(t, seed, Options{}, "a", "b", "c", "d", "e")
		for id := range uint64(30) {
			caller := CallerOf(1+id%3, "")
			w.ask(w.ids()[w.rnd.IntN(5)], slot(1, id, caller), func(res Result) {
				if res.Over || res.Authority != Full {
					t.Fatalf("%+v", res)
				}
			})
		}
		w.run(time.Second)
		before := w.now
		for range 2 {
			for _, id := range w.ids() {
				w.nodes[id].ReleaseCaller(w.now, Who(CallerOf(1, "")), before)
				if w.rnd.IntN(2) == 0 {
					w.run(time.Duration(w.rnd.IntN(200)) * time.Millisecond)
				}
			}
			q := slot(1, 0, 0)
			delete(w.nodes, w.ring().At(w.ring().Owner(q.RingPos)).ID)
			w.adopt()
			w.run(8 * time.Second) // so that the new owner is not taken to have lost charges
		}
		q := slot(1, 0, 0)
		last := w.nodes[w.ring().At(w.ring().Owner(q.RingPos)).ID]
		holds, _ := last.HeldHits(q.Key)
		if count := last.RecordedUsage(w.now, &q); count != 20 || holds != 20 {
			t.Errorf("seed %d: %d slots charged and %d open, want 20", seed, count, holds)
		}
	}
}
