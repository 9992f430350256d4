package app

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"syscall"
	"time"
)

const (
	headroom    = 16 << 20               // bytes that a busy process may let the heap grow by before it is collected
	mostPercent = 200                    // GOGC above which collecting more seldom saves little
	restPercent = 25                     // GOGC at rest, where collecting more often costs next to nothing
	busyBytes   = 8 << 20                // allocated in a second by a busy process
	busyTime    = 200 * time.Millisecond // of a processor, in a second
	restAfter   = 10                     // seconds in a row that were not busy, after which it rests
	restAgain   = 60                     // seconds of rest after which memory is given back again
)

// memoryTuner trades memory for time while there is much to do, and gives it back at rest. A sidecar's heap is small: by Go's own
// rule, which lets it double, load would have it collected many times a second, and a ring change leaves behind several times
// what is needed from then on.
type memoryTuner struct {
	set    func(percent int) int // debug.SetGCPercent; nothing if GOGC says what the user wants
	read   []metrics.Sample
	bytes  uint64        // allocated until the last second
	worked time.Duration // processor time until then
	now    int           // GOGC
	quiet  int           // seconds in a row that were not busy
}

func newMemoryTuner() *memoryTuner {
	c := &memoryTuner{set: debug.SetGCPercent, now: 100, read: []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"},
	}}
	if os.Getenv("GOGC") != "" {
		c.set = func(int) int { return 0 }
	}
	return c
}

// run looks once a second until ctx ends.
func (c *memoryTuner) run(ctx context.Context) {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		metrics.Read(c.read)
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			return
		}
		if c.step(c.read[0].Value.Uint64(), time.Duration(u.Utime.Nano()+u.Stime.Nano()), c.read[1].Value.Uint64()) {
			debug.FreeOSMemory()
			releaseProgram()
		}
	}
}

// step is told once a second how much has been allocated and worked since the start, and the bytes that the last collection left.
// It says whether memory is to be given back now.
func (c *memoryTuner) step(bytes uint64, worked time.Duration, live uint64) (give bool) {
	percent := c.now
	if bytes-c.bytes >= busyBytes || worked-c.worked >= busyTime {
		c.quiet = 0
		percent = int(min(max(100*headroom/max(live, 1), 100), mostPercent))
	} else if c.quiet++; c.quiet >= restAfter {
		give = (c.quiet-restAfter)%restAgain == 0
		percent = restPercent
	}
	c.bytes, c.worked = bytes, worked
	if percent != c.now {
		c.now = percent
		c.set(percent)
	}
	return give
}
