package e2e

import (
	"testing"
	"time"
)

// still is the longest time that this machine has stood still since a test began.
type still struct {
	stop    chan struct{}
	longest chan time.Duration
}

// watchStill starts a goroutine that wakes every 10 ms. It is late by as much as the machine stood still.
func watchStill(t *testing.T) *still {
	s := &still{make(chan struct{}), make(chan time.Duration)}
	t.Cleanup(func() { close(s.stop) })
	go func() {
		const every = 10 * time.Millisecond
		longest, tick := time.Duration(0), time.NewTicker(every)
		defer tick.Stop()
		for last := time.Now(); ; {
			select {
			case <-s.stop:
				return
			case <-tick.C:
				longest = max(longest, time.Since(last)-every)
				last = time.Now()
			case s.longest <- longest:
			}
		}
	}()
	return s
}

// forLong reports whether no member can be blamed for what it did not answer in time: the machine stood still for half of what
// members wait for each other's confirmation, so that every one of them may have missed all others.
func (s *still) forLong(t testing.TB) bool {
	d := <-s.longest
	if d < 750*time.Millisecond {
		return false
	}
	t.Logf("the machine stood still for %v", d)
	return true
}
