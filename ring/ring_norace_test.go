//go:build !race

package ring

import (
	"math"
	"slices"
	"testing"
)

func TestSmallRings(t *testing.T) {
	for name, r := range map[string]*Ring{"zero": {}, "empty": New(nil)} {
		if r.Len() != 0 || r.Owner(1) != -1 || r.Successor(1) != -1 || r.Rank(1, 0) != -1 || r.Index("a") != -1 ||
			len(r.Order(1, nil)) != 0 || r.Fingerprint() != 0 || r.Weight() != 0 {
			t.Errorf("%s ring is not empty", name)
		}
	}
	one := New([]Member{{ID: "a"}})
	if one.Owner(1) != 0 || one.Successor(1) != -1 || !slices.Equal(one.Order(1, nil), []int{0}) ||
		one.Rank(1, 0) != 0 || one.Rank(1, 1) != -1 {
		t.Error("a single member is not the only owner")
	}
	if one.At(0).Weight != 1 || len(one.table.hashes) != PointsPerWeight {
		t.Error("weight 0 does not count as 1")
	}
	if r := New([]Member{{ID: "a", Weight: math.MaxUint32}}); r.Weight() != MaxCapacity-1 {
		t.Errorf("weight %d", r.Weight())
	}
}

// TestNextIsNew requires that a ring with a shared table equals a new one, whichever members leave, return, restart or
// join.
func TestNextIsNew(t *testing.T) {
	rnd := seeded(3)
	all := fleet(rnd, 30, 3)
	on, r, shared := slices.Clone(all[:24]), New(all[:24]), 0
	for step := range 60 {
		before := New(on)
		switch k := rnd.IntN(len(on)); {
		case step%2 == 0: // two leave
			on = slices.Delete(on, k, min(k+2, len(on)))
		case rnd.IntN(4) == 0: // one grows
			on[k].Weight++
		default: // some join or return, with another boot ID
			for i := range all {
				if len(on) < 24 && !slices.ContainsFunc(on, func(m Member) bool { return m.ID == all[i].ID }) {
					m := all[i]
					m.BootID += uint64(step)
					on = append(on, m)
				}
			}
		}
		next, want := own.Next(r, on, all[:step%len(all)]), New(on)
		if share(next, r) {
			shared++
		}
		if next.Fingerprint() != want.Fingerprint() || next.Len() != want.Len() || next.Weight() != want.Weight() {
			t.Fatalf("step %d: the rings differ", step)
		}
		for range 300 {
			h := rnd.Uint64()
			if i := rnd.IntN(len(want.table.hashes)); h%2 == 0 {
				h = want.table.hashes[i] + h%3 - 1 // at a point or next to it
			}
			i := rnd.IntN(want.Len())
			if next.Owner(h) != want.Owner(h) || next.Successor(h) != want.Successor(h) || next.Rank(h, i) != want.Rank(h, i) ||
				!slices.Equal(next.Order(h, nil), want.Order(h, nil)) {
				t.Fatalf("step %d, hash %x: owner %d, successor %d, rank %d; want %d, %d, %d", step, h,
					next.Owner(h), next.Successor(h), next.Rank(h, i), want.Owner(h), want.Successor(h), want.Rank(h, i))
			}
		}
		if !slices.Equal(Diff(r, next), Diff(before, want)) || !slices.Equal(Diff(next, r), Diff(want, before)) {
			t.Fatalf("step %d: the moves differ", step)
		}
		r = next
	}
	if shared < 15 || shared == 60 {
		t.Errorf("%d of 60 rings share their table", shared)
	}
	if n := own.Next(r, nil, nil); n.Owner(1) != -1 || n.Len() != 0 || n.Fingerprint() != 0 {
		t.Error("a ring without members has an owner")
	}
	one := own.Next(New(all[:2]), all[:1], nil)
	if zero := own.Next(&Ring{}, all[:1], nil); one.Successor(5) != -1 || one.Owner(5) != 0 || zero.Owner(5) != 0 {
		t.Error("a single member is not the only owner")
	}
}
