//go:build !race

package scale

import (
	"math"
	"slices"
	"testing"

	"github.com/keyward/keyward/ring"
)

// Samples of each owner's own do not: the simulation finds what the calculation says, and it is above the bound.
func TestOwnSamplesAreAsCalculated(t *testing.T) {
	const trials = 20_000
	c := Cut{N: 60, Minority: 24, K: 13, F: 1, Way: Own}
	got, want := c.Simulate(trials, 7), c.Exact()
	if want.Both < 0.01 || math.Abs(got.Both-want.Both) > 5*math.Sqrt(want.Both/trials)+0.01 {
		t.Errorf("both have a quorum in %g of the trials, calculated %g", got.Both, want.Both)
	}
	if math.Abs(got.Mean-want.Mean) > 0.02 || math.Abs(got.Tail-want.Tail) > 0.12 {
		t.Errorf("simulated %+v, calculated %+v", got, want)
	}
	if got.Most <= 1/float64(c.K) {
		t.Errorf("an excess of at most %g would be no worse than that of common witnesses", got.Most)
	}
	if again := c.Simulate(trials, 7); again != got {
		t.Errorf("the same seed gave %+v and %+v", got, again)
	}
}

// One join or leave changes at most one witness.
func TestWitnessesChangeOneByOne(t *testing.T) {
	for n := 2; n < 60; n++ {
		a, b := ring.New(Members(n)), ring.New(Members(n+1))
		k := SampleSize(n)
		names := func(r *ring.Ring) (ids []ring.ID) {
			for _, i := range Witnesses(r, k) {
				ids = append(ids, r.At(i).ID)
			}
			return ids
		}
		was, is := names(a), names(b)
		changed := 0
		for _, id := range was {
			if !slices.Contains(is, id) {
				changed++
			}
		}
		if changed > 1 {
			t.Errorf("from %d members to one more: %d of %d witnesses changed", n, changed, k)
		}
	}
}
