// Package ring maps keys to members exactly as Envoy's RING_HASH load balancer does, and computes what moves between
// two rings. Each member has many points on a circle of hashes. The owner of a key is the member of the first point at
// or after the key's hash.
package ring

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// PointsPerWeight is K, the number of points of a member with weight 1. It is a power of two, so that Envoy's
// arithmetic with doubles gives every member exactly K points for each unit of weight.
const PointsPerWeight = 1024

// ID is the stable name of a member: its hash_key in Envoy's ring, with at most MaxID bytes.
type ID string

// Member is one member of a ring.
type Member struct {
	ID          ID
	BootID      uint64 // differs between two boots of a member
	Incarnation uint64 // increases each time a boot joins again
	Weight      uint32 // 0 means 1; limited to MaxCapacity-1
	Host        string // what Envoy hashes for this member, on a ring with Envoy's parameters; empty: the ID
	Zone        string // the zone in which this boot runs; empty: unknown. It has no effect on who owns a key
}

// Ring is an immutable map from hashes to members, safe for concurrent use. The zero value has no members.
type Ring struct {
	parameters  Parameters
	members     []Member // sorted by ID, with effective weights
	table       table
	layout      *layout // the layout of table; nil without members
	fingerprint uint64
	zones       bool // a member's zone is known
}

// layout contains the points of a set of members. Rings that lack a few of those members share its hashes and its
// index.
type layout struct {
	parameters Parameters
	members    []Member // canonical
	points     []int    // of each member
	table      table
}

// maxUnusedFraction is the largest fraction of a layout's points, as 1/n, that may belong to members that a ring lacks.
const maxUnusedFraction = 4

// New returns Keyward's own ring of members, given in any order. Each member has PointsPerWeight points for each unit of
// weight. A join therefore moves keys only to the joining member, and a leave only from the leaving one. If several
// members have the same ID, only the one with the highest (BootID, Incarnation) is used; Validate rejects them.
func New(members []Member) *Ring { return Parameters{}.New(members) }

// New returns the ring of members, given in any order. With Envoy's parameters, a join or leave may also move keys
// between other members.
func (p Parameters) New(members []Member) *Ring { return p.Next(&Ring{}, members, nil) }

// Next returns p.New(members), but shares most of its memory with r if possible: after members have left, returned or
// restarted, or if a joining member was in soon when the layout was made. A ring with a new layout reserves points for
// the members in soon. With Envoy's parameters, only a ring of the same hosts and weights shares memory.
func (p Parameters) Next(r *Ring, members, soon []Member) *Ring {
	wanted := p.canonical(members)
	l, places := r.layout, r.layout.places(p, wanted)
	if places == nil && !p.Envoy {
		all := slices.DeleteFunc(slices.Clone(soon), func(m Member) bool { return index(wanted, m.ID) >= 0 })
		l = p.newLayout(p.canonical(append(all, wanted...)))
		places = l.places(p, wanted)
	}
	if places == nil {
		l = p.newLayout(wanted)
		places = l.places(p, wanted)
	}
	t := l.table.restrict(places, len(wanted))
	zones := slices.ContainsFunc(wanted, func(m Member) bool { return m.Zone != "" })
	return &Ring{
		parameters: p, members: wanted, table: t, layout: l, fingerprint: p.fingerprint(wanted), zones: zones,
	}
}

func (p Parameters) newLayout(members []Member) *layout {
	counts, total := p.points(members), 0
	for _, n := range counts {
		total += n
	}
	points := make([]point, 0, total)
	name := make([]byte, 0, 2*MaxID)
	for i, m := range members {
		name = append(append(name[:0], p.hashKey(m)...), '_')
		points = p.Hash.appendPoints(points, name, int32(i), uint64(counts[i]))
	}
	return &layout{parameters: p, members: members, points: counts, table: newTable(points, len(members))}
}

// places returns, for each member of the layout, its index in wanted, or -1 if it is not wanted. It returns nil if the
// layout lacks a wanted member, has other parameters, or has too many points of other members.
func (l *layout) places(s Parameters, wanted []Member) []int32 {
	if l == nil || l.parameters != s {
		return nil
	}
	places, found, lacking := make([]int32, len(l.members)), 0, 0
	for i, m := range l.members {
		if at := index(wanted, m.ID); at >= 0 && wanted[at].Weight == m.Weight && s.hashKey(wanted[at]) == s.hashKey(m) {
			places[i] = int32(at)
			found++
		} else {
			places[i] = -1
			lacking += l.points[i]
		}
	}
	if found < len(wanted) || lacking > len(l.table.hashes)/maxUnusedFraction || s.Envoy && lacking > 0 {
		return nil
	}
	return places
}

// canonical returns members sorted by ID, without duplicates, with effective weights, and without what p does not use.
func (p Parameters) canonical(members []Member) []Member {
	out := slices.Clone(members)
	for i := range out {
		out[i].Weight = min(max(out[i].Weight, 1), MaxCapacity-1)
		if !p.Envoy {
			out[i].Host = ""
		}
	}
	slices.SortFunc(out, func(a, b Member) int {
		return cmp.Or(strings.Compare(string(a.ID), string(b.ID)),
			cmp.Compare(b.BootID, a.BootID), cmp.Compare(b.Incarnation, a.Incarnation), cmp.Compare(b.Weight, a.Weight))
	})
	return slices.CompactFunc(out, func(a, b Member) bool { return a.ID == b.ID })
}

// fingerprint hashes canonical members. IDs are prefixed with their length, so different lists have different
// encodings. The fingerprint of Keyward's own ring never changes between versions.
func (p Parameters) fingerprint(members []Member) uint64 {
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
		if p.Envoy {
			b = binary.LittleEndian.AppendUint64(b, uint64(len(m.Host)))
			b = append(b, m.Host...)
		}
	}
	if p.Envoy {
		b = append(append(b, "keyward/ring/envoy/1"...), p.String()...)
	}
	return xxhash.Sum64(b)
}

// Parameters returns the parameters of the ring.
func (r *Ring) Parameters() Parameters { return r.parameters }

// Len returns the number of members.
func (r *Ring) Len() int { return len(r.members) }

// At returns the i-th member in the order of IDs.
func (r *Ring) At(i int) Member { return r.members[i] }

// Index returns the index of a member by its ID, or -1.
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

// Weight returns the sum of the members' weights. In Envoy, the void locality has the rest of the capacity.
func (r *Ring) Weight() uint64 {
	var sum uint64
	for _, m := range r.members {
		sum += uint64(m.Weight)
	}
	return sum
}

// Owner returns the index of the member that owns hash h, or -1 if the ring has no members.
func (r *Ring) Owner(h uint64) int { return r.table.owner(h) }

// Successor returns the index of the next distinct member on the ring after the owner of h: the member that would own h
// if the owner left, and to which Envoy sends a retry. It is -1 if there are fewer than two members.
func (r *Ring) Successor(h uint64) int { return r.table.successor(h) }

// ZoneReplica returns the index of the first member after the owner of h whose zone differs from the owner's: the member
// that would own h if the owner's zone failed. It is -1 if that is the successor, if no member is known to be in another
// zone than the owner, or if the owner's zone is unknown.
func (r *Ring) ZoneReplica(h uint64) int {
	if !r.zones {
		return -1
	}
	zone, rank, found := "", 0, -1
	r.table.walk(h, func(i int) bool {
		switch z := r.members[i].Zone; {
		case rank == 0:
			zone = z
		case z != "" && z != zone:
			found = i
		}
		rank++
		return zone != "" && found < 0
	})
	if rank <= 2 {
		return -1
	}
	return found
}

// Order appends all members to dst in their ring order from h on: the owner, its successor, and so on. It does not
// allocate if dst has the capacity.
func (r *Ring) Order(h uint64, dst []int) []int {
	r.table.walk(h, func(i int) bool {
		dst = append(dst, i)
		return true
	})
	return dst
}

// Rank returns the position of member i in Order(h), 0 for the owner and 1 for the successor, or -1 if there is no such
// member.
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

// Fingerprint returns the ring version. It covers ID, BootID, Incarnation and Weight of every member, but not their
// order. With Envoy's parameters, it covers these and the hosts, too. It is 0 for a ring without members.
func (r *Ring) Fingerprint() uint64 { return r.fingerprint }
