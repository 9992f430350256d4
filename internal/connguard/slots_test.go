package connguard

import (
	"runtime"
	"testing"
)

// Half of the processors, but at least one, process expensive connections.
func TestOnePlaceForTwoProcessors(t *testing.T) {
	was := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(was)
	for processors, places := range map[int]int{1: 1, 2: 1, 3: 1, 4: 2, 9: 4} {
		runtime.GOMAXPROCS(processors)
		if got := newTurnQueue(true).freeSlots; got != places {
			t.Errorf("%d processors: %d places, want %d", processors, got, places)
		}
	}
}
