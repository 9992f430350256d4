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

// cpuTime returns the processor time of the process in both modes.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkDecideLocal(b *testing.B) {
	m := newMember(b, "m0").alone()
	reqs, results := []owner.Request{newRequest("k", math.MaxUint32, 1)}, make([]owner.Result, 1)
	deadline := by(time.Hour)
	b.ReportAllocs()
	for b.Loop() {
		m.Decide(deadline, false, reqs, results)
	}
}

// BenchmarkDecideForwarded has all requests decided by the other one of two members in this process, so the processor
// time is that of both.
func BenchmarkDecideForwarded(b *testing.B) {
	dir := demoCA(b)
	for _, secure := range []bool{false, true} {
		var adjust []func(*Options)
		name := "plain"
		if secure {
			adjust, name = append(adjust, tlsOptions(b, dir, "sidecar")), "tls"
		}
		for _, callers := range []int{1, 16, 256} {
			b.Run(fmt.Sprintf("%s/callers=%d", name, callers), func(b *testing.B) {
				ms := newCluster(b, 2, adjust...)
				benchmarkForwarded(b, ms[0], ownedBy(ringOf("m0", "m1"), "m1", 64), callers)
			})
		}
	}
}

// requests are in flight together, each with a key of m1.
type requests struct {
	m    *member
	each []request
	left atomic.Int64
	done chan struct{} // a token when none is left
}

type request struct {
	all     *requests
	reqs    [1]owner.Request
	results [1]owner.Result
}

func newRequests(m *member, flight int) *requests {
	r := &requests{m: m, each: make([]request, flight), done: make(chan struct{}, 1)}
	names := ownedBy(ringOf("m0", "m1"), "m1", 64)
	for i := range r.each {
		r.each[i].all, r.each[i].reqs[0] = r, newRequest(names[i%len(names)], math.MaxUint32, 1)
	}
	return r
}

// begin begins all of them.
func (r *requests) begin() {
	r.left.Store(int64(len(r.each)))
	deadline := by(patience)
	for i := range r.each {
		if q := &r.each[i]; r.m.Begin(deadline, false, q.reqs[:], q.results[:], q) {
			q.Decided()
		}
	}
}

func (q *request) Decided() {
	if q.all.left.Add(-1) == 0 {
		q.all.done <- struct{}{}
	}
}

// await waits until they are decided.
func (r *requests) await() { <-r.done }

func (r *requests) all() {
	r.begin()
	r.await()
}

// BenchmarkForward is BenchmarkDecideForwarded with a caller that does not wait for one call before it begins the next,
// like the inline server. An op is one call.
func BenchmarkForward(b *testing.B) {
	dir := demoCA(b)
	for _, secure := range []bool{false, true} {
		var adjust []func(*Options)
		name := "plain"
		if secure {
			adjust, name = append(adjust, tlsOptions(b, dir, "sidecar")), "tls"
		}
		for _, flight := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/flight=%d", name, flight), func(b *testing.B) {
				ms := newCluster(b, 2, adjust...)
				r := newRequests(ms[0], flight)
				r.all()
				b.ReportAllocs()
				b.ResetTimer()
				before := cpuTime(b)
				for n := 0; n < b.N; n += flight {
					r.all()
				}
				b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
				b.StopTimer()
				for i := range r.each {
					if a := &r.each[i].results[0]; a.Path != owner.Forwarded {
						b.Fatalf("%+v", a)
					}
				}
			})
		}
	}
}

func benchmarkForwarded(b *testing.B, m *member, names []string, callers int) {
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	before := cpuTime(b)
	for a := range callers {
		wg.Go(func() {
			reqs, results := []owner.Request{newRequest(names[a%len(names)], math.MaxUint32, 1)}, make([]owner.Result, 1)
			for left.Add(-1) >= 0 {
				m.Decide(by(patience), false, reqs, results)
				if results[0].Path != owner.Forwarded {
					b.Errorf("%+v", results[0])
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
}

// BenchmarkClocks measures readings of the clocks: the one of each decision, and the check that at most one decision in
// a millisecond makes.
func BenchmarkClocks(b *testing.B) {
	m := newMember(b, "m0").alone()
	b.Run("mono", func(b *testing.B) {
		for b.Loop() {
			m.clock.mono()
		}
	})
	b.Run("awake", func(b *testing.B) {
		for b.Loop() {
			m.decisionTime()
		}
	})
	b.Run("boottime", func(b *testing.B) {
		for b.Loop() {
			bootTime()
		}
	})
	b.Run("look", func(b *testing.B) {
		for b.Loop() {
			m.checkClocks()
		}
	})
}
