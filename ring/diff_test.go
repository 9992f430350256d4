package ring

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// checkMoves requires that moves are ascending, merged where possible, and cover exactly the hashes whose owner
// differs.
func checkMoves(t *testing.T, a, b *Ring, moves []Move, rnd *rand.Rand) {
	t.Helper()
	inside := func(h uint64) *Move {
		i, _ := slices.BinarySearchFunc(moves, h, func(m Move, h uint64) int { return cmp.Compare(m.Last, h) })
		if i < len(moves) && moves[i].First <= h {
			return &moves[i]
		}
		return nil
	}
	check := func(h uint64) {
		from, to := ownerID(a, h), ownerID(b, h)
		m := inside(h)
		if (from != to) != (m != nil) || m != nil && (m.From != from || m.To != to) {
			t.Fatalf("hash %#x goes from %q to %q, moves say %+v", h, from, to, m)
		}
	}
	for i, m := range moves {
		if m.First > m.Last || m.From == m.To {
			t.Fatalf("move %d: %+v", i, m)
		}
		if i > 0 {
			if p := moves[i-1]; p.Last >= m.First || p.Last+1 == m.First && p.From == m.From && p.To == m.To {
				t.Fatalf("moves %d and %d: %+v, %+v", i-1, i, p, m)
			}
		}
		for _, h := range []uint64{m.First - 1, m.First, m.Last, m.Last + 1} {
			check(h)
		}
	}
	for range 3000 {
		check(rnd.Uint64())
	}
	for _, h := range []uint64{0, math.MaxUint64} {
		check(h)
	}
}

func TestMovesToAndFromEmptyRings(t *testing.T) {
	r, empty := New(fleet(seeded(1), 3, 1)), &Ring{}
	if m := Diff(empty, empty); m != nil {
		t.Errorf("between empty rings: %v", m)
	}
	if m := Diff(r, New(slices.Clone(r.members))); m != nil {
		t.Errorf("between equal rings: %d moves", len(m))
	}
	checkMoves(t, empty, r, Diff(empty, r), seeded(2))
	checkMoves(t, r, empty, Diff(r, empty), seeded(2))
	if share := MovedShare(Diff(empty, r)); math.Abs(share-1) > 1e-9 {
		t.Errorf("all keys are a share of %v", share)
	}
	one := New([]Member{{ID: "a"}})
	want := Move{0, math.MaxUint64, "", "a"}
	if got := Diff(empty, one); len(got) != 1 || got[0] != want || got[0].Share() != 1 {
		t.Errorf("to one member: %+v", got)
	}
	again := New([]Member{{ID: "a", BootID: 7}})
	if got := Diff(one, again); got != nil {
		t.Errorf("a new boot moves %+v", got)
	}
}

func BenchmarkMoves(b *testing.B) {
	members := fleet(seeded(1), 100, 1)
	x, y := New(members), New(members[1:])
	for b.Loop() {
		Diff(x, y)
	}
}
