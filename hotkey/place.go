package hotkey

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/buraksezer/consistent"

	"github.com/keyward/keyward/ring"
)

const (
	// MaxSubKeys is how many sub-keys one key has at most.
	MaxSubKeys = 16
	// defaultSubKeys is how many it has where its rule says nothing.
	defaultSubKeys = 4

	equalLoad     = 0.1 // of the mean load: members that differ by less count as equally loaded
	maxCandidates = 64
	triesPerPoint = 64 // suffixes tried for each unit of weight on the ring: one is missed in e^64
)

// placeSubKeys puts n sub-keys of an owner string on n distinct members, or on all when there are fewer. The members are the
// least loaded, by load for each unit of weight, whatever load counts; a member without load has 0. Among those that
// differ by less than a tenth of the mean load, consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam,
// SODA 2018) picks, with the bound of one sub-key a member, so that many hot keys do not all choose the same members. The
// owner of the key itself takes one only when there are not enough others.
//
// The sub-key of a member is the first of owner#0, owner#1, ... that the ring puts there; a member for which none is found
// is left out. hash is Envoy's. The result depends on the arguments alone.
func placeSubKeys(r *ring.Ring, hash func(string) uint64, owner string, n int, load map[ring.ID]float64) []SubKey {
	n = min(n, r.Len(), MaxSubKeys)
	if n <= 0 {
		return nil
	}
	self := r.At(r.Owner(hash(owner))).ID
	members := pick(r, self, owner, min(n, r.Len()-1), load)
	if len(members) < n {
		members = append(members, self)
	}
	return suffixes(r, hash, owner, members)
}

// keepOrPlace keeps a placement while its members are on the ring and nothing is missing: where a change of the ring gave a
// sub-key to somebody else, another suffix is looked for. Otherwise it places anew. had is not changed.
func keepOrPlace(had []SubKey, r *ring.Ring, hash func(string) uint64, owner string, n int, load map[ring.ID]float64) []SubKey {
	if len(had) == 0 || len(had) != min(n, r.Len(), MaxSubKeys) {
		return placeSubKeys(r, hash, owner, n, load)
	}
	members, stray := make([]ring.ID, 0, len(had)), false
	for _, s := range had {
		if r.Index(s.Member) < 0 {
			return placeSubKeys(r, hash, owner, n, load)
		}
		members = append(members, s.Member)
		stray = stray || r.At(r.Owner(hash(s.Key))).ID != s.Member
	}
	if !stray {
		return had
	}
	return suffixes(r, hash, owner, members)
}

// candidate is a member that may take a sub-key.
type candidate struct {
	id    ring.ID
	load  float64 // for each unit of weight
	order uint64  // of this key
}

// String is the member's name on the circle.
func (c candidate) String() string { return string(c.id) }

// pick chooses n members other than self; so many there must be.
func pick(r *ring.Ring, self ring.ID, owner string, n int, load map[ring.ID]float64) []ring.ID {
	if n == 0 {
		return nil
	}
	var all []candidate
	sum := 0.0
	for i := range r.Len() {
		if m := r.At(i); m.ID != self {
			c := candidate{m.ID, max(load[m.ID], 0) / float64(m.Weight), circle(owner).Sum64([]byte(m.ID))}
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

// circle hashes the points of one key's own circle of members. It is not Envoy's ring.
type circle string

// Sum64 hashes b for this circle.
func (c circle) Sum64(b []byte) uint64 { return ring.Hash(string(c) + "\x00" + string(b)) }

// bounded chooses n of equally loaded candidates: each sub-key goes to the next member on the circle that has none yet.
func bounded(from []candidate, owner string, n int) []ring.ID {
	slices.SortFunc(from, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.order, b.order), cmp.Compare(a.id, b.id))
	})
	from = from[:min(len(from), maxCandidates)]
	members := make([]consistent.Member, len(from))
	for i, c := range from {
		members[i] = c
	}
	// As many partitions as members and load 1 make the bound one partition a member. Two points a member are enough
	// for it, as the library looks at all points but one for a free member, and no two members share one, as they
	// could with numbers of two digits: a point is a name and a number.
	c := consistent.New(members, consistent.Config{
		Hasher: circle(owner), PartitionCount: len(from), ReplicationFactor: 2, Load: 1,
	})
	picked := make([]ring.ID, n)
	for i := range picked {
		picked[i] = ring.ID(c.GetPartitionOwner(i).String())
	}
	return picked
}

// suffixes finds each member's sub-key, in the order of the members.
func suffixes(r *ring.Ring, hash func(string) uint64, owner string, members []ring.ID) []SubKey {
	keys := make([]SubKey, len(members))
	missing := len(members)
	for i := uint64(0); missing > 0 && i < triesPerPoint*r.Weight(); i++ {
		key := subKey(owner, i)
		m := slices.Index(members, r.At(r.Owner(hash(key))).ID)
		if m >= 0 && keys[m].Key == "" {
			keys[m] = SubKey{key, members[m]}
			missing--
		}
	}
	return slices.DeleteFunc(keys, func(s SubKey) bool { return s.Key == "" })
}

// subKey is the i-th sub-key of an owner string.
func subKey(owner string, i uint64) string { return owner + "#" + strconv.FormatUint(i, 10) }
