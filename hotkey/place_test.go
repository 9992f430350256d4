package hotkey

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/keyward/keyward/ring"
)

// ringOf returns a ring of members m0, m1, ... with these weights.
func ringOf(weights ...uint32) *ring.Ring {
	var members []ring.Member
	for i, w := range weights {
		members = append(members, ring.Member{ID: ring.ID(fmt.Sprint("m", i)), BootID: 1, Weight: w})
	}
	return ring.New(members)
}

// equal returns n weights of 1.
func equal(n int) []uint32 { return slices.Repeat([]uint32{1}, n) }

func targets(r *ring.Ring, load map[ring.ID]float64) Targets { return Targets{Ring: r, Load: load} }

func ownerOf(r *ring.Ring, s string) ring.ID { return targets(r, nil).ownerOf(s) }

func membersOf(subs []SubKey) (ids []ring.ID) {
	for _, s := range subs {
		ids = append(ids, s.Member)
	}
	return ids
}

// checkPlaced requires what every placement guarantees.
func checkPlaced(t *testing.T, r *ring.Ring, owner string, n int, subs []SubKey) {
	t.Helper()
	if len(subs) != min(n, r.Len()) {
		t.Errorf("%d sub-keys of %q on %d members, want %d", len(subs), owner, r.Len(), min(n, r.Len()))
	}
	ids := membersOf(subs)
	for i, s := range subs {
		if got := ownerOf(r, s.Key); got != s.Member {
			t.Errorf("%q belongs to %s, not to %s", s.Key, got, s.Member)
		}
		if slices.Contains(ids[:i], s.Member) {
			t.Errorf("two sub-keys of %q at %s", owner, s.Member)
		}
	}
	if n < r.Len() && slices.Contains(ids, ownerOf(r, owner)) {
		t.Errorf("the owner of %q has a sub-key", owner)
	}
}

func TestPlaceOnDistinctMembers(t *testing.T) {
	for _, weights := range [][]uint32{equal(1), equal(2), equal(3), equal(5), equal(50), {1, 20, 3, 1, 100}} {
		r := ringOf(weights...)
		for n := 1; n <= MaxSubKeys; n++ {
			for i := range 20 {
				owner := fmt.Sprint("customer-", i)
				checkPlaced(t, r, owner, n, targets(r, nil).place(owner, n))
			}
		}
	}
	if got := targets(new(ring.Ring), nil).place("a", 4); got != nil {
		t.Errorf("%v on no members", got)
	}
	if got := targets(ringOf(equal(50)...), nil).place("a", 40); len(got) != MaxSubKeys {
		t.Errorf("%d sub-keys", len(got))
	}
}

func TestPlacePrefersTheLeastLoaded(t *testing.T) {
	r, load := ringOf(equal(10)...), map[ring.ID]float64{}
	for i := range 10 {
		load[r.At(i).ID] = float64(100 * i) // m0 has 0, m9 has 900
	}
	for i := range 100 {
		owner := fmt.Sprint("customer-", i)
		want, self := []ring.ID{}, ownerOf(r, owner)
		for j := 0; len(want) < 4; j++ {
			if id := r.At(j).ID; id != self {
				want = append(want, id)
			}
		}
		got := membersOf(targets(r, load).place(owner, 4))
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%q has sub-keys at %v, the least loaded are %v", owner, got, want)
		}
	}
}

func idsOf(r *ring.Ring) (ids []ring.ID) {
	for i := range r.Len() {
		ids = append(ids, r.At(i).ID)
	}
	return ids
}

func TestPlaceCountsLoadByWeight(t *testing.T) {
	r := ringOf(1, 10, 1, 1)
	load := map[ring.ID]float64{"m0": 400, "m1": 2000, "m2": 400, "m3": 400} // 200 per unit of m1's weight
	for i := range 50 {
		owner := fmt.Sprint("customer-", i)
		if got := membersOf(targets(r, load).place(owner, 1)); ownerOf(r, owner) != "m1" && got[0] != "m1" {
			t.Errorf("%q is placed at %s", owner, got)
		}
	}
}

func TestPlaceLeavesOutMembersWithoutASubKey(t *testing.T) {
	to := targets(ringOf(equal(5)...), nil)
	if got := to.suffixes("a", []ring.ID{"absent"}); len(got) != 0 {
		t.Errorf("%v: the ring assigns nothing to this member", got)
	}
}

func TestPlacementsAreKept(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	before, after := ringOf(equal(6)...), ringOf(equal(8)...)
	for i := range 50 {
		owner := fmt.Sprint("customer-", i)
		had := targets(before, nil).place(owner, 4)
		load := map[ring.ID]float64{}
		for j := range 8 {
			load[ring.ID(fmt.Sprint("m", j))] = rnd.Float64() * 1000
		}
		if got := targets(before, load).keepOrPlace(had, owner, 4); !slices.Equal(got, had) {
			t.Errorf("%v became %v with the load", had, got)
		}
		got := targets(after, load).keepOrPlace(had, owner, 4)
		if !slices.Equal(membersOf(got), membersOf(had)) {
			t.Errorf("%v became %v with the ring", had, got)
		}
		for _, s := range got {
			if ownerOf(after, s.Key) != s.Member {
				t.Errorf("the ring assigns %v to another member", s)
			}
		}
		without := slices.DeleteFunc(ids(before), func(m ring.Member) bool { return m.ID == had[2].Member })
		checkPlaced(t, ring.New(without), owner, 4, targets(ring.New(without), load).keepOrPlace(had, owner, 4))
		if got := targets(before, load).keepOrPlace(had, owner, 2); len(got) != 2 {
			t.Errorf("%v, want 2", got)
		}
	}
}

func ids(r *ring.Ring) (members []ring.Member) {
	for i := range r.Len() {
		members = append(members, r.At(i))
	}
	return members
}

func BenchmarkPlace(b *testing.B) {
	for _, n := range []int{5, 50, 1000} {
		r := ringOf(equal(n)...)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				targets(r, nil).place(fmt.Sprint("customer-", i), 4)
			}
		})
	}
}
