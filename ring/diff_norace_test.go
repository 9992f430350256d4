//go:build !race

package ring

import (
	"testing"
)

func TestMovesMatchOwner(t *testing.T) {
	rnd := seeded(3)
	for range 20 {
		pool := fleet(rnd, 8, 3)
		pick := func() *Ring {
			var some []Member
			for _, m := range pool {
				if rnd.IntN(3) > 0 {
					m.Weight = uint32(1 + rnd.IntN(3))
					some = append(some, m)
				}
			}
			return New(some)
		}
		a, b := pick(), pick()
		checkMoves(t, a, b, Diff(a, b), rnd)
	}
}
