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
	headroom     = 16 << 20               // bytes by which the heap of a busy process may grow before a collection
	maxPercent   = 200                    // the largest GOGC: fewer collections save little
	idlePercent  = 25                     // GOGC of an idle process, where frequent collections cost almost nothing
	busyBytes    = 8 << 20                // allocations per second of a busy process
	busyTime     = 200 * time.Millisecond // processor time per second of a busy process
	idleAfter    = 10                     // consecutive seconds that are not busy, after which the process is idle
	releaseEvery = 60                     // seconds after which an idle process returns memory again
)

// memoryTuner trades memory for processor time while the process is busy, and returns memory to the system while it
// is idle. A sidecar's heap is small. With Go's default, a collection whenever it doubles, load would cause many
// collections per second, and a change of the ring would leave several times the memory that is needed afterwards.
type memoryTuner struct {
	set    func(percent int) int // debug.SetGCPercent, or nothing if the user has set GOGC
	read   []metrics.Sample
	bytes  uint64        // allocated until the last step
	worked time.Duration // processor time until the last step
	now    int           // GOGC
	quiet  int           // consecutive seconds that were not busy
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

// run calls step once a second until ctx ends.
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

// step adjusts GOGC. It takes the bytes allocated and the processor time used since the start, and the live bytes
// after the last collection. It reports whether to return memory to the system now.
func (c *memoryTuner) step(bytes uint64, worked time.Duration, live uint64) (release bool) {
	percent := c.now
	if bytes-c.bytes >= busyBytes || worked-c.worked >= busyTime {
		c.quiet = 0
		percent = int(min(max(100*headroom/max(live, 1), 100), maxPercent))
	} else if c.quiet++; c.quiet >= idleAfter {
		release = (c.quiet-idleAfter)%releaseEvery == 0
		percent = idlePercent
	}
	c.bytes, c.worked = bytes, worked
	if percent != c.now {
		c.now = percent
		c.set(percent)
	}
	return release
}
