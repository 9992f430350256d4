package sim

import (
	"math/rand/v2"

	"github.com/keyward/keyward/ring"
)

// expandRing returns the options of a seed whose members adopt the ring of a user's own cluster. On such a ring, a join
// or leave also moves keys between other members, and the successor of a key is not always its next owner.
func expandRing(seed uint64) options {
	o := expandBase(seed)
	r := rand.New(rand.NewPCG(seed, 0xe2707))
	sizes := [...]uint32{97, 500, 1024, 4096}
	size := sizes[r.IntN(len(sizes))]
	o.Ring = ring.EnvoyParameters(size, size<<r.IntN(3), ring.HashFunction(r.IntN(2)))
	return o
}
