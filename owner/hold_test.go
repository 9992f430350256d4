package owner

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// hold returns a request of op about the claim with that number, on key i.
func hold(i int, id uint64, op Op, r limit.Rule, hits uint64) Request {
	q := ask(i, r.Limit, r.Window, hits)
	q.Rule, q.Op = r, op
	q.Hold = &Hold{ID: claim.Ident{id, uint64(i)}, TTL: 10 * time.Minute, Max: 100}
	return q
}

// heldCount returns the count of q's rule.
func heldCount(t *testing.T, n *Node, now int64, q Request) uint64 {
	t.Helper()
	q.Op, q.Hits, q.Hold = DryRun, 0, nil
	return n.Decide(now, &q).After
}

func TestHoldsAreSettledOnce(t *testing.T) {
	for _, a := range algorithms {
		r := limit.Rule{Algorithm: a, Window: time.Hour, Limit: 100}
		t.Run(a.String(), func(t *testing.T) {
			n := alone(Options{})
			do := func(now int64, id uint64, op Op, hits uint64) Result {
				q := hold(1, id, op, r, hits)
				return n.Decide(now, &q)
			}
			expect := func(now int64, want uint64) {
				t.Helper()
				if got := heldCount(t, n, now, hold(1, 1, Reserve, r, 0)); got != want {
					t.Fatalf("the count is %d, not %d", got, want)
				}
			}
			now := t0 + second
			if res := do(now, 1, Reserve, 60); res.Over || res.After != 60 {
				t.Fatalf("the first hold: %+v", res)
			}
			if res := do(now, 2, Reserve, 50); !res.Over {
				t.Fatalf("a hold beyond the limit: %+v", res)
			}
			expect(now, 60)
			do(now, 3, Reserve, 40)
			if holds, hits := n.HeldHits(key(1)); holds != 2 || hits != 100 {
				t.Errorf("%d holds of %d hits are open", holds, hits)
			}
			for op, want := range map[Op]uint64{Read: 100, DryRun: 100, Take: 0} {
				q := hold(1, 1, op, r, 0)
				q.Hold = nil
				if res := n.Decide(now, &q); res.Held != want || res.Holds != uint32(want/50) {
					t.Errorf("operation %d reads %d holds of %d hits", op, res.Holds, res.Held)
				}
			}
			do(now+milli, 1, Commit, 25)
			expect(now+milli, 65)
			do(now+milli, 1, Commit, 5)
			do(now+milli, 1, Release, 0)
			do(now+milli, 1, Keep, 0)
			expect(now+milli, 65)
			do(now+milli, 3, Release, 0)
			expect(now+milli, 25)
			if holds, hits := n.HeldHits(key(1)); holds != 0 || hits != 0 {
				t.Errorf("%d holds of %d hits are open", holds, hits)
			}
			do(now+milli, 4, Reserve, 10)
			do(now+milli, 4, Commit, 30) // more than was reserved
			expect(now+milli, 55)
			do(now+milli, 5, Commit, 7) // not known
			do(now+milli, 6, Release, 9)
			expect(now+milli, 62)
		})
	}
}

func TestHoldsOfOneID(t *testing.T) {
	r := limit.Rule{Window: time.Hour, Limit: 100}
	n := alone(Options{})
	do := func(now int64, id uint64, hits uint64) Result {
		q := hold(1, id, Reserve, r, hits)
		return n.Decide(now, &q)
	}
	do(t0, 1, 10)
	if res := do(t0+milli, 1, 10); res.Over || res.After != 10 {
		t.Errorf("a repeated request: %+v", res)
	}
	if res := do(t0+milli, 1, 11); !res.Over {
		t.Errorf("other hits under the same id: %+v", res)
	}
	if res := do(t0+2*second, 1, 10); !res.Over {
		t.Errorf("a late repetition: %+v", res)
	}
	q := hold(1, 1, Keep, r, 0)
	n.Decide(t0+2*second, &q)
	if res := do(t0+2*second, 1, 10); res.Over || res.After != 20 {
		t.Errorf("a new hold under the same id: %+v", res)
	}
	if f := n.Stats(t0 + 2*second); f.Holds.Repeats != 1 || f.Holds.Collisions != 2 || f.Holds.Reserved != 2 {
		t.Errorf("%+v", f.Holds)
	}
}

// TestRefusedReservesForgetNothing requires that a request that comes again after its hold was settled, and is refused then,
// does not make the owner forget the settlement.
func TestRefusedReservesForgetNothing(t *testing.T) {
	r := limit.Rule{Window: time.Hour, Limit: 10}
	for name, max := range map[string]uint32{"the limit": 100, "the room for holds": 1} {
		n := alone(Options{})
		do := func(id uint64, op Op, hits uint64) Result {
			q := hold(1, id, op, r, hits)
			q.Hold.Max = max
			return n.Decide(t0, &q)
		}
		do(1, Reserve, 6)
		do(1, Commit, 6)
		do(2, Reserve, 1)
		if res := do(1, Reserve, 6); !res.Over {
			t.Fatalf("%s: beyond it: %+v", name, res)
		}
		if do(1, Commit, 6); heldCount(t, n, t0, hold(1, 1, Reserve, r, 0)) != 7 {
			t.Errorf("%s: a repeated commit is charged again", name)
		}
		if f := n.Stats(t0); f.Claims != 2 {
			t.Errorf("%s: %d claims", name, f.Claims)
		}
	}
}

func TestHoldsOfOneKeyAreBounded(t *testing.T) {
	n := alone(Options{MaxHolds: 150})
	r := limit.Rule{Window: time.Hour, Limit: 1000}
	admitted := 0
	for id := range uint64(120) {
		q := hold(1, id, Reserve, r, 1)
		if res := n.Decide(t0, &q); !res.Over {
			admitted++
		}
	}
	if admitted != 75 { // half of the claims in one domain, below the 100 of a key
		t.Errorf("%d holds of one domain", admitted)
	}
	for id := range uint64(60) {
		q := hold(1, id, Keep, r, 0)
		n.Decide(t0, &q)
	}
	for id := range uint64(60) {
		q := hold(1, 1000+id, Reserve, r, 1)
		if n.Decide(t0+second, &q).Over {
			t.Fatal("settled holds take the place of open ones")
		}
	}
}

func TestHoldsLapse(t *testing.T) {
	r := limit.Rule{Window: time.Hour, Limit: 100}
	n := alone(Options{})
	for id, flags := range []claim.Flags{0, claim.Releases} {
		q := hold(1, uint64(id), Reserve, r, 10)
		q.Hold.Flags, q.Hold.TTL = flags, time.Minute
		n.Decide(t0, &q)
	}
	n.Tick(t0 + 59*second)
	if got := heldCount(t, n, t0+59*second, hold(1, 1, Reserve, r, 0)); got != 20 {
		t.Errorf("the count is %d before the holds lapse", got)
	}
	n.Tick(t0 + 61*second)
	if got := heldCount(t, n, t0+61*second, hold(1, 1, Reserve, r, 0)); got != 10 {
		t.Errorf("the count is %d after one of two holds was released", got)
	}
	if f := n.Stats(t0 + 61*second); f.Holds.Lapsed != 2 || f.Holds.GivenBack != 10 {
		t.Errorf("%+v", f.Holds)
	}
	for range 40 {
		n.Tick(t0 + 300*second)
	}
	if f := n.Stats(t0 + 300*second); f.Claims != 0 {
		t.Errorf("%d claims are remembered", f.Claims)
	}
}

// holdSeeds is the number of seeds of each test of a cluster.
const holdSeeds = 12

// holdRun runs holds of one key in a cluster while change changes it, and records what was used.
type holdRun struct {
	w      *network
	r      limit.Rule
	open   map[uint64]uint64
	next   uint64
	actual uint64 // hits used by settled holds
}

func (h *holdRun) some() ring.ID { ids := h.w.ids(); return ids[h.w.rnd.IntN(len(ids))] }

// settle asks for a settlement until a member confirms it.
func (h *holdRun) settle(q Request) {
	for range 3000 {
		ok := false
		h.w.ask(h.some(), q, func(res Result) { ok = res.Kind == Decided && res.Authority != Shed })
		if ok {
			return
		}
		h.w.run(10 * time.Millisecond)
	}
	h.w.t.Fatal("a settlement is not confirmed")
}

func (h *holdRun) load(rounds int) {
	for range rounds {
		id := h.next
		h.next++
		hits := 1 + h.w.rnd.Uint64N(9)
		q := hold(1, id, Reserve, h.r, hits)
		q.Strict = true
		h.w.ask(h.some(), q, func(res Result) {
			if !res.Over {
				h.open[id] = hits
			}
		})
		for _, id := range slices.Sorted(maps.Keys(h.open)) {
			hits := h.open[id]
			if h.w.rnd.IntN(3) > 0 {
				continue
			}
			delete(h.open, id)
			q := hold(1, id, Commit, h.r, h.w.rnd.Uint64N(hits+1))
			h.actual += q.Hits
			h.settle(q)
			break
		}
		if h.w.rnd.IntN(4) == 0 {
			h.w.run(4 * time.Millisecond)
		}
	}
}

func (h *holdRun) finish() (count uint64) {
	for _, id := range slices.Sorted(maps.Keys(h.open)) {
		q := hold(1, id, Release, h.r, 0)
		h.settle(q)
	}
	h.w.run(3 * time.Second)
	q := hold(1, 0, DryRun, h.r, 0)
	q.Hold = nil
	h.w.ask(h.some(), q, func(res Result) { count = res.After })
	return count
}

// TestHoldsMoveWithTheirKey requires that the count is exactly what was used after members have joined and left, and not
// less after an owner has crashed.
func TestHoldsMoveWithTheirKey(t *testing.T) {
	for seed := range seeds(holdSeeds) {
		for _, a := range []limit.Algorithm{limit.FixedWindow, limit.SlidingWindow, limit.InFlight} {
			w := newNetwork(t, seed, Options{}, "a", "b", "c")
			h := &holdRun{w: w, r: limit.Rule{Algorithm: a, Window: time.Hour, Limit: 5000}, open: map[uint64]uint64{}}
			h.load(40)
			w.boot("d", membership.Active)
			for _, id := range w.ids() {
				w.adoptAt(id, w.ring())
				h.load(20)
			}
			w.run(2 * time.Second)
			h.load(40)
			q := hold(1, 0, Reserve, h.r, 0)
			owner := w.ring().At(w.ring().Owner(q.RingPos)).ID
			w.leave(t, owner, func(n int) { h.load(n / 3) })
			h.load(20)
			if got, want := h.finish(), h.actual; got != want {
				t.Fatalf("seed %d, %v: the count is %d, but %d hits were used", seed, a, got, want)
			}
			for _, id := range w.ids() {
				if holds, hits := w.nodes[id].HeldHits(key(1)); holds != 0 {
					t.Errorf("seed %d, %v: %s knows %d open holds of %d hits", seed, a, id, holds, hits)
				}
			}
		}
	}
}

func TestHoldsSurviveTheirOwner(t *testing.T) {
	for seed := range seeds(holdSeeds) {
		w := newNetwork(t, seed, Options{}, "a", "b", "c", "d")
		h := &holdRun{w: w, r: limit.Rule{Window: time.Hour, Limit: 5000}, open: map[uint64]uint64{}}
		h.load(60)
		q := hold(1, 0, Reserve, h.r, 0)
		delete(w.nodes, w.ring().At(w.ring().Owner(q.RingPos)).ID)
		w.adopt()
		w.run(4 * time.Second)
		h.load(60)
		got, want := h.finish(), h.actual
		if got < want {
			t.Fatalf("seed %d: the count is %d, but %d hits were used", seed, got, want)
		}
		lost := uint64(0)
		for _, id := range w.ids() {
			lost += w.nodes[id].Stats(w.now).Holds.Lost
		}
		if got > want+lost {
			t.Errorf("seed %d: %d hits stay charged after the crash, but %d are counted as lost", seed, got-want, lost)
		}
	}
}

// TestRepeatedRequests requires that a request of a rule with once is charged once, and that its repetition gets the
// answer of the first one, whatever came in between.
func TestRepeatedRequests(t *testing.T) {
	n := alone(Options{})
	do := func(now int64, id uint64, hits uint64) Result {
		q := ask(1, 10, time.Hour, hits)
		q.Hold = &Hold{ID: claim.Ident{id, 1}, TTL: 2 * time.Second, Flags: claim.Once}
		return n.Decide(now, &q)
	}
	do(t0, 1, 6)
	if res := do(t0, 2, 6); !res.Over || res.After != 12 {
		t.Fatalf("beyond the limit: %+v", res)
	}
	for id, over := range map[uint64]bool{1: false, 2: true} {
		if res := do(t0+milli, id, 6); res.Over != over || res.After != 12 {
			t.Errorf("request %d again: %+v", id, res)
		}
	}
	if res := do(t0+3*second, 1, 6); !res.Over || res.After != 18 {
		t.Errorf("the id of a forgotten request: %+v", res)
	}
}
