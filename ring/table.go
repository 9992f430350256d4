package ring

import (
	"cmp"
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
// a point or two of its place.
type table struct {
	points []point  // sorted by hash
	index  []uint32 // index[t] = the first point whose hash has top bits >= t
	shift  uint     // 64 - the number of top bits
	owners int      // owners are 0..owners-1
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
	width := bits.Len(uint(len(unsorted) - 1))
	t := table{
		points: make([]point, len(unsorted)),
		index:  make([]uint32, 1<<width+1),
		shift:  uint(64 - width),
		owners: owners,
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
		t.points[*at] = p
		*at++
	}
	copy(t.index[1:], t.index)
	t.index[0] = 0
	for i := range len(t.index) - 1 {
		sortPoints(t.points[t.index[i]:t.index[i+1]])
	}
	return t
}

func sortPoints(ps []point) {
	if len(ps) > wide {
		slices.SortStableFunc(ps, func(a, b point) int { return cmp.Compare(a.hash, b.hash) })
		return
	}
	for i := 1; i < len(ps); i++ {
		p, j := ps[i], i
		for ; j > 0 && ps[j-1].hash > p.hash; j-- {
			ps[j] = ps[j-1]
		}
		ps[j] = p
	}
}

// find is the place of the first point at or after h, going round; the table must not be empty.
func (t *table) find(h uint64) int {
	top := h >> t.shift
	lo, hi := int(t.index[top]), int(t.index[top+1])
	if hi-lo > wide {
		lo += sort.Search(hi-lo, func(i int) bool { return t.points[lo+i].hash >= h })
	} else {
		for lo < hi && t.points[lo].hash < h {
			lo++
		}
	}
	if lo == len(t.points) {
		return 0
	}
	return lo
}

func (t *table) owner(h uint64) int {
	if len(t.points) == 0 {
		return -1
	}
	return int(t.points[t.find(h)].owner)
}

func (t *table) heir(h uint64) int {
	if t.owners < 2 || len(t.points) == 0 {
		return -1
	}
	start := t.find(h)
	own := t.points[start].owner
	for _, ps := range [2][]point{t.points[start:], t.points[:start]} {
		for i := range ps {
			if ps[i].owner != own {
				return int(ps[i].owner)
			}
		}
	}
	return -1
}

// walk calls visit for each owner once, in the order of their first points from h on, until visit returns false; it says
// whether visit did.
func (t *table) walk(h uint64, visit func(owner int32) bool) bool {
	if len(t.points) == 0 {
		return false
	}
	var fixed [MaxCapacity / 64]uint64
	seen := fixed[:]
	if t.owners > MaxCapacity {
		seen = make([]uint64, (t.owners+63)/64)
	}
	start, left := t.find(h), t.owners
	for _, ps := range [2][]point{t.points[start:], t.points[:start]} {
		for i := range ps {
			word, bit := &seen[ps[i].owner>>6], uint64(1)<<(ps[i].owner&63)
			if *word&bit != 0 {
				continue
			}
			*word |= bit
			if !visit(ps[i].owner) {
				return true
			}
			if left--; left == 0 {
				return false
			}
		}
	}
	return false
}
