package source

import (
	"math/rand/v2"
	"time"
)

// Backoff configures the wait between attempts: Initial, doubled after each failure up to Max. Each wait is randomized
// by up to Factor of itself, so that clients of one server do not reconnect at the same time.
type Backoff struct {
	Initial time.Duration // default 10 s
	Max     time.Duration // default 60 s
	Factor  float64       // default 0.5; at most 1
	Steady  bool          // no randomness
}

func (b Backoff) withDefaults() Backoff {
	if b.Initial <= 0 {
		b.Initial = 10 * time.Second
	}
	if b.Max <= 0 {
		b.Max = time.Minute
	}
	b.Max = max(b.Max, b.Initial)
	if b.Factor <= 0 {
		b.Factor = 0.5
	}
	b.Factor = min(b.Factor, 1)
	return b
}

// after returns the wait after a number of consecutive failures (at least one). random is in [0, 1).
func (b Backoff) after(failures int, random float64) time.Duration {
	d := b.Initial
	for range min(failures-1, 62) {
		if d >= b.Max/2 {
			d = b.Max
			break
		}
		d *= 2
	}
	return b.spread(min(d, b.Max), random)
}

func (b Backoff) spread(d time.Duration, random float64) time.Duration {
	if b.Steady {
		return d
	}
	return d + time.Duration(b.Factor*(2*random-1)*float64(d))
}

func chance() float64 { return rand.Float64() }
