package federation

import (
	"math"
	"math/bits"
	"slices"
)

// transition divides limits between the regions of the newest of several layouts, of which regions may still use the others.
type transition struct {
	parts   []layoutParts // the newest layout's first
	regions [][]int       // of all regions in any of them, the positions in each; -1: it is not in that layout
	own     int           // in regions; -1: the region is not in the newest layout
}

// layoutParts has the weights of a layout.
type layoutParts struct {
	weights []uint32
	ranks   []uint32 // how many of the weights before are above 0
	sum     uint64
}

func newTransition(region string, layouts []*Layout) transition {
	t := transition{own: -1}
	var names []string
	for _, l := range layouts {
		p := layoutParts{weights: l.Weights()}
		rank := uint32(0)
		for i, w := range p.weights {
			p.sum += uint64(w)
			p.ranks = append(p.ranks, rank)
			if w > 0 {
				rank++
			}
			if !slices.Contains(names, l.Regions[i].Name) {
				names = append(names, l.Regions[i].Name)
			}
		}
		t.parts = append(t.parts, p)
	}
	for i, name := range names {
		var at []int
		for _, l := range layouts {
			at = append(at, l.Index(name))
		}
		t.regions = append(t.regions, at)
		if name == region && at[0] >= 0 {
			t.own = i
		}
	}
	return t
}

// budget divides n, of whose slices the given percentage are floors. A region that is not in the newest layout has nothing.
func (t *transition) budget(n uint32, percent uint8) (b Budget) {
	if t.own < 0 {
		return b
	}
	var rests [maxLayouts]uint32
	for j := range t.parts {
		rests[j%maxLayouts] = t.parts[j].rest(n)
	}
	b.Pool = n
	for i, at := range t.regions {
		least, most := uint32(math.MaxUint32), uint32(0)
		for j := range t.parts {
			floor := uint32(0)
			if at[j] >= 0 {
				slice := t.parts[j].slice(n, at[j], rests[j%maxLayouts])
				floor = uint32(uint64(slice) * uint64(min(percent, 100)) / 100)
				if i == t.own && j == 0 {
					b.Slice = slice
				}
			}
			least, most = min(least, floor), max(most, floor)
		}
		b.Pool -= min(b.Pool, most)
		if i == t.own {
			b.Floor = least
		}
	}
	return b
}

// rest returns what is left of n after the parts of all weights are rounded down.
func (p *layoutParts) rest(n uint32) uint32 {
	rest := n
	for i := range p.weights {
		rest -= p.part(n, i)
	}
	return rest
}

// part returns the part of weight i of n, rounded down.
func (p *layoutParts) part(n uint32, i int) uint32 {
	hi, lo := bits.Mul64(uint64(n), uint64(p.weights[i]))
	q, _ := bits.Div64(hi, lo, p.sum)
	return uint32(q)
}

// slice returns what Split gives to part i of n.
func (p *layoutParts) slice(n uint32, i int, rest uint32) uint32 {
	slice := p.part(n, i)
	if p.weights[i] > 0 && p.ranks[i] < rest {
		slice++
	}
	return slice
}
