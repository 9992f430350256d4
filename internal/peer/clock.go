package peer

import (
	"sync/atomic"
	"time"
)

const (
	// maxStep is the largest difference to the wall clock that a member's clock does not correct with a step.
	maxStep = time.Second
	// maxSlew is the rate at which a smaller difference is corrected: 500 parts per million.
	maxSlew = 500e-6
)

// clock returns Unix nanoseconds that follow the wall clock without its steps. They are based on the monotonic clock
// and drift toward the wall clock by at most maxSlew, so a window neither ends early nor begins twice when NTP corrects
// the host. Only a difference above maxStep is corrected with a step.
type clock struct {
	start  time.Time
	source clockSource // nil: the system's clocks
	line   atomic.Pointer[timeline]
}

// clockSource provides the system's clocks. Tests have their own.
type clockSource interface {
	mono() int64
	read() reading
}

// reading is the state of all clocks at one moment.
type reading struct {
	mono int64 // nanoseconds since the clock was made, without those for which the machine was suspended
	wall int64 // Unix nanoseconds
	boot int64 // nanoseconds since the machine started, including those for which it was suspended; 0: unknown
}

// timeline maps monotonic time to the clock's time. It is immutable. The next timeline begins at the current time of
// the last.
type timeline struct {
	mono, wall int64
	slew       float64
}

func newClock(start time.Time, s clockSource) *clock {
	c := &clock{start: start, source: s}
	c.line.Store(&timeline{wall: start.Add(buildSkew).UnixNano()})
	return c
}

// mono returns nanoseconds since the clock was made. It never steps, and it stops while the machine is suspended.
func (c *clock) mono() int64 {
	if c.source != nil {
		return c.source.mono()
	}
	return int64(time.Since(c.start))
}

// read reads CLOCK_BOOTTIME first. If the thread is stopped before it has read the other clocks, boot is too early,
// never too late, and the next reading corrects it.
func (c *clock) read() reading {
	if c.source != nil {
		return c.source.read()
	}
	boot, now := bootTime(), time.Now()
	return reading{mono: int64(now.Sub(c.start)), wall: now.Add(buildSkew).UnixNano(), boot: boot}
}

// offset returns how far the wall clock is ahead of the clock's time.
func (c *clock) offset(r reading) time.Duration { return time.Duration(r.wall - c.at(r.mono)) }

// now returns Unix nanoseconds.
func (c *clock) now() int64 { return c.at(c.mono()) }

// at returns the clock's time when mono returned the given value.
func (c *clock) at(mono int64) int64 { return c.line.Load().at(mono) }

// steer makes the clock approach the wall time that was read at mono, within about horizon. It returns the step if it
// took one. It must not be called concurrently.
func (c *clock) steer(mono, wall int64, horizon time.Duration) (step time.Duration) {
	now := c.line.Load().at(mono)
	off := wall - now
	if time.Duration(off).Abs() > maxStep {
		c.line.Store(&timeline{mono: mono, wall: wall})
		return time.Duration(off)
	}
	slew := min(max(float64(off)/float64(horizon), -maxSlew), maxSlew)
	c.line.Store(&timeline{mono: mono, wall: now, slew: slew})
	return 0
}

func (l *timeline) at(mono int64) int64 {
	d := mono - l.mono
	return l.wall + d + int64(float64(d)*l.slew)
}
