package loadtest

import (
	"math/bits"
	"time"
)

// halves is how many buckets each power of two is divided into: a quantile is at most 1/64 too high.
const halves = 64

// Histogram counts durations. Its memory is bounded, whatever it counts. The zero value is empty; it is not safe for concurrent use.
type Histogram struct {
	counts []uint64
	n      uint64
	max    time.Duration
}

// bucket is the number of the bucket of d: below 128 ns each has its own, then 64 share a power of two.
func bucket(d time.Duration) int {
	v := uint64(max(d, 0))
	e := max(0, bits.Len64(v)-7)
	return e*halves + int(v>>e)
}

// upper is the greatest duration of bucket i.
func upper(i int) time.Duration {
	if i < 2*halves {
		return time.Duration(i)
	}
	e := i/halves - 1
	return time.Duration((i-e*halves+1)<<e - 1)
}

// Add counts d.
func (h *Histogram) Add(d time.Duration) {
	i := bucket(d)
	if i >= len(h.counts) {
		h.counts = append(h.counts, make([]uint64, i+1-len(h.counts))...)
	}
	h.counts[i]++
	h.n++
	h.max = max(h.max, d)
}

// Merge adds what o has counted.
func (h *Histogram) Merge(o *Histogram) {
	if len(o.counts) > len(h.counts) {
		h.counts = append(h.counts, make([]uint64, len(o.counts)-len(h.counts))...)
	}
	for i, n := range o.counts {
		h.counts[i] += n
	}
	h.n += o.n
	h.max = max(h.max, o.max)
}

// Count is how many durations were added.
func (h *Histogram) Count() int { return int(h.n) }

// Quantile is the duration that a share q of those added do not exceed, by nearest rank; 0 of none.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.n == 0 {
		return 0
	}
	rank := min(max(uint64(q*float64(h.n)+0.999999), 1), h.n)
	for i, n := range h.counts {
		if n >= rank {
			return min(upper(i), h.max)
		}
		rank -= n
	}
	return h.max
}
