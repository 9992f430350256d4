package ring

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
)

// own are the parameters of Keyward's own ring.
var own Parameters

// fleet returns n members m-0, m-1, ... with weights 1 to most.
func fleet(rnd *rand.Rand, n, most int) []Member {
	out := make([]Member, n)
	for i := range out {
		out[i] = Member{ID: ID(fmt.Sprintf("m-%d", i)), BootID: rnd.Uint64(), Incarnation: rnd.Uint64()}
		out[i].Weight = uint32(1 + rnd.IntN(most))
	}
	return out
}

func seeded(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

// without returns members except the one with this ID.
func without(members []Member, id ID) []Member {
	return slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return m.ID == id })
}

// ownerID returns the ID of the owner of h.
func ownerID(r *Ring, h uint64) ID { return r.id(r.Owner(h)) }

// twin is the plainest form of a ring: all points, sorted, with ketama's search as in Envoy.
type twin []struct {
	hash uint64
	id   ID
}

func newTwin(members []Member) twin {
	var t twin
	for _, m := range members {
		for i := range PointsPerWeight * int(max(m.Weight, 1)) {
			t = append(t, struct {
				hash uint64
				id   ID
			}{Hash(string(m.ID) + "_" + strconv.Itoa(i)), m.ID})
		}
	}
	slices.SortFunc(t, func(a, b struct {
		hash uint64
		id   ID
	},
	) int {
		return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.id, b.id))
	})
	return t
}

// at is ketama's binary search. For an arc that belongs to point 0, the bounds cross without finding it.
func (t twin) at(h uint64) int {
	low, high := 0, len(t)
	for {
		mid := (low + high) / 2
		if mid == len(t) {
			return 0
		}
		before := uint64(0)
		if mid > 0 {
			before = t[mid-1].hash
		}
		switch {
		case h <= t[mid].hash && h > before:
			return mid
		case t[mid].hash < h:
			low = mid + 1
		default:
			high = mid - 1
		}
		if low > high {
			return 0
		}
	}
}

// order returns all members in ring order from h on.
func (t twin) order(h uint64) []ID {
	var out []ID
	for i := range t {
		if id := t[(t.at(h)+i)%len(t)].id; !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

func TestOwnerEqualsTwin(t *testing.T) {
	for _, n := range []int{1, 2, 3, 17} {
		members := fleet(seeded(uint64(n)), n, 3)
		r, plain := New(members), newTwin(members)
		check := func(h uint64) {
			if got, want := ownerID(r, h), plain[plain.at(h)].id; got != want {
				t.Fatalf("%d members, hash %#x: %s, want %s", n, h, got, want)
			}
		}
		for _, p := range plain {
			check(p.hash - 1)
			check(p.hash)
			check(p.hash + 1)
		}
		rnd := seeded(9)
		for range 10000 {
			check(rnd.Uint64())
		}
		check(0)
		check(math.MaxUint64)
	}
}

func TestOrderEqualsTwin(t *testing.T) {
	members := fleet(seeded(4), 9, 4)
	r, plain, rnd := New(members), newTwin(members), seeded(5)
	for range 50 {
		h := rnd.Uint64()
		want := plain.order(h)
		var got []ID
		for place, i := range r.Order(h, nil) {
			got = append(got, r.At(i).ID)
			if r.Rank(h, i) != place {
				t.Fatalf("rank of %s: %d, want %d", r.At(i).ID, r.Rank(h, i), place)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("hash %#x: order %v, want %v", h, got, want)
		}
		if got[0] != ownerID(r, h) || got[1] != r.id(r.Successor(h)) {
			t.Fatalf("hash %#x: order %v does not start with owner and successor", h, got)
		}
	}
}

// TestLeaveMovesOnlyTheLeaversKeysToTheirSuccessors removes each member in turn. Its keys must move to the next member
// in ring order, and no other key may move.
func TestLeaveMovesOnlyTheLeaversKeysToTheirSuccessors(t *testing.T) {
	rnd := seeded(1)
	members := fleet(rnd, 12, 3)
	r := New(members)
	for _, gone := range members {
		after := New(without(members, gone.ID))
		for range 2000 {
			h := rnd.Uint64()
			want := ownerID(r, h)
			if want == gone.ID {
				want = r.id(r.Successor(h))
			}
			if got := ownerID(after, h); got != want {
				t.Fatalf("without %s, hash %#x: %s, want %s", gone.ID, h, got, want)
			}
		}
	}
}

func TestJoinMovesOnlyToTheJoiner(t *testing.T) {
	members := fleet(seeded(2), 12, 3)
	joiner := Member{ID: "joiner", Weight: 2}
	moves := Diff(New(members), New(append(slices.Clone(members), joiner)))
	total := uint64(2)
	for _, m := range members {
		total += uint64(m.Weight)
	}
	for _, m := range moves {
		if m.To != joiner.ID {
			t.Fatalf("%+v goes to a member that did not join", m)
		}
	}
	if share, fair := MovedShare(moves), 2/float64(total); math.Abs(share-fair) > fair/5 {
		t.Errorf("moved %v of the keys, its fair share is %v", share, fair)
	}
}

func TestNewKeepsTheNewestOfAName(t *testing.T) {
	r := New([]Member{
		{ID: "a", BootID: 1, Incarnation: 9}, {ID: "b"},
		{ID: "a", BootID: 2, Incarnation: 3}, {ID: "a", BootID: 2, Incarnation: 2},
	})
	if r.Len() != 2 || r.At(0) != (Member{ID: "a", BootID: 2, Incarnation: 3, Weight: 1}) {
		t.Errorf("members %+v", r.members)
	}
	if r.Index("a") != 0 || r.Index("b") != 1 || r.Index("") != -1 || r.Index("c") != -1 {
		t.Error("index is wrong")
	}
}

func TestFingerprint(t *testing.T) {
	members := fleet(seeded(8), 5, 3)
	seen := map[uint64]string{New(members).Fingerprint(): "itself"}
	reversed := slices.Clone(members)
	slices.Reverse(reversed)
	if New(reversed).Fingerprint() != New(members).Fingerprint() {
		t.Error("the order of members changes the fingerprint")
	}
	for name, change := range map[string]func(m *Member){
		"id":          func(m *Member) { m.ID += "x" },
		"boot ID":     func(m *Member) { m.BootID++ },
		"incarnation": func(m *Member) { m.Incarnation++ },
		"weight":      func(m *Member) { m.Weight++ },
	} {
		changed := slices.Clone(members)
		change(&changed[2])
		f := New(changed).Fingerprint()
		if other, ok := seen[f]; ok {
			t.Errorf("a changed %s gives the fingerprint of %s", name, other)
		}
		seen[f] = name
	}
	if New([]Member{{ID: "a"}}).Fingerprint() != New([]Member{{ID: "a", Weight: 1}}).Fingerprint() {
		t.Error("weights 0 and 1 have different fingerprints")
	}
}

// TestEqualHashesFallToTheFirst requires that the first of several points with the same hash counts, in buckets of any
// size.
func TestEqualHashesFallToTheFirst(t *testing.T) {
	for _, n := range []int{2, wide, wide + 1, 500} {
		var points []point
		for i := range n {
			points = append(points, point{77, int32(i)}, point{uint64(i), int32(i)}, point{math.MaxUint64, int32(i)})
		}
		tab := newTable(points, n)
		if !slices.IsSorted(tab.hashes) {
			t.Fatalf("%d: not sorted", n)
		}
		for h, want := range map[uint64]int{0: 0, math.MaxUint64: 0, 600: 0} {
			if got := tab.owner(h); got != want {
				t.Errorf("%d owners, hash %d: owner %d, want %d", n, h, got, want)
			}
		}
		if got := tab.at(tab.find(uint64(min(n, 77)-1)) + 1); n < 77 && got != 0 {
			t.Errorf("%d owners: the first of the equal ones is %d", n, got)
		}
	}
}

// TestMoreOwnersThanCapacity covers owners that do not fit into two bytes.
func TestMoreOwnersThanCapacity(t *testing.T) {
	for _, n := range []int{2 * MaxCapacity, math.MaxUint16 + 1, math.MaxUint16 + 2, 100_000} {
		var points []point
		for i := range n {
			points = append(points, point{Hash(strconv.Itoa(i)), int32(i)})
		}
		tab := newTable(points, n)
		seen := 0
		tab.walk(0, func(int) bool { seen++; return true })
		if seen != n {
			t.Errorf("walked past %d owners of %d", seen, n)
		}
		for i, p := range points {
			if o := tab.owner(p.hash); o != i {
				t.Fatalf("%d owners: point %d belongs to owner %d", n, i, o)
			}
		}
	}
}

func share(a, b *Ring) bool { return &a.table.hashes[0] == &b.table.hashes[0] }

// TestNextShares requires that rings share one table when members leave and return, unless most of its points are
// unused.
func TestNextShares(t *testing.T) {
	all := fleet(seeded(1), 100, 1)
	whole := New(all)
	r := whole
	for i := range 25 {
		if r = own.Next(r, all[i:], nil); !share(r, whole) {
			t.Fatalf("table not shared without %d of 100", i)
		}
	}
	if share(own.Next(r, all[26:], nil), whole) {
		t.Error("table shared although over a quarter of its points is unused")
	}
	young := own.Next(&Ring{}, all[:80], all)
	if grown := own.Next(young, all, nil); !share(grown, young) || !slices.Equal(grown.table.near, whole.table.near) {
		t.Error("no points were reserved for joining members")
	}
	if again := own.Next(r, all, nil); !share(again, whole) || &again.table.near[0] != &whole.table.near[0] {
		t.Error("all members are back, but the table is not shared")
	}
}

func TestLookupsDoNotAllocate(t *testing.T) {
	members := fleet(seeded(1), 60, 1)
	for _, r := range []*Ring{New(members[:50]), own.Next(New(members), members[:50], nil)} {
		lookupsDoNotAllocate(t, r)
	}
}

func lookupsDoNotAllocate(t *testing.T, r *Ring) {
	t.Helper()
	order, h := make([]int, 0, r.Len()), uint64(1)
	for name, f := range map[string]func(){
		"Owner":     func() { r.Owner(h) },
		"Successor": func() { r.Successor(h) },
		"Order":     func() { order = r.Order(h, order[:0]) },
		"Rank":      func() { r.Rank(h, 49) },
		"Hash":      func() { h = Hash("some-key") },
		"Index":     func() { r.Index("m-7") },
	} {
		if n := testing.AllocsPerRun(1000, func() { h += 0x9e3779b97f4a7c15; f() }); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

func BenchmarkOwner(b *testing.B) {
	for _, n := range []int{3, 100, 1000} {
		r := New(fleet(seeded(1), n, 1))
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			h := uint64(1)
			for b.Loop() {
				h += 0x9e3779b97f4a7c15
				r.Owner(h)
			}
		})
	}
	b.Run("without 10 of 100", func(b *testing.B) {
		all, h := fleet(seeded(1), 100, 1), uint64(1)
		r := own.Next(New(all), all[10:], nil)
		for b.Loop() {
			h += 0x9e3779b97f4a7c15
			r.Owner(h)
		}
	})
}

func BenchmarkRank(b *testing.B) {
	r, h := New(fleet(seeded(1), 100, 1)), uint64(1)
	for b.Loop() {
		h += 0x9e3779b97f4a7c15
		r.Rank(h, 50)
	}
}

func BenchmarkNew(b *testing.B) {
	for _, n := range []int{3, 100, 1000} {
		members := fleet(seeded(1), n, 1)
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			for b.Loop() {
				New(members)
			}
		})
	}
}

func FuzzNew(f *testing.F) {
	f.Add([]byte("abc"), uint64(1))
	f.Add([]byte{0, 0, 255, 255}, uint64(math.MaxUint64))
	f.Fuzz(func(t *testing.T, spec []byte, h uint64) {
		var members []Member
		for _, b := range spec[:min(len(spec), 24)] {
			members = append(members, Member{ID: ID(strconv.Itoa(int(b % 16))), BootID: uint64(b), Weight: uint32(b >> 6)})
		}
		r := New(members)
		order := r.Order(h, nil)
		if len(order) != r.Len() || r.Len() > 0 && order[0] != r.Owner(h) || r.Len() > 1 && order[1] != r.Successor(h) {
			t.Fatalf("owner %d, successor %d, order %v", r.Owner(h), r.Successor(h), order)
		}
		for place, i := range order {
			if r.Rank(h, i) != place || r.Index(r.At(i).ID) != i {
				t.Fatalf("member %d: rank %d, place %d", i, r.Rank(h, i), place)
			}
		}
		half := New(members[:len(members)/2])
		checkMoves(t, half, r, Diff(half, r), seeded(h))
	})
}

// The zone replica of a key is on the first member in its order that is in another zone than the owner, unless the
// successor is. Zones do not change the ring.
func TestZoneReplica(t *testing.T) {
	zones := []string{"a", "a", "b", "b", "c", ""}
	members, plain := make([]Member, len(zones)), make([]Member, len(zones))
	for i, zone := range zones {
		plain[i] = Member{ID: ID(fmt.Sprintf("pod-%d", i)), BootID: 1, Weight: 1}
		members[i] = plain[i]
		members[i].Zone = zone
	}
	r, without := New(members), New(plain)
	if r.Fingerprint() != without.Fingerprint() {
		t.Error("zones change the fingerprint")
	}
	found := 0
	for h := uint64(0); h < 2000; h++ {
		h := Hash(fmt.Sprint(h))
		order := r.Order(h, nil)
		want := -1
		for _, i := range order[1:] {
			if own, z := zones[order[0]], zones[i]; want < 0 && own != "" && z != "" && z != own {
				want = i
			}
		}
		if want == order[1] {
			want = -1
		}
		if got := r.ZoneReplica(h); got != want {
			t.Fatalf("zone replica of %x on member %d, want %d, order %v", h, got, want, order)
		}
		if want >= 0 {
			found++
		}
		if got := without.ZoneReplica(h); got != -1 {
			t.Fatalf("zone replica on member %d, although no zone is known", got)
		}
	}
	if found < 200 || found > 1000 {
		t.Errorf("%d of 2000 keys have a zone replica", found)
	}
}
