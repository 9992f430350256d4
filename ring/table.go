package ring

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"sort"
	"strconv"
)

// point is one place on the circle of hashes.
type point struct {
	hash  uint64
	owner int32 // index of a member or host
}

// table is a sorted circle of points with a first-level index: hashes are uniform, so the top bits of one lead to within
// a point or two of its place. A ring remembers several, so points are kept in two arrays, without padding: 10 bytes each,
// and 2 to 4 of the index.
type table struct {
	hashes []uint64 // sorted
	near   []uint16 // the point's owner; nil with more owners than that can tell apart
	far    []uint32 // the same, instead of near
	index  []uint32 // index[t] = the first point whose hash has top bits >= t
	shift  uint     // 64 - the number of top bits
	owners int      // owners are 0..owners-1
}

// at is the owner of point i.
func (t *table) at(i int) int {
	if t.near != nil {
		return int(t.near[i])
	}
	return int(t.far[i])
}

// setOwner makes point i owner's.
func (t *table) setOwner(i, owner int) {
	if t.near != nil {
		t.near[i] = uint16(owner)
	} else {
		t.far[i] = uint32(owner)
	}
}

func (t *table) set(i int, p point) {
	t.hashes[i] = p.hash
	t.setOwner(i, int(p.owner))
}

// wide is the number of points with the same top bits above which sorting and searching them one by one does not pay.
// With hashes this happens only where several hosts share a hash key.
const wide = 24

// appendPoints appends n points of one owner: the hashes of name followed by 0, 1, 2, ... in decimal.
func appendPoints(points []point, name []byte, owner int32, n uint64, hash func([]byte) uint64) []point {
	end := len(name)
	name = slices.Grow(name, 20) // the digits of a uint64
	for i := range n {
		name = strconv.AppendUint(name[:end], i, 10)
		points = append(points, point{hash(name), owner})
	}
	return points
}

// newTable sorts points by counting their top bits: the counts are the index. Points of equal hash keep their order, so a
// key falls to the one that came first.
func newTable(unsorted []point, owners int) table {
	if len(unsorted) == 0 {
		return table{owners: owners}
	}
	width := max(bits.Len(uint(len(unsorted)-1))-1, 0) // one or two points for each value of the top bits
	t := table{
		hashes: make([]uint64, len(unsorted)),
		index:  make([]uint32, 1<<width+1),
		shift:  uint(64 - width),
		owners: owners,
	}
	if owners <= math.MaxUint16+1 {
		t.near = make([]uint16, len(unsorted))
	} else {
		t.far = make([]uint32, len(unsorted))
	}
	for _, p := range unsorted {
		t.index[p.hash>>t.shift+1]++
	}
	for i := 1; i < len(t.index); i++ {
		t.index[i] += t.index[i-1]
	}
	// Filling a bucket moves its start to its end, which is the next one's start: shift the index back afterwards.
	for _, p := range unsorted {
		at := &t.index[p.hash>>t.shift]
		t.set(int(*at), p)
		*at++
	}
	copy(t.index[1:], t.index)
	t.index[0] = 0
	for i := range len(t.index) - 1 {
		t.sort(int(t.index[i]), int(t.index[i+1]))
	}
	return t
}

// restrict is the table of the owners that seats gives an index, of so many: points of others go to the owner of the next point
// that stays, who inherits their hashes. It shares all else with t.
func (t *table) restrict(seats []int32, owners int) table {
	out := *t
	out.owners = owners
	if owners == t.owners || owners == 0 { // seats are in the order of t's owners
		return out
	}
	out.near, out.far = slices.Clone(t.near), slices.Clone(t.far)
	first := 0
	for seats[t.at(first)] < 0 {
		first++
	}
	heir := seats[t.at(first)]
	for i := len(t.hashes) - 1; i >= 0; i-- {
		if s := seats[t.at(i)]; s >= 0 {
			heir = s
		}
		out.setOwner(i, int(heir))
	}
	return out
}

// sort sorts points lo to hi-1. Those of equal hash keep their order.
func (t *table) sort(lo, hi int) {
	if hi-lo > wide {
		ps := make([]point, 0, hi-lo)
		for i := lo; i < hi; i++ {
			ps = append(ps, point{t.hashes[i], int32(t.at(i))})
		}
		slices.SortStableFunc(ps, func(a, b point) int { return cmp.Compare(a.hash, b.hash) })
		for i, p := range ps {
			t.set(lo+i, p)
		}
		return
	}
	for i := lo + 1; i < hi; i++ {
		if t.hashes[i-1] <= t.hashes[i] {
			continue
		}
		p, j := point{t.hashes[i], int32(t.at(i))}, i
		for ; j > lo && t.hashes[j-1] > p.hash; j-- {
			t.set(j, point{t.hashes[j-1], int32(t.at(j - 1))})
		}
		t.set(j, p)
	}
}

// find is the place of the first point at or after h, going round; the table must not be empty.
func (t *table) find(h uint64) int {
	top := h >> t.shift
	lo, hi := int(t.index[top]), int(t.index[top+1])
	if hi-lo > wide {
		lo += sort.Search(hi-lo, func(i int) bool { return t.hashes[lo+i] >= h })
	} else {
		for lo < hi && t.hashes[lo] < h {
			lo++
		}
	}
	if lo == len(t.hashes) {
		return 0
	}
	return lo
}

func (t *table) owner(h uint64) int {
	if len(t.hashes) == 0 {
		return -1
	}
	return t.at(t.find(h))
}

func (t *table) successor(h uint64) int {
	if t.owners < 2 || len(t.hashes) == 0 {
		return -1
	}
	start := t.find(h)
	own := t.at(start)
	for _, arc := range t.rangesFrom(start) {
		for i := arc[0]; i < arc[1]; i++ {
			if o := t.at(i); o != own {
				return o
			}
		}
	}
	return -1
}

// walk calls visit for each owner once, in the order of their first points from h on, until visit returns false; it says
// whether visit did.
func (t *table) walk(h uint64, visit func(owner int) bool) bool {
	if len(t.hashes) == 0 {
		return false
	}
	var fixed [MaxCapacity / 64]uint64
	seen := fixed[:]
	if t.owners > MaxCapacity {
		seen = make([]uint64, (t.owners+63)/64)
	}
	left := t.owners
	for _, arc := range t.rangesFrom(t.find(h)) {
		for i := arc[0]; i < arc[1]; i++ {
			o := t.at(i)
			word, bit := &seen[o>>6], uint64(1)<<(o&63)
			if *word&bit != 0 {
				continue
			}
			*word |= bit
			if !visit(o) {
				return true
			}
			if left--; left == 0 {
				return false
			}
		}
	}
	return false
}

// rangesFrom is all points from start on, as two ranges: to the last one, and from the first one on.
func (t *table) rangesFrom(start int) [2][2]int { return [2][2]int{{start, len(t.hashes)}, {0, start}} }
