package scale

import (
	"cmp"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"

	"github.com/keyward/keyward/ring"
)

// Way says who confirms an owner, so that it may decide: in the mesh everybody; a sample of k members costs less.
type Way uint8

// The ways.
const (
	Mesh   Way = iota // all members
	Own               // k members of each owner's own: those that follow it on the ring
	Common            // k members that are the same for all: those that follow one fixed hash, the witnesses
)

// SampleSize is k for n members: 2 x ceil(log2 n) + 1, or all of them where that is less.
func SampleSize(n int) int {
	if n < 2 {
		return n
	}
	return min(n, 2*bits.Len(uint(n-1))+1)
}

// Witnesses are the k members of r that follow one fixed hash, in order. A member more or less on the ring changes at most one
// of them.
func Witnesses(r *ring.Ring, k int) []int {
	return r.Order(ring.Hash("keyward witnesses"), nil)[:min(k, r.Len())]
}

// Cut is a cluster of N members that is divided in two, the smaller part having Minority of them at random.
type Cut struct {
	N, Minority int
	K, F        int // size of the sample, and how many confirmations an owner with the whole limit may lack; f = 1 from 3 on
	Way         Way
}

// size is the number of members whose confirmations are counted.
func (c Cut) size() int {
	if c.Way == Mesh {
		return c.N
	}
	return c.K
}

// right is what an owner with that many confirmations may admit by the policy share, as a part of the limit.
func (c Cut) right(confirmed int) float64 {
	if confirmed >= c.size()-c.F {
		return 1
	}
	return float64(confirmed) / float64(c.size())
}

// Excess is what the owners in the two parts admit together of one key's limit beyond that limit, with what it was in many
// trials: the rights alone, without shares and without what was under way.
type Excess struct {
	Mean float64 // of what is above 0
	Tail float64 // exceeded once in a thousand
	Most float64
	Both float64 // by the policy quorum: how often both owners find a majority
}

// Simulate divides the ring of c.N members again and again, at random, takes a key at random, finds its owner in either
// part, and adds up their rights. Equal seeds give equal results.
func (c Cut) Simulate(trials int, seed uint64) Excess {
	r := ring.New(Members(c.N))
	random := rand.New(rand.NewPCG(seed, uint64(c.N)))
	samples := c.samples(r)
	members, minor := make([]int, c.N), make([]bool, c.N)
	for i := range members {
		members[i] = i
	}
	var order []int
	sums, e := make([]float64, 0, trials), Excess{}
	for range trials {
		random.Shuffle(c.N, func(i, j int) { members[i], members[j] = members[j], members[i] })
		for place, m := range members {
			minor[m] = place < c.Minority
		}
		order = r.Order(random.Uint64(), order[:0])
		here := c.confirmed(samples, minor, order[slices.IndexFunc(order, func(m int) bool { return minor[m] })], true)
		there := c.confirmed(samples, minor, order[slices.IndexFunc(order, func(m int) bool { return !minor[m] })], false)
		sums = append(sums, c.right(here)+c.right(there)-1)
		if 2*here > c.size() && 2*there > c.size() {
			e.Both += 1 / float64(trials)
		}
	}
	slices.Sort(sums)
	for _, s := range sums {
		e.Mean += max(0, s) / float64(trials)
	}
	e.Tail, e.Most = sums[min(trials-1, trials*999/1000)], sums[trials-1]
	return e
}

// samples are the members asked to confirm each owner.
func (c Cut) samples(r *ring.Ring) [][]int {
	out := make([][]int, r.Len())
	for i := range out {
		switch c.Way {
		case Mesh:
			out[i] = r.Order(0, nil)
		case Own:
			order := r.Order(ring.Hash(string(r.At(i).ID)), nil)
			out[i] = slices.DeleteFunc(order, func(m int) bool { return m == i })[:min(c.K, c.N-1)]
		case Common:
			out[i] = Witnesses(r, c.K)
		}
	}
	return out
}

// confirmed is how many of the owner's sample are in its part.
func (c Cut) confirmed(samples [][]int, minor []bool, owner int, here bool) (n int) {
	for _, m := range samples[owner] {
		if minor[m] == here {
			n++
		}
	}
	return n
}

// Drawn is the hypergeometric distribution: the chance that x of k members drawn from n are among the marked ones.
func Drawn(n, marked, k, x int) float64 {
	if x < 0 || x > k || x > marked || k-x > n-marked {
		return 0
	}
	return math.Exp(choose(marked, x) + choose(n-marked, k-x) - choose(n, k))
}

// choose is the logarithm of n over k.
func choose(n, k int) float64 {
	a, _ := math.Lgamma(float64(n + 1))
	b, _ := math.Lgamma(float64(k + 1))
	c, _ := math.Lgamma(float64(n - k + 1))
	return a - b - c
}

// AtLeast is the chance that at least x of k members drawn from n are among the marked ones.
func AtLeast(n, marked, k, x int) (p float64) {
	for i := max(0, x); i <= k; i++ {
		p += Drawn(n, marked, k, i)
	}
	return min(1, p)
}

// Exact is what Simulate estimates with Own, calculated: the owners in both parts draw their samples from all members but
// themselves, each without regard to the other. With Mesh and Common nothing is left to chance.
func (c Cut) Exact() (e Excess) {
	type outcome struct{ sum, p float64 }
	var all []outcome
	for here := range c.K + 1 {
		for there := range c.K + 1 {
			p := Drawn(c.N-1, c.Minority-1, c.K, here) * Drawn(c.N-1, c.N-c.Minority-1, c.K, there)
			all = append(all, outcome{c.right(here) + c.right(there) - 1, p})
			e.Mean += p * max(0, c.right(here)+c.right(there)-1)
			if 2*here > c.K && 2*there > c.K {
				e.Both += p
			}
		}
	}
	slices.SortFunc(all, func(a, b outcome) int { return cmp.Compare(b.sum, a.sum) })
	seen := 0.0
	for _, o := range all {
		if o.p > 0 {
			e.Most = max(e.Most, o.sum)
		}
		if seen += o.p; seen >= 0.001 {
			e.Tail = o.sum
			break
		}
	}
	return e
}
