package peer

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/keyward/keyward/owner"
)

// cpuTime is what the process has used, both modes.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkDecideLocal(b *testing.B) {
	m := newMember(b, "m0").alone()
	qs, as := []owner.Question{question("k", math.MaxUint32, 1)}, make([]owner.Answer, 1)
	deadline := time.Now().Add(time.Hour)
	b.ReportAllocs()
	for b.Loop() {
		m.Decide(deadline, false, qs, as)
	}
}

// BenchmarkDecideForwarded has all questions answered by the other of two members in this process, so that the CPU time
// is that of both.
func BenchmarkDecideForwarded(b *testing.B) {
	dir := demoCA(b)
	for _, secure := range []bool{false, true} {
		var adjust []func(*Options)
		name := "plain"
		if secure {
			adjust, name = append(adjust, tlsOptions(b, dir, "sidecar")), "tls"
		}
		for _, askers := range []int{1, 16, 256} {
			b.Run(fmt.Sprintf("%s/askers=%d", name, askers), func(b *testing.B) {
				ms := newCluster(b, 2, adjust...)
				benchmarkForwarded(b, ms[0], ownedBy(ringOf("m0", "m1"), "m1", 64), askers)
			})
		}
	}
}

func benchmarkForwarded(b *testing.B, m *member, names []string, askers int) {
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	before := cpuTime(b)
	for a := range askers {
		wg.Go(func() {
			qs, as := []owner.Question{question(names[a%len(names)], math.MaxUint32, 1)}, make([]owner.Answer, 1)
			for left.Add(-1) >= 0 {
				m.Decide(time.Now().Add(patience), false, qs, as)
				if as[0].Path != owner.Forwarded {
					b.Errorf("%+v", as[0])
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
}
