// Package ring maps keys to members exactly as Envoy's RING_HASH load balancer does, and says what moves between two
// rings. Members become points, points become one sorted table, and a key's hash falls to the first point at or after it.
package ring

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// PointsPerWeight is K, the points a member of weight 1 has on the ring. It is a power of two, so that Envoy's
// arithmetic in doubles gives every member exactly K points for each unit of weight.
const PointsPerWeight = 1024

// ID is a member's stable name: its hash_key on Envoy's ring, at most MaxID bytes.
type ID string

// Member is one place on the ring.
type Member struct {
	ID          ID
	BootID      uint64 // instance: new at every boot of the member
	Incarnation uint64 // rises each time the instance joins anew
	Weight      uint32 // 0 counts as 1; above MaxCapacity-1 counts as that
}

// points is the number of points the member has.
func (m Member) points() int { return PointsPerWeight * int(m.Weight) }

// Ring is an immutable map from hashes to members, safe for concurrent use. The zero value is a ring without members.
type Ring struct {
	members     []Member // sorted by ID, weights as they count
	table       table
	layout      *layout // what table was made from; nil: nothing
	fingerprint uint64
}

// layout is the points of some members, of whom rings may lack a few: those rings share its hashes and its index.
type layout struct {
	members []Member // canonical
	table   table
}

// maxUnusedFraction is the part of a layout that may be points of members that a ring lacks: one in so many.
const maxUnusedFraction = 4

// New builds the fixed-points ring of members, in any order: each has PointsPerWeight points for each unit of weight,
// so that a join moves keys to the joiner alone and a leave from the leaver alone. Of members with the same ID only the
// one with the highest (Inst, Ver) is placed; Validate refuses them.
func New(members []Member) *Ring { return (&Ring{}).Next(members, nil) }

// Next is New(members), but shares most of its memory with r where it can: that is when members have left, come back or been
// renewed, or come onto the ring as r's maker was told that they soon would. A ring that is made from no other has room for
// those that soon will.
func (r *Ring) Next(members, soon []Member) *Ring {
	wanted := canonical(members)
	l, seats := r.layout, r.layout.places(wanted)
	if seats == nil {
		all := slices.DeleteFunc(slices.Clone(soon), func(m Member) bool { return index(wanted, m.ID) >= 0 })
		l = newLayout(canonical(append(all, wanted...)))
		if seats = l.places(wanted); seats == nil {
			l = newLayout(wanted)
			seats = l.places(wanted)
		}
	}
	return &Ring{members: wanted, table: l.table.restrict(seats, len(wanted)), layout: l, fingerprint: fingerprint(wanted)}
}

func newLayout(members []Member) *layout {
	total := 0
	for _, m := range members {
		total += m.points()
	}
	points := make([]point, 0, total)
	name := make([]byte, 0, 2*MaxID)
	for i, m := range members {
		name = append(append(name[:0], m.ID...), '_')
		points = appendPoints(points, name, int32(i), uint64(m.points()), xxhash.Sum64)
	}
	return &layout{members: members, table: newTable(points, len(members))}
}

// places gives for each member of the layout its index in wanted, -1: it is not wanted; nil when some who are wanted have no
// points here, or too many others have.
func (l *layout) places(wanted []Member) []int32 {
	if l == nil {
		return nil
	}
	seats, found, lacking := make([]int32, len(l.members)), 0, 0
	for i, m := range l.members {
		if at := index(wanted, m.ID); at >= 0 && wanted[at].Weight == m.Weight {
			seats[i] = int32(at)
			found++
		} else {
			seats[i] = -1
			lacking += m.points()
		}
	}
	if found < len(wanted) || lacking > len(l.table.hashes)/maxUnusedFraction {
		return nil
	}
	return seats
}

// canonical sorts members by ID, keeps one of each, and makes the weights what they count for.
func canonical(members []Member) []Member {
	out := slices.Clone(members)
	for i := range out {
		out[i].Weight = min(max(out[i].Weight, 1), MaxCapacity-1)
	}
	slices.SortFunc(out, func(a, b Member) int {
		return cmp.Or(strings.Compare(string(a.ID), string(b.ID)),
			cmp.Compare(b.BootID, a.BootID), cmp.Compare(b.Incarnation, a.Incarnation), cmp.Compare(b.Weight, a.Weight))
	})
	return slices.CompactFunc(out, func(a, b Member) bool { return a.ID == b.ID })
}

// fingerprint digests canonical members; IDs are length-prefixed, so no two lists of members give the same bytes.
func fingerprint(members []Member) uint64 {
	if len(members) == 0 {
		return 0
	}
	b := []byte("keyward/ring/1")
	for _, m := range members {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(m.ID)))
		b = append(b, m.ID...)
		b = binary.LittleEndian.AppendUint64(b, m.BootID)
		b = binary.LittleEndian.AppendUint64(b, m.Incarnation)
		b = binary.LittleEndian.AppendUint32(b, m.Weight)
	}
	return xxhash.Sum64(b)
}

// Len is the number of members.
func (r *Ring) Len() int { return len(r.members) }

// At is the i-th member in the order of IDs.
func (r *Ring) At(i int) Member { return r.members[i] }

// Index finds a member by its ID; -1 if it is not on the ring.
func (r *Ring) Index(id ID) int { return index(r.members, id) }

func index(members []Member, id ID) int {
	i, ok := slices.BinarySearchFunc(members, id, func(m Member, id ID) int {
		return strings.Compare(string(m.ID), string(id))
	})
	if !ok {
		return -1
	}
	return i
}

// Weight is the sum of the members' weights. On Envoy's side the void locality has what is left of the capacity.
func (r *Ring) Weight() uint64 {
	var sum uint64
	for _, m := range r.members {
		sum += uint64(m.Weight)
	}
	return sum
}

// Owner is the index of the member that owns hash h; -1 on an empty ring.
func (r *Ring) Owner(h uint64) int { return r.table.owner(h) }

// Successor is the index of the member that would own h if its owner left, and the one that Envoy's retry goes to: the next
// distinct member on the ring. It is -1 when there are fewer than two members.
func (r *Ring) Successor(h uint64) int { return r.table.successor(h) }

// Order appends all members to dst in the order in which they inherit h: the owner, its heir, and so on. It
// allocates nothing when dst has the capacity.
func (r *Ring) Order(h uint64, dst []int) []int {
	r.table.walk(h, func(i int) bool {
		dst = append(dst, i)
		return true
	})
	return dst
}

// Rank is the place of member i in Order(h): 0 for the owner, 1 for the heir; -1 if there is no such member.
func (r *Ring) Rank(h uint64, i int) int {
	rank := 0
	found := r.table.walk(h, func(m int) bool {
		if m == i {
			return false
		}
		rank++
		return true
	})
	if !found {
		return -1
	}
	return rank
}

// Fingerprint tells two rings apart: it covers every member's (ID, Inst, Ver, Weight), and not their order. It is 0 for
// a ring without members.
func (r *Ring) Fingerprint() uint64 { return r.fingerprint }
