// Package limit decides whether hits fit a limit.
//
// Everything here is a value: a [Rule] looks at a [State] and a time and returns a [Decision] and what the State has
// become; a [Tally] is the short form of the State of a fixed window that one member alone counts. States of several
// members merge. There is no clock, no lock and no I/O; times are nanoseconds since the Unix epoch and come from the
// caller.
package limit

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Algorithm says how a rule spends its limit over time. The numbers are part of the peer protocol and of the
// counter's key, so they never change.
type Algorithm uint8

// The algorithms.
const (
	// FixedWindow counts hits in windows aligned to the Unix epoch, as envoyproxy/ratelimit does.
	FixedWindow Algorithm = 0
	// SlidingWindow adds to the window's count the part of the one before that a window ending now still overlaps.
	SlidingWindow Algorithm = 1
	// SlidingLog counts the hits of the last Window one by one, or in 64ths of the Window when there are many.
	SlidingLog Algorithm = 2
	// TokenBucket refills Limit hits a Window, continuously, and holds Burst of them.
	TokenBucket Algorithm = 3
	// LeakyBucket drains Limit hits a Window, continuously, and overflows above Burst. As nothing waits in it, it
	// decides as a TokenBucket does.
	LeakyBucket Algorithm = 4

	algorithms = 5
)

// ClockTolerance is how far the clocks of two members may differ: of a window that begins within that much what a merged State
// says counts.
const ClockTolerance = 250 * time.Millisecond

// maxDrainTime is how long a bucket may drain: far less than times can tell, so that no level is ever cut in earnest.
const maxDrainTime = int64(100 * 365 * 24 * time.Hour)

var names = [algorithms]string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "leaky_bucket"}

// String is a's name in rules.
func (a Algorithm) String() string {
	if int(a) < len(names) {
		return names[a]
	}
	return fmt.Sprintf("algorithm %d", uint8(a))
}

// ParseAlgorithm is the algorithm of that name.
func ParseAlgorithm(name string) (a Algorithm, ok bool) {
	for i, n := range names {
		if n == name {
			return Algorithm(i), true
		}
	}
	return 0, false
}

// Bucket says that a keeps a level that drains, instead of counts of windows.
func (a Algorithm) Bucket() bool { return a == TokenBucket || a == LeakyBucket }

// Rule is one limit: at most Limit hits in a Window. It is comparable and immutable. An unknown Algorithm counts as a
// FixedWindow.
type Rule struct {
	Window    time.Duration // length of a window; one that is not positive counts as a second
	Limit     uint32        // hits a window; 0 refuses everything
	Burst     uint32        // hits that a bucket holds; 0 means Limit; windows do not look at it
	Algorithm Algorithm
}

// Validate is an error if r cannot be decided as it says.
func (r Rule) Validate() error {
	switch {
	case r.Algorithm >= algorithms:
		return fmt.Errorf("unknown %v", r.Algorithm)
	case r.Window <= 0:
		return errors.New("window is not positive")
	case r.Algorithm.Bucket() && r.spanOf(uint64(r.Depth())) > maxDrainTime:
		return errors.New("a full bucket takes more than a century to drain")
	}
	return nil
}

// Depth is the count up to which hits fit: the Limit, for buckets the Burst. A Decision is Over when After exceeds it.
func (r Rule) Depth() uint32 {
	if r.Algorithm.Bucket() && r.Burst > 0 && r.Limit > 0 {
		return r.Burst
	}
	return r.Limit
}

// Unreplicated (U) is how many admitted hits of one counter one member alone may know of: 1 % of the Limit, at least one.
func (r Rule) Unreplicated() uint64 { return uint64(min(r.Limit, max(1, r.Limit/100))) }

// Decision is the answer to one question.
type Decision struct {
	Before uint64 // count before the hits; of a bucket its level in hits, rounded up
	After  uint64 // count with the hits, saturating at math.MaxUint64
	// Reset is in whole seconds, rounded up; at least one. For a FixedWindow it is the time until the window ends. For
	// the others, when Over: until one more hit fits, if nobody asks before; else until the limit is whole again
	// (buckets), the oldest count leaves (SlidingLog) or the window that the older count weighs on ends (SlidingWindow).
	Reset     time.Duration
	Remaining uint32 // hits left; 0 when over
	Over      bool   // After exceeds the rule's Depth
}

func (r Rule) width() int64 {
	if r.Window <= 0 {
		return int64(time.Second)
	}
	return int64(r.Window)
}

// Index is the window that now lies in.
func (r Rule) Index(now int64) int64 {
	w := r.width()
	i := now / w
	if now%w < 0 {
		i--
	}
	return i
}

// End is the first instant after window index, in Unix nanoseconds.
func (r Rule) End(index int64) int64 { return (index + 1) * r.width() }

// start is the first instant of window index, saturating.
func (r Rule) start(index int64) int64 {
	w := r.width()
	switch most := math.MaxInt64 / w; {
	case index > most:
		return math.MaxInt64
	case index < -most:
		return math.MinInt64
	}
	return index * w
}

// fits is the answer to hits at count before, without its Reset.
func (r Rule) fits(before, hits uint64) Decision {
	d := Decision{Before: before, After: SaturatingAdd(before, hits)}
	depth := uint64(r.Depth())
	if d.Over = d.After > depth; !d.Over {
		d.Remaining = uint32(depth - d.After)
	}
	return d
}

// WholeSeconds is left in whole seconds, rounded up, at least one. Times far from now come only of broken clocks; the clamp
// keeps them positive.
func WholeSeconds(left int64) time.Duration {
	left = min(max(1, left), math.MaxInt64-int64(time.Second))
	return (time.Duration(left) + time.Second - 1).Truncate(time.Second)
}

func SaturatingAdd(a, b uint64) uint64 {
	if s := a + b; s >= a {
		return s
	}
	return math.MaxUint64
}

// addTime is t + d, saturating; d is not negative.
func addTime(t, d int64) int64 {
	if s := t + d; s >= t {
		return s
	}
	return math.MaxInt64
}

// subTime is t - d, saturating; d is not negative.
func subTime(t, d int64) int64 {
	if s := t - d; s <= t {
		return s
	}
	return math.MinInt64
}

// elapsed is to - from, 0 if that is negative, saturating.
func elapsed(from, to int64) int64 {
	if to <= from {
		return 0
	}
	if d := to - from; d > 0 {
		return d
	}
	return math.MaxInt64
}
