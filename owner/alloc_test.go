package owner

import (
	"fmt"
	"testing"
	"time"
)

// TestNoAlgorithmAllocates requires that a decision allocates nothing: for one request and for several, with room and
// without, for every operation.
func TestNoAlgorithmAllocates(t *testing.T) {
	for _, algorithm := range algorithms {
		for _, amount := range []uint32{3, 4e9} {
			n := alone(Options{})
			var reqs []Request
			for i := range 4 {
				req := ask(i/2, amount, time.Hour, 1)
				req.Rule.Algorithm = algorithm
				reqs = append(reqs, req)
			}
			results := make([]Result, len(reqs))
			now := t0
			round := func(op Op, stop bool) func() {
				return func() {
					for i := range reqs {
						reqs[i].Op = op
					}
					now += int64(time.Millisecond)
					n.DecideAll(now, stop, reqs, results)
				}
			}
			for range 500 { // logs fill up
				round(Take, false)()
			}
			for op, name := range []string{"take", "peek", "refund", "look"} {
				for _, stop := range []bool{false, true} {
					if got := testing.AllocsPerRun(100, round(Op(op), stop)); got != 0 {
						t.Errorf("%v of %d, %s, stop %t: %v allocations", algorithm, amount, name, stop, got)
					}
				}
			}
		}
	}
}

func BenchmarkAlgorithms(b *testing.B) {
	for _, algorithm := range algorithms {
		for _, several := range []int{1, 3} {
			b.Run(fmt.Sprintf("%v-%d", algorithm, several), func(b *testing.B) {
				n := alone(Options{Seed: [2]uint64{1, 2}})
				const keys = 1000
				var reqs []Request
				for i := range keys + several {
					req := ask(i, 1e6, time.Minute, 1)
					req.Rule.Algorithm = algorithm
					reqs = append(reqs, req)
				}
				results := make([]Result, several)
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					n.DecideAll(t0+int64(i)*1000, false, reqs[i%keys:i%keys+several], results)
				}
			})
		}
	}
}
