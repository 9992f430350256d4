//go:build !race

package peer

import (
	"math"
	"runtime"
	"testing"

	"github.com/keyward/keyward/owner"
)

func TestAllocsLocal(t *testing.T) {
	m := newMember(t, "m0").alone()
	reqs, results := []owner.Request{newRequest("k", math.MaxUint32, 1)}, make([]owner.Result, 1)
	for _, stop := range []bool{false, true} {
		if n := testing.AllocsPerRun(1000, func() { m.Decide(by(patience), stop, reqs, results) }); n != 0 {
			t.Errorf("stop %v: %v allocations", stop, n)
		}
	}
}

// The count is that of the whole process: both members, readers and writers.
func TestAllocsForwarded(t *testing.T) {
	for _, tt := range []struct {
		name   string
		adjust func(*Options)
		want   float64
	}{
		{"plain", func(*Options) {}, 0},
		{"tls", tlsOptions(t, demoCA(t), "sidecar"), 2}, // crypto/tls: one for each record read
	} {
		ms := newCluster(t, 2, tt.adjust)
		reqs := make([]owner.Request, 0, 8)
		for _, n := range ownedBy(ringOf("m0", "m1"), "m1", cap(reqs)) {
			reqs = append(reqs, newRequest(n, math.MaxUint32, 1))
		}
		results := make([]owner.Result, len(reqs))
		for _, stop := range []bool{false, true} {
			if n := testing.AllocsPerRun(1000, func() { ms[0].Decide(by(patience), stop, reqs, results) }); n > tt.want {
				t.Errorf("%s, stop %v: %v allocations, want %v", tt.name, stop, n, tt.want)
			}
		}
	}
}

// A caller that does not wait has many requests in flight, and they need no goroutines either.
func TestAllocsBegun(t *testing.T) {
	const flight = 64
	for _, tt := range []struct {
		name   string
		adjust func(*Options)
		want   float64 // per request; the members' own allocations, as for replicas, are few in hundreds of requests
	}{
		{"plain", func(*Options) {}, .2},
		{"tls", tlsOptions(t, demoCA(t), "sidecar"), 2}, // crypto/tls: one for each record read, at worst of one request each
	} {
		ms := newCluster(t, 2, tt.adjust)
		r := newRequests(ms[0], flight)
		if n := testing.AllocsPerRun(200, r.all); n > tt.want*flight {
			t.Errorf("%s: %v allocations in %d requests, want %v each at most", tt.name, n, flight, tt.want)
		}
		more := flight
		for range 20 {
			before := runtime.NumGoroutine()
			r.begin()
			more = min(more, runtime.NumGoroutine()-before)
			r.await()
		}
		if more > 0 {
			t.Errorf("%s: %d goroutines more with %d requests in flight", tt.name, more, flight)
		}
	}
}
