package redis

import (
	"fmt"
	"syscall"
	"testing"
	"time"

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

func TestStoreContract(t *testing.T) {
	s := startServer(t)
	federationtest.RunStore(t, s.empty(""))
}

func TestStoreEqualsReference(t *testing.T) {
	s := startServer(t)
	for seed := range uint64(2) {
		federationtest.CompareStore(t, s.empty(""), seed)
	}
}

// BenchmarkLease measures calls with some requests each, one after the other. cpu-ns/op is the processor time of this process,
// without that of the server.
func BenchmarkLease(b *testing.B) {
	for _, n := range []int{1, 16, 256} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := startServer(b).open("")
			rs := make([]federation.PoolRequest, n)
			for i := range rs {
				rs[i] = request(year, 0)
				rs[i].Key[0] = uint64(i)
			}
			before := processorTime(b)
			for seq := uint64(1); b.Loop(); seq++ {
				for i := range rs {
					rs[i].Seq = seq
				}
				if gs, err := c.Lease(b.Context(), "a", rs); err != nil || len(gs) != n {
					b.Fatal(len(gs), err)
				}
			}
			b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
		})
	}
}

func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
