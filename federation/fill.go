package federation

import (
	"cmp"
	"math"
	"slices"
)

// pair is a tenant in a region, which takes part in the division of a window's limit. All numbers are hits.
type pair struct {
	tenant uint64  // 0: several tenants
	weight float64 // above 0
	rate   float64 // hits per second that it is offered
	got    float64 // admitted in the window
	need   float64 // got, and what it is expected to want in the rest of the window
	share  float64 // the result: what it may have of the window, from got to need
}

// edge is a level at which a pair begins or ceases to get more. A pair's level is its hits divided by its weight.
type edge struct{ level, weight float64 }

// fill divides capacity between pairs by weighted max-min fairness: it sets their shares to one level, but none below what
// the pair got, and none above what it needs. It returns what no pair needs.
func fill(capacity float64, ps []*pair) (surplus float64) {
	edges := make([]edge, 0, 2*len(ps))
	rest := capacity
	surplus = capacity
	for _, p := range ps {
		rest -= p.got
		surplus -= p.need
		if p.need > p.got {
			edges = append(edges, edge{p.got / p.weight, p.weight}, edge{p.need / p.weight, -p.weight})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Compare(a.level, b.level) })
	level, weight := 0.0, 0.0 // and the weight of the pairs that get more at that level
	for _, e := range edges {
		rise := (e.level - level) * weight
		if rise > rest {
			break
		}
		rest -= rise
		level, weight = e.level, max(0, weight+e.weight)
	}
	if rest > 0 && weight > 0 {
		level += rest / weight
	}
	for _, p := range ps {
		p.share = max(p.got, min(p.need, level*p.weight))
	}
	return max(0, surplus)
}

// splitWeights divides the weight of each tenant between its pairs by demand. A tenant in several regions then weighs as
// much as one in a single region, and the level of its pairs is that of the tenant.
func splitWeights(ps []*pair) {
	rates := make(map[uint64]float64, len(ps))
	for _, p := range ps {
		rates[p.tenant] += p.rate
	}
	for _, p := range ps {
		if all := rates[p.tenant]; p.tenant != 0 && all > 0 {
			p.weight = max(p.weight*p.rate/all, math.SmallestNonzeroFloat32)
		}
	}
}

// area is a region that takes part in the division.
type area struct {
	floor float64 // hits of a window that only this region can spend
	pairs []*pair
}

// maxFills bounds the work of divide. Each fill but the last finds regions whose floors are more than their shares.
const maxFills = 8

// divide divides a pool and the regions' floors between all pairs, as if they were pairs of one limit. Only what a region
// needs of its floor takes part, and it never gets less than that. divide returns what no pair needs.
func divide(pool float64, areas []area) (surplus float64) {
	free := make([]int, 0, len(areas)) // regions that get more than their floors
	for i := range areas {
		free = append(free, i)
	}
	for range maxFills {
		capacity, ps := pool, []*pair(nil)
		for _, i := range free {
			capacity += areas[i].used()
			ps = append(ps, areas[i].pairs...)
		}
		surplus = fill(max(0, capacity), ps)
		kept := slices.DeleteFunc(slices.Clone(free), func(i int) bool { return areas[i].share() < areas[i].used()*(1-1e-9) })
		if len(kept) == len(free) {
			break
		}
		free = kept
	}
	for i := range areas {
		if !slices.Contains(free, i) {
			fill(areas[i].used(), areas[i].pairs)
		}
	}
	return surplus
}

// used returns what the region needs of its floor.
func (a *area) used() float64 {
	need := 0.0
	for _, p := range a.pairs {
		need += p.need
	}
	return min(a.floor, need)
}

// share returns what the region's pairs get.
func (a *area) share() (sum float64) {
	for _, p := range a.pairs {
		sum += p.share
	}
	return sum
}
