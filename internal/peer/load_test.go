package peer

import (
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestMeter(t *testing.T) {
	const processors = 4
	var m meter
	at, cpu, decided := int64(time.Second), int64(0), uint64(0)
	// work is a second in which the processors were partly busy, at a pace of requests per second of one processor.
	work := func(share, pace float64) workload {
		at += int64(time.Second)
		cpu += int64(share * processors * float64(time.Second))
		decided += uint64(share * processors * pace)
		return m.measure(at, cpu, decided, processors)
	}
	if l := m.measure(at, cpu, decided, processors); l != (workload{capacity: startCapacity}) {
		t.Errorf("before anything was measured: %+v", l)
	}
	for range 5 {
		if l := work(.04, 1); l.capacity != startCapacity || math.Abs(l.used-.04*startCapacity) > 1 {
			t.Errorf("an idle process was measured: %+v", l)
		}
	}
	l := work(.5, 100_000)
	if l.capacity <= startCapacity || l.capacity >= 100_000 {
		t.Errorf("one measurement is not all: %+v", l)
	}
	for range 10 * smoothing {
		l = work(.5, 100_000)
	}
	if math.Abs(l.capacity-400_000) > 100 || math.Abs(l.used-200_000) > 100 || l.overloaded {
		t.Errorf("half of four processors at 100,000 each: %+v", l)
	}
	for i, want := range []bool{false, true, true} {
		if l := work(.9, 100_000); l.overloaded != want {
			t.Errorf("second %d above 80 %%: %+v", i, l)
		}
	}
	if work(.7, 100_000).overloaded || work(.9, 100_000).overloaded {
		t.Error("overloaded for a moment only")
	}
	for range 10 * smoothing {
		l = work(.5, 10)
	}
	if l.capacity != leastCapacity {
		t.Errorf("what does other things than deciding can decide %v a second", l.capacity)
	}
}

func TestFallbackFor(t *testing.T) {
	var m meter
	for _, x := range []struct {
		at       int
		degraded uint64
		want     int
	}{{1, 0, 0}, {2, 0, 0}, {20, 1, 0}, {21, 5, 1}, {30, 5, 10}, {31, 6, 11}, {41, 6, 21}, {42, 6, 0}, {43, 6, 0},
		{44, 7, 0}, {45, 7, 1}} {
		if got := m.fallbackFor(int64(x.at)*int64(time.Second), x.degraded); got != time.Duration(x.want)*time.Second {
			t.Errorf("at %d s: %v, want %d s", x.at, got, x.want)
		}
	}
}

// Every decision of this member, under any authority, is counted and measured.
func TestMeasure(t *testing.T) {
	ms := newCluster(t, 2)
	names := append(ownedBy(ringOf("m0", "m1"), "m0", 1), ownedBy(ringOf("m0", "m1"), "m1", 1)...)
	for range 3 {
		for _, n := range names {
			ms[0].decideOne(patience, newRequest(n, 10, 1))
		}
	}
	if d, asked := ms[0].node.Decisions(); d[0] != 3 || asked != 3 {
		t.Errorf("%v decided here, %d forwarded to it", d, asked)
	}
	if d, _ := ms[1].node.Decisions(); d[0] != 3 {
		t.Errorf("%v decided for the other", d)
	}
	if got := testutil.ToFloat64(ms[1].m.served); got != 3 {
		t.Errorf("keyward_owner_requests_total %v", got)
	}
	await(t, "a measurement", func() bool { return testutil.ToFloat64(ms[0].m.capacity) >= leastCapacity })
}
