package loadtest

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// The resolution of a Histogram: 1 ns to 1000 s, with two significant digits.
const (
	longest = int64(1000 * time.Second)
	digits  = 2
)

// Histogram counts durations in bounded memory. The zero value is empty. It is not safe for concurrent use.
type Histogram struct {
	h   *hdrhistogram.Histogram
	max time.Duration // exact
}

// Add counts d. Durations above 1000 s count as 1000 s.
func (h *Histogram) Add(d time.Duration) {
	if h.h == nil {
		h.h = hdrhistogram.New(1, longest, digits)
	}
	h.max = max(h.max, d)
	_ = h.h.RecordValue(min(max(int64(d), 1), longest)) // fails only for values out of range
}

// Merge adds what o has counted.
func (h *Histogram) Merge(o *Histogram) {
	if o.h == nil {
		return
	}
	if h.h == nil {
		h.h = hdrhistogram.New(1, longest, digits)
	}
	h.h.Merge(o.h)
	h.max = max(h.max, o.max)
}

// Count returns how many durations were added.
func (h *Histogram) Count() int {
	if h.h == nil {
		return 0
	}
	return int(h.h.TotalCount())
}

// Quantile returns the duration that a share q of those added do not exceed, or 0 if there are none.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.h == nil {
		return 0
	}
	return min(time.Duration(h.h.ValueAtQuantile(100*q)), h.max)
}
