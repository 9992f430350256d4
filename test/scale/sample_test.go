package scale

import (
	"math"
	"math/big"
	"slices"
	"testing"

	"github.com/keyward/keyward/ring"
)

func TestDrawn(t *testing.T) {
	for _, c := range [][3]int{{10, 3, 4}, {50, 25, 13}, {300, 100, 19}, {2000, 667, 23}} {
		n, marked, k := c[0], c[1], c[2]
		sum := 0.0
		for x := range k + 1 {
			var a, b, d big.Int
			a.Binomial(int64(marked), int64(x))
			b.Binomial(int64(n-marked), int64(k-x))
			d.Binomial(int64(n), int64(k))
			want, _ := new(big.Rat).SetFrac(a.Mul(&a, &b), &d).Float64()
			got := Drawn(n, marked, k, x)
			if math.Abs(got-want) > 1e-9*want+1e-15 {
				t.Errorf("%d of %d drawn from %d with %d marked: %g, want %g", x, k, n, marked, got, want)
			}
			sum += got
		}
		if math.Abs(sum-1) > 1e-9 {
			t.Errorf("%v: chances add up to %g", c, sum)
		}
	}
}

// What the witnesses of one ring confirm in disjoint parts adds up to no more than there are of them.
func TestCommonSampleKeepsTheBound(t *testing.T) {
	for _, n := range []int{3, 10, 40} {
		for _, minority := range []int{1, n / 3, n / 2} {
			k := SampleSize(n)
			c := Cut{N: n, Minority: max(1, minority), K: k, F: 1, Way: Common}
			if e := c.Simulate(2000, 1); e.Most > 1/float64(k)+1e-9 || e.Both > 0 {
				t.Errorf("%+v: %+v, bound %g", c, e, 1/float64(k))
			}
			c.Way = Mesh
			if e := c.Simulate(2000, 1); e.Most > 1/float64(n)+1e-9 || e.Both > 0 {
				t.Errorf("%+v: %+v, bound %g", c, e, 1/float64(n))
			}
		}
	}
}

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
