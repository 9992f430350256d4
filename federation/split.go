package federation

import "math/bits"

// Split divides n between parts with these weights: each part gets n x weight / sum of weights, rounded down, and the
// first ones get one more each, so that the parts add up to n. Parts without weight get nothing. If no part has a weight,
// all weigh the same.
func Split(n uint32, weights []uint32) []uint32 {
	parts := make([]uint32, len(weights))
	sum := uint64(0)
	for _, w := range weights {
		sum += uint64(w)
	}
	if sum == 0 {
		if len(weights) == 0 {
			return parts
		}
		same := make([]uint32, len(weights))
		for i := range same {
			same[i] = 1
		}
		return Split(n, same)
	}
	rest := n
	for i, w := range weights {
		hi, lo := bits.Mul64(uint64(n), uint64(w))
		q, _ := bits.Div64(hi, lo, sum)
		parts[i] = uint32(q)
		rest -= uint32(q)
	}
	for i := 0; rest > 0; i++ {
		if weights[i] > 0 {
			parts[i]++
			rest--
		}
	}
	return parts
}

// DefaultFloor is the part of a region's slice, in percent, that is its floor if the rule does not set it.
const DefaultFloor = 5

// Budget is how the limit of a rule is divided.
type Budget struct {
	Slice uint32 // the region's part of the limit
	Floor uint32 // the part of Slice that the region always has
	Pool  uint32 // what is not the floor of any region
}

// Divide divides a limit between regions with these weights, of which the given percentage of each slice is a floor. It
// returns the budget of region i.
func Divide(n uint32, weights []uint32, percent uint8, i int) Budget {
	b := Budget{Pool: n}
	for j, slice := range Split(n, weights) {
		floor := uint32(uint64(slice) * uint64(min(percent, 100)) / 100)
		b.Pool -= floor
		if i == j {
			b.Slice, b.Floor = slice, floor
		}
	}
	return b
}
