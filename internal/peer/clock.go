package peer

import (
	"sync/atomic"
	"time"
)

const (
	// maxStep is how far a member's clock may be from the wall's before it jumps there.
	maxStep = time.Second
	// maxSlew is how fast a smaller difference is worked off: 500 parts per million.
	maxSlew = 500e-6
)

// clock tells Unix nanoseconds that follow the wall clock without its jumps: they run on the monotonic clock and drift
// towards the wall at no more than maxSlew, so a window neither ends early nor begins twice when NTP corrects the host.
// Only a difference above maxStep is taken in one step.
type clock struct {
	start  time.Time
	source clockSource // nil: the system's clocks
	line   atomic.Pointer[timeline]
}

// clockSource is a system's clocks. Tests have their own.
type clockSource interface {
	mono() int64
	read() reading
}

// reading is all clocks, read at one moment.
type reading struct {
	mono int64 // nanoseconds since the clock was made, not counting those in which the machine was suspended
	wall int64 // Unix nanoseconds
	boot int64 // nanoseconds since the machine started, counting all; 0: not known
}

// timeline maps monotonic to told time. It is immutable; a new one begins where the last one stands.
type timeline struct {
	mono, wall int64
	slew       float64
}

func newClock(start time.Time, s clockSource) *clock {
	c := &clock{start: start, source: s}
	c.line.Store(&timeline{wall: start.Add(buildSkew).UnixNano()})
	return c
}

// mono is nanoseconds since the clock was made. It never steps, and it stands still while the machine is suspended.
func (c *clock) mono() int64 {
	if c.source != nil {
		return c.source.mono()
	}
	return int64(time.Since(c.start))
}

// read reads CLOCK_BOOTTIME first: if this thread is stopped before it has read the others, boot seems too early, which
// the next reading corrects, and never too late.
func (c *clock) read() reading {
	if c.source != nil {
		return c.source.read()
	}
	boot, now := bootTime(), time.Now()
	return reading{mono: int64(now.Sub(c.start)), wall: now.Add(buildSkew).UnixNano(), boot: boot}
}

// offset is how far the wall clock is ahead of the told time.
func (c *clock) offset(r reading) time.Duration { return time.Duration(r.wall - c.at(r.mono)) }

// now is Unix nanoseconds.
func (c *clock) now() int64 { return c.at(c.mono()) }

// at is what now was when mono read mono.
func (c *clock) at(mono int64) int64 { return c.line.Load().at(mono) }

// steer steers towards the wall time that was read at mono, to be there in a time of about horizon, and returns the
// step if it took one. It is called by one goroutine.
func (c *clock) steer(mono, wall int64, horizon time.Duration) (step time.Duration) {
	told := c.line.Load().at(mono)
	off := wall - told
	if time.Duration(off).Abs() > maxStep {
		c.line.Store(&timeline{mono: mono, wall: wall})
		return time.Duration(off)
	}
	slew := min(max(float64(off)/float64(horizon), -maxSlew), maxSlew)
	c.line.Store(&timeline{mono: mono, wall: told, slew: slew})
	return 0
}

func (l *timeline) at(mono int64) int64 {
	d := mono - l.mono
	return l.wall + d + int64(float64(d)*l.slew)
}
