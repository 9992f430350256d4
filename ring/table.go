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
	owner int32 // index of a member
}

// table is a sorted circle of points with a first-level index. Hashes are uniform, so the top bits of a hash lead to
// within a point or two of its position. A process keeps several rings, so points are stored in two arrays without
// padding: 10 bytes for each, plus 2 to 4 for the index.
type table struct {
	hashes []uint64 // sorted
	near   []uint16 // the owner of each point; nil if owners exceed 16 bits
	far    []uint32 // used instead of near in that case
	index  []uint32 // index[t] is the first point whose hash has top bits >= t
	shift  uint     // 64 - the number of top bits
	owners int      // owners are 0..owners-1
}

// at returns the owner of point i.
func (t *table) at(i int) int {
	if t.near != nil {
		return int(t.near[i])
	}
	return int(t.far[i])
}

// setOwner sets the owner of point i.
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

// wide is the number of points with the same top bits above which linear sorting and searching are too slow. Uniform
// hashes never reach it.
const wide = 24

// appendPoints appends n points of one owner: the hashes of name followed by 0, 1, 2, ... in decimal.
func (f HashFunction) appendPoints(points []point, name []byte, owner int32, n uint64) []point {
	end := len(name)
	name = slices.Grow(name, 20) // the digits of a uint64
	for i := range n {
		name = strconv.AppendUint(name[:end], i, 10)
		points = append(points, point{f.Sum(name), owner})
	}
	return points
}

// newTable sorts points by counting tnext top bits; the counts become the index. Points with equal hashes keep tnext
// order, so the first one owns the keys before them.
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
	// Filling a bucket moves its start to its end, which is the start of the next one. Shift the index back afterwards.
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

// restrict returns the table of the owners with an index in places, which has the given number of owners. Points of
// other owners go to the owner of the next remaining point. Everything else is shared with t.
func (t *table) restrict(places []int32, owners int) table {
	out := *t
	out.owners = owners
	if owners == t.owners || owners == 0 { // places are in the order of t's owners
		return out
	}
	out.near, out.far = slices.Clone(t.near), slices.Clone(t.far)
	first := 0
	for places[t.at(first)] < 0 {
		first++
	}
	next := places[t.at(first)]
	for i := len(t.hashes) - 1; i >= 0; i-- {
		if s := places[t.at(i)]; s >= 0 {
			next = s
		}
		out.setOwner(i, int(next))
	}
	return out
}

// sort sorts points lo to hi-1. Points with equal hashes keep tnext order.
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

// find returns the index of the first point at or after h, wrapping around. The table must not be empty.
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

// walk calls visit once for each owner, in the order of tnext first points from h on, until visit returns false. It
// reports whether visit returned false.
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

// rangesFrom returns all points from start on as two ranges: start to the end, and the beginning to start.
func (t *table) rangesFrom(start int) [2][2]int { return [2][2]int{{start, len(t.hashes)}, {0, start}} }
