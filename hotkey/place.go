package hotkey

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/buraksezer/consistent"

	"github.com/keyward/keyward/ring"
)

const (
	// MaxSubKeys is the maximum number of sub-keys of one key.
	MaxSubKeys = 16
	// defaultSubKeys is the number of sub-keys of a key whose rule does not set it.
	defaultSubKeys = 4

	equalLoad     = 0.1 // fraction of the mean load within which members count as equally loaded
	maxCandidates = 64
	triesPerPoint = 64 // suffixes to try for each unit of weight on the ring; one of e^64 searches fails
)

// Targets are the members that can get sub-keys.
type Targets struct {
	Ring *ring.Ring
	Load map[ring.ID]float64 // in any unit; 0 for members without an entry
}

// ownerOf returns the owner of an owner string on the ring.
func (t Targets) ownerOf(s string) ring.ID { return t.Ring.At(t.Ring.Owner(ring.Hash(s))).ID }

// place returns n sub-keys of an owner string on n distinct members, or on all if there are fewer. It selects the
// members with the least load per unit of weight. Among members whose load differs by less than a tenth of the mean,
// consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam, SODA 2018) selects with a bound of one
// sub-key per member, so that different hot keys use different members. The owner of the key gets a sub-key only if
// there are not enough other members.
//
// The sub-key of a member is the first of owner#0, owner#1, ... that the ring assigns to it. A member without one is
// left out. The result depends only on the arguments.
func (t Targets) place(owner string, n int) []SubKey {
	n = min(n, t.Ring.Len(), MaxSubKeys)
	if n <= 0 {
		return nil
	}
	self := t.ownerOf(owner)
	members := t.pick(self, owner, min(n, t.Ring.Len()-1))
	if len(members) < n {
		members = append(members, self)
	}
	return t.suffixes(owner, members)
}

// keepOrPlace keeps a placement while its members are on the ring and it has n sub-keys. If the ring assigns a sub-key
// to another member now, it selects another suffix. Otherwise it places again. It does not modify had.
func (t Targets) keepOrPlace(had []SubKey, owner string, n int) []SubKey {
	if len(had) == 0 || len(had) != min(n, t.Ring.Len(), MaxSubKeys) {
		return t.place(owner, n)
	}
	members, moved := make([]ring.ID, 0, len(had)), false
	for _, s := range had {
		if t.Ring.Index(s.Member) < 0 {
			return t.place(owner, n)
		}
		members = append(members, s.Member)
		moved = moved || t.ownerOf(s.Key) != s.Member
	}
	if !moved {
		return had
	}
	return t.suffixes(owner, members)
}

// candidate is a member that may get a sub-key.
type candidate struct {
	id    ring.ID
	load  float64 // per unit of weight
	order uint64  // position on the key's circle
}

// String returns the member's name on the circle.
func (c candidate) String() string { return string(c.id) }

// pick selects n members other than self. There must be as many.
func (t Targets) pick(self ring.ID, owner string, n int) []ring.ID {
	if n == 0 {
		return nil
	}
	var all []candidate
	sum := 0.0
	for i := range t.Ring.Len() {
		if m := t.Ring.At(i); m.ID != self {
			c := candidate{m.ID, max(t.Load[m.ID], 0) / float64(m.Weight), circle(owner).Sum64([]byte(m.ID))}
			all, sum = append(all, c), sum+c.load
		}
	}
	slices.SortFunc(all, func(a, b candidate) int { return cmp.Compare(a.load, b.load) })
	last, near := all[n-1].load, equalLoad*sum/float64(len(all))
	var picked []ring.ID
	for all[0].load < last-near {
		picked, all = append(picked, all[0].id), all[1:]
	}
	all = slices.DeleteFunc(all, func(c candidate) bool { return c.load > last+near })
	return append(picked, bounded(all, owner, n-len(picked))...)
}

// circle hashes members onto a circle of one key's own. It is not Envoy's ring.
type circle string

// Sum64 hashes b for this circle.
func (c circle) Sum64(b []byte) uint64 { return ring.Hash(string(c) + "\x00" + string(b)) }

// bounded selects n of equally loaded candidates: each sub-key goes to the next member on the circle without one.
func bounded(from []candidate, owner string, n int) []ring.ID {
	slices.SortFunc(from, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.order, b.order), cmp.Compare(a.id, b.id))
	})
	from = from[:min(len(from), maxCandidates)]
	members := make([]consistent.Member, len(from))
	for i, c := range from {
		members[i] = c
	}
	// With as many partitions as members and load 1, the bound is one partition per member. Two points per member are
	// enough, because the library tries all points but one for a free member. They are also unique: a point is a name
	// and a number, which could coincide with numbers of two digits.
	c := consistent.New(members, consistent.Config{
		Hasher: circle(owner), PartitionCount: len(from), ReplicationFactor: 2, Load: 1,
	})
	picked := make([]ring.ID, n)
	for i := range picked {
		picked[i] = ring.ID(c.GetPartitionOwner(i).String())
	}
	return picked
}

// suffixes returns each member's sub-key, in the order of the members.
func (t Targets) suffixes(owner string, members []ring.ID) []SubKey {
	keys := make([]SubKey, len(members))
	missing := len(members)
	for i := uint64(0); missing > 0 && i < triesPerPoint*t.Ring.Weight(); i++ {
		key := subKey(owner, i)
		m := slices.Index(members, t.ownerOf(key))
		if m >= 0 && keys[m].Key == "" {
			keys[m] = SubKey{key, members[m]}
			missing--
		}
	}
	return slices.DeleteFunc(keys, func(s SubKey) bool { return s.Key == "" })
}

// subKey returns the i-th sub-key of an owner string.
func subKey(owner string, i uint64) string { return owner + "#" + strconv.FormatUint(i, 10) }
