package scale

import (
	"math"
	"math/big"
	"testing"
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
