// Package limit decides whether hits fit a limit.
//
// Everything in it is a value. A [Rule] receives a [State] and a time, and returns a [Decision] and the changed State.
// A [Tally] is the short form of the State of a fixed window that only one member charges. States of several members
// can be merged. The package has no clock, no locks and no I/O. Times are nanoseconds since the Unix epoch and come
// from the caller.
package limit

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Algorithm is the method by which a rule spends its limit over time. The numbers are part of the peer protocol and of
// the counter's key, so they never change.
type Algorithm uint8

// The algorithms.
const (
	// FixedWindow counts hits in windows that are aligned to the Unix epoch, as envoyproxy/ratelimit does.
	FixedWindow Algorithm = 0
	// SlidingWindow adds, to the count of the current window, the part of the previous one that a window ending now
	// overlaps.
	SlidingWindow Algorithm = 1
	// SlidingLog counts the hits of the last Window individually, or in 64ths of the Window if there are many.
	SlidingLog Algorithm = 2
	// TokenBucket continuously refills Limit hits per Window and holds Burst of them.
	TokenBucket Algorithm = 3
	// LeakyBucket continuously drains Limit hits per Window and overflows above Burst. It has no queue, so it decides
	// as a TokenBucket does.
	LeakyBucket Algorithm = 4
	// InFlight counts the hits that are in use, such as open requests: as a SlidingLog, but hits that do not fit are not
	// charged. A hit counts until it is given back, and at most for one Window.
	InFlight Algorithm = 5

	algorithms = 6
)

// ClockTolerance is how far the clocks of two members may differ. A window that starts within that time already counts,
// if a merged State has charges in it.
const ClockTolerance = 250 * time.Millisecond

// maxDrainTime is the longest time that a bucket may drain. It is far below the range of times, so levels never
// saturate in practice.
const maxDrainTime = int64(100 * 365 * 24 * time.Hour)

var names = [algorithms]string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "leaky_bucket", "in_flight"}

// String returns the algorithm's name in rules.
func (a Algorithm) String() string {
	if int(a) < len(names) {
		return names[a]
	}
	return fmt.Sprintf("algorithm %d", uint8(a))
}

// ParseAlgorithm returns the algorithm with that name.
func ParseAlgorithm(name string) (a Algorithm, ok bool) {
	for i, n := range names {
		if n == name {
			return Algorithm(i), true
		}
	}
	return 0, false
}

// Bucket reports whether a keeps a level that drains, instead of counts of windows.
func (a Algorithm) Bucket() bool { return a == TokenBucket || a == LeakyBucket }

// Log reports whether a keeps the time of each hit.
func (a Algorithm) Log() bool { return a == SlidingLog || a == InFlight }

// Rule is one limit: at most Limit hits per Window. It is comparable and immutable. An unknown Algorithm means
// FixedWindow.
type Rule struct {
	Window    time.Duration // length of a window; 0 or less means one second
	Limit     uint32        // hits per window; 0 refuses everything
	Burst     uint32        // hits that a bucket holds; 0 means Limit; windows ignore it
	Algorithm Algorithm
}

// Validate returns an error if the rule is unusable.
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

// Depth returns the count up to which hits fit: Burst for buckets, otherwise Limit. A Decision is Over if After exceeds
// it.
func (r Rule) Depth() uint32 {
	if r.Algorithm.Bucket() && r.Burst > 0 && r.Limit > 0 {
		return r.Burst
	}
	return r.Limit
}

// Span returns how long a counter of r remembers hits: the Window, or the time in which a full bucket drains.
func (r Rule) Span() time.Duration {
	if r.Algorithm.Bucket() {
		return time.Duration(r.spanOf(uint64(r.Depth())))
	}
	return r.Window
}

// Unreplicated returns U, the number of admitted hits of one counter that may be unreplicated: 1% of the Limit, and at
// least one.
func (r Rule) Unreplicated() uint64 { return uint64(min(r.Limit, max(1, r.Limit/100))) }

// Decision is the result of one request.
type Decision struct {
	Before uint64 // count before the hits; for a bucket its level in hits, rounded up
	After  uint64 // count with the hits, saturating at math.MaxUint64
	// Reset is in whole seconds, rounded up, and at least one. For a FixedWindow it is the time until the window ends.
	// For the others, if Over, it is the time until one more hit fits, without further requests. Otherwise it is the
	// time until a bucket is empty, the oldest count of a log expires, or the window ends that the previous
	// count of a SlidingWindow affects.
	Reset     time.Duration
	Remaining uint32 // hits left; 0 if Over
	Over      bool   // After exceeds the rule's Depth
}

func (r Rule) width() int64 {
	if r.Window <= 0 {
		return int64(time.Second)
	}
	return int64(r.Window)
}

// Index returns the index of the window that contains now.
func (r Rule) Index(now int64) int64 {
	w := r.width()
	i := now / w
	if now%w < 0 {
		i--
	}
	return i
}

// End returns the end of window index, in Unix nanoseconds.
func (r Rule) End(index int64) int64 { return (index + 1) * r.width() }

// start returns the start of window index, saturating.
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

// fits returns the Decision for hits at count before, without its Reset.
func (r Rule) fits(before, hits uint64) Decision {
	d := Decision{Before: before, After: SaturatingAdd(before, hits)}
	depth := uint64(r.Depth())
	if d.Over = d.After > depth; !d.Over {
		d.Remaining = uint32(depth - d.After)
	}
	return d
}

// WholeSeconds returns left nanoseconds in whole seconds, rounded up, and at least one. Values near the limits of int64
// come only from broken clocks; they are limited so that the result stays positive.
func WholeSeconds(left int64) time.Duration {
	left = min(max(1, left), math.MaxInt64-int64(time.Second))
	return (time.Duration(left) + time.Second - 1).Truncate(time.Second)
}

// SaturatingAdd returns a+b, or the largest uint64 if the sum is larger.
func SaturatingAdd(a, b uint64) uint64 {
	if s := a + b; s >= a {
		return s
	}
	return math.MaxUint64
}

// addTime returns t + d, saturating; d is not negative.
func addTime(t, d int64) int64 {
	if s := t + d; s >= t {
		return s
	}
	return math.MaxInt64
}

// subTime returns t - d, saturating; d is not negative.
func subTime(t, d int64) int64 {
	if s := t - d; s <= t {
		return s
	}
	return math.MinInt64
}

// elapsed returns to - from, saturating, or 0 if that is negative.
func elapsed(from, to int64) int64 {
	if to <= from {
		return 0
	}
	if d := to - from; d > 0 {
		return d
	}
	return math.MaxInt64
}
