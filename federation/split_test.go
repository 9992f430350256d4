package federation

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestSplit(t *testing.T) {
	for _, tt := range []struct {
		n       uint32
		weights []uint32
		want    []uint32
	}{
		{10, []uint32{1, 1, 1}, []uint32{4, 3, 3}},
		{1000, []uint32{2, 1, 1}, []uint32{500, 250, 250}},
		{5, []uint32{0, 1, 1}, []uint32{0, 3, 2}},
		{5, []uint32{0, 0}, []uint32{3, 2}},
		{1<<32 - 1, []uint32{1<<32 - 1, 1<<32 - 1}, []uint32{1 << 31, 1<<31 - 1}},
		{7, nil, []uint32{}},
	} {
		if got := Split(tt.n, tt.weights); !slices.Equal(got, tt.want) {
			t.Errorf("Split(%d, %v) = %v, not %v", tt.n, tt.weights, got, tt.want)
		}
	}
}

// Floors and pool add up to the limit, for any weights.
func TestDivideAddsUp(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		weights := make([]uint32, 1+r.IntN(8))
		for i := range weights {
			weights[i] = r.Uint32N(5) * r.Uint32()
		}
		n, percent, sum := r.Uint32()>>r.IntN(32), uint8(r.IntN(101)), uint64(0)
		for i := range weights {
			b := Divide(n, weights, percent, i)
			if b.Floor > b.Slice {
				t.Fatalf("floor %d of slice %d", b.Floor, b.Slice)
			}
			sum += uint64(b.Floor)
			if i == len(weights)-1 {
				sum += uint64(b.Pool)
			}
		}
		if sum != uint64(n) {
			t.Fatalf("%v of %d at %d %%: floors and pool are %d", weights, n, percent, sum)
		}
	}
}
