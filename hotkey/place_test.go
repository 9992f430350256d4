package hotkey

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/keyward/keyward/ring"
)

// ringOf has members m0, m1, ... of these weights.
func ringOf(weights ...uint32) *ring.Ring {
	var members []ring.Member
	for i, w := range weights {
		members = append(members, ring.Member{ID: ring.ID(fmt.Sprint("m", i)), BootID: 1, Weight: w})
	}
	return ring.New(members)
}

// equal is n weights of 1.
func equal(n int) []uint32 { return slices.Repeat([]uint32{1}, n) }

func ownerOf(r *ring.Ring, s string) ring.ID { return r.At(r.Owner(ring.Hash(s))).ID }

func membersOf(subs []SubKey) (ids []ring.ID) {
	for _, s := range subs {
		ids = append(ids, s.Member)
	}
	return ids
}

// checkPlaced holds subs to what every placement promises.
func checkPlaced(t *testing.T, r *ring.Ring, owner string, n int, subs []SubKey) {
	t.Helper()
	if len(subs) != min(n, r.Len()) {
		t.Errorf("%d sub-keys of %q on %d members, want %d", len(subs), owner, r.Len(), min(n, r.Len()))
	}
	ids := membersOf(subs)
	for i, s := range subs {
		if got := ownerOf(r, s.Key); got != s.Member {
			t.Errorf("%q is at %s, not at %s", s.Key, got, s.Member)
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
				checkPlaced(t, r, owner, n, placeSubKeys(r, ring.Hash, owner, n, nil))
			}
		}
	}
	if got := placeSubKeys(new(ring.Ring), ring.Hash, "a", 4, nil); got != nil {
		t.Errorf("%v on no members", got)
	}
	if got := placeSubKeys(ringOf(equal(50)...), ring.Hash, "a", 40, nil); len(got) != MaxSubKeys {
		t.Errorf("%d sub-keys", len(got))
	}
}

func TestPlacePrefersTheLeastLoaded(t *testing.T) {
	r, load := ringOf(equal(10)...), map[ring.ID]float64{}
	for i := range 10 {
		load[r.At(i).ID] = float64(100 * i) // m0 has none, m9 has 900
	}
	for i := range 100 {
		owner := fmt.Sprint("customer-", i)
		want, self := []ring.ID{}, ownerOf(r, owner)
		for j := 0; len(want) < 4; j++ {
			if id := r.At(j).ID; id != self {
				want = append(want, id)
			}
		}
		got := membersOf(placeSubKeys(r, ring.Hash, owner, 4, load))
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
	load := map[ring.ID]float64{"m0": 400, "m1": 2000, "m2": 400, "m3": 400} // 200 for each unit of m1's weight
	for i := range 50 {
		owner := fmt.Sprint("customer-", i)
		if got := membersOf(placeSubKeys(r, ring.Hash, owner, 1, load)); ownerOf(r, owner) != "m1" && got[0] != "m1" {
			t.Errorf("%q is placed at %s", owner, got)
		}
	}
}

func TestPlaceGivesUpWhereTheRingPutsNothing(t *testing.T) {
	got := placeSubKeys(ringOf(equal(5)...), func(string) uint64 { return 1 }, "a", 4, nil)
	if len(got) != 0 {
		t.Errorf("%v: nothing hashes to these members", got)
	}
}

func TestSettleKeepsPlacements(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	before, after := ringOf(equal(6)...), ringOf(equal(8)...)
	for i := range 50 {
		owner := fmt.Sprint("customer-", i)
		had := placeSubKeys(before, ring.Hash, owner, 4, nil)
		load := map[ring.ID]float64{}
		for j := range 8 {
			load[ring.ID(fmt.Sprint("m", j))] = rnd.Float64() * 1000
		}
		if got := keepOrPlace(had, before, ring.Hash, owner, 4, load); !slices.Equal(got, had) {
			t.Errorf("%v became %v with the load", had, got)
		}
		got := keepOrPlace(had, after, ring.Hash, owner, 4, load)
		if !slices.Equal(membersOf(got), membersOf(had)) {
			t.Errorf("%v became %v with the ring", had, got)
		}
		for _, s := range got {
			if ownerOf(after, s.Key) != s.Member {
				t.Errorf("%v is a stray", s)
			}
		}
		without := slices.DeleteFunc(ids(before), func(m ring.Member) bool { return m.ID == had[2].Member })
		checkPlaced(t, ring.New(without), owner, 4, keepOrPlace(had, ring.New(without), ring.Hash, owner, 4, load))
		if got := keepOrPlace(had, before, ring.Hash, owner, 2, load); len(got) != 2 {
			t.Errorf("%v, of 2", got)
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
				placeSubKeys(r, ring.Hash, fmt.Sprint("customer-", i), 4, nil)
			}
		})
	}
}
