package postgres

import (
	"fmt"
	"testing"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/federation/federationtest"
)

func TestContract(t *testing.T) {
	s := startServer(t)
	federationtest.Run(t, s.empty(""))
}

func TestEqualsReference(t *testing.T) {
	s := startServer(t)
	for seed := range uint64(2) {
		federationtest.Compare(t, s.empty(""), seed)
	}
}

// BenchmarkLease measures calls with some requests each, one after the other.
func BenchmarkLease(b *testing.B) {
	for _, n := range []int{1, 16} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := startServer(b).ready()
			rs := make([]federation.PoolRequest, n)
			for i := range rs {
				rs[i] = request(year, 0)
				rs[i].Key[0] = uint64(i)
			}
			for seq := uint64(1); b.Loop(); seq++ {
				for i := range rs {
					rs[i].Seq = seq
				}
				if gs, err := c.Lease(b.Context(), "a", rs); err != nil || len(gs) != n {
					b.Fatal(len(gs), err)
				}
			}
		})
	}
}
