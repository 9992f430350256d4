package ringcheck

import (
	"cmp"
	"slices"
	"sort"
	"strconv"
)

// point is one place on the circle of hashes.
type point struct {
	hash uint64
	host int32 // index of a host
}

// circle is the points of one priority, sorted by hash. It is the plainest form of a ring: package ring has its own,
// faster one, and tests compare the two.
type circle []point

// newCircle sorts points. Points of equal hash keep their order, so the first of them owns the keys before them.
func newCircle(points []point) circle {
	slices.SortStableFunc(points, func(a, b point) int { return cmp.Compare(a.hash, b.hash) })
	return points
}

// appendPoints appends n points of a host: the hashes of its hash key followed by _0, _1, _2, ... in decimal.
func (c *EnvoyCluster) appendPoints(points []point, host int, n uint64) []point {
	name := append([]byte(c.Hosts[host].hashKey(c.UseHostname)), '_')
	end := len(name)
	for i := range n {
		name = strconv.AppendUint(name[:end], i, 10)
		points = append(points, point{c.HashFunction.Sum(name), int32(host)})
	}
	return points
}

// find returns the index of the first point at or after h, wrapping around. The circle must not be empty.
func (c circle) find(h uint64) int {
	return sort.Search(len(c), func(i int) bool { return c[i].hash >= h }) % len(c)
}

// owner returns the host that owns h, or -1 if the circle is empty.
func (c circle) owner(h uint64) int {
	if len(c) == 0 {
		return -1
	}
	return int(c[c.find(h)].host)
}

// successor returns the next distinct host after the owner of h, or -1 if there is none.
func (c circle) successor(h uint64) int {
	if len(c) == 0 {
		return -1
	}
	start := c.find(h)
	for i := range c {
		if host := c[(start+i)%len(c)].host; host != c[start].host {
			return int(host)
		}
	}
	return -1
}
