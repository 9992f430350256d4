// Package ring maps keys to members exactly as Envoy's RING_HASH load balancer does, and says what moves between two
// rings.
package ring

import (
	"cmp"
	"slices"
	"sort"
	"strconv"

	"github.com/cespare/xxhash/v2"
)

// PointsPerWeight is K, the points a member of weight 1 has on the ring.
const PointsPerWeight = 1024

// ID is a member's stable name: its hash_key on Envoy's ring, at most 128 bytes.
type ID string

// Member is one place on the ring.
type Member struct {
	ID     ID
	Inst   uint64 // instance: new at every boot of the member
	Ver    uint64 // rises each time the instance joins anew
	Weight uint32 // 0 counts as 1
}

// Ring is an immutable map from hashes to members, safe for concurrent use.
type Ring struct {
	members     []Member // sorted by ID
	points      []point  // sorted by hash
	fingerprint uint64
}

type point struct {
	hash   uint64
	member int32
}

// Hash is Envoy's hash of one header value, and so of an owner string.
func Hash(s string) uint64 { return xxhash.Sum64String(s) }

// New builds the fixed-points ring of members, in any order.
func New(members []Member) *Ring {
	r := &Ring{members: slices.Clone(members)}
	slices.SortFunc(r.members, func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })
	for i, m := range r.members {
		for p := range PointsPerWeight * max(1, int(m.Weight)) {
			r.points = append(r.points, point{xxhash.Sum64String(string(m.ID) + "_" + strconv.Itoa(p)), int32(i)})
		}
	}
	slices.SortFunc(r.points, func(a, b point) int { return cmp.Compare(a.hash, b.hash) })
	return r
}

// Len is the number of members.
func (r *Ring) Len() int { return len(r.members) }

// At is the i-th member in the order of IDs.
func (r *Ring) At(i int) Member { return r.members[i] }

// Index finds a member by its ID; -1 if it is not on the ring.
func (r *Ring) Index(id ID) int {
	i, ok := slices.BinarySearchFunc(r.members, id, func(m Member, id ID) int { return cmp.Compare(m.ID, id) })
	if !ok {
		return -1
	}
	return i
}

// Owner is the index of the member that owns hash h; -1 on an empty ring.
func (r *Ring) Owner(h uint64) int {
	if len(r.points) == 0 {
		return -1
	}
	i := sort.Search(len(r.points), func(i int) bool { return r.points[i].hash >= h })
	if i == len(r.points) {
		i = 0
	}
	return int(r.points[i].member)
}

// Fingerprint tells two rings apart: it covers every member's (ID, Inst, Ver, Weight).
func (r *Ring) Fingerprint() uint64 { return r.fingerprint }
