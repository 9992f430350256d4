package app

import (
	"testing"
	"time"
)

// A busy process lets the heap grow by an amount, not by a factor. An idle one returns memory: when it becomes idle,
// and at intervals.
func TestCollector(t *testing.T) {
	var set []int
	c := &memoryTuner{now: 100, set: func(p int) int { set = append(set, p); return 0 }}
	var bytes uint64
	var worked time.Duration
	second := func(b uint64, w time.Duration, live uint64) bool {
		bytes, worked = bytes+b, worked+w
		return c.step(bytes, worked, live)
	}
	given := func(seconds int) (at []int) {
		for i := range seconds {
			if second(1<<20, 10*time.Millisecond, 8<<20) {
				at = append(at, i)
			}
		}
		return at
	}
	expect := func(what string, percents ...int) {
		t.Helper()
		if len(set) != len(percents) {
			t.Fatalf("%s: GOGC went to %v", what, set)
		}
		for i := range percents {
			if set[i] != percents[i] {
				t.Fatalf("%s: GOGC went to %v", what, set)
			}
		}
		set = nil
	}
	if at := given(idleAfter + releaseEvery); len(at) != 2 || at[0] != idleAfter-1 || at[1] != idleAfter+releaseEvery-1 {
		t.Errorf("memory was given back in seconds %v", at)
	}
	expect("at rest", idlePercent)
	second(busyBytes, 0, 4<<20)
	expect("a small heap, busy", maxPercent)
	second(0, busyTime, 10<<20)
	expect("a larger heap, busy", 160)
	second(0, busyTime, 1<<30)
	expect("a large heap, busy", 100)
	if at := given(idleAfter - 1); at != nil {
		t.Errorf("memory was given back in seconds %v after it had been needed", at)
	}
	expect("hardly at rest")
	if at := given(1); len(at) != 1 {
		t.Error("memory was not given back")
	}
	expect("at rest again", idlePercent)
}
