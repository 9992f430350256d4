package stats

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// DurationHistogram is a classic Prometheus histogram of durations. Observing takes two atomic integer additions.
// Prometheus's own histogram takes three and a compare-and-swap of a float, which is many times slower on several
// cores. In return, a scrape may miss a concurrent observation in either the sum or the buckets. It is safe for
// concurrent use.
type DurationHistogram struct {
	desc   *prometheus.Desc
	unit   float64         // nanoseconds per unit
	bounds []float64       // upper bounds, inclusive, in units
	limits []time.Duration // the same as durations
	counts []atomic.Uint64 // not cumulative; the last one is above all bounds
	sum    atomic.Int64    // nanoseconds
}

// NewDurationHistogram returns a histogram with the name, help, labels and buckets of o. The buckets are in the given
// unit and ascend.
func NewDurationHistogram(o prometheus.HistogramOpts, unit time.Duration) *DurationHistogram {
	return newHistogram(o, float64(unit))
}

func newHistogram(o prometheus.HistogramOpts, unit float64) *DurationHistogram {
	h := &DurationHistogram{desc: prometheus.NewDesc(o.Name, o.Help, nil, o.ConstLabels), unit: unit, bounds: o.Buckets}
	if len(h.bounds) == 0 {
		h.bounds = prometheus.DefBuckets
	}
	if last := len(h.bounds) - 1; math.IsInf(h.bounds[last], 1) {
		h.bounds = h.bounds[:last]
	}
	for _, b := range h.bounds {
		h.limits = append(h.limits, time.Duration(math.Round(min(b*unit, math.MaxInt64/2))))
	}
	h.counts = make([]atomic.Uint64, len(h.limits)+1)
	return h
}

// Observe adds a duration.
func (h *DurationHistogram) Observe(d time.Duration) {
	i := 0
	for i < len(h.limits) && d > h.limits[i] {
		i++
	}
	h.counts[i].Add(1)
	h.sum.Add(int64(d))
}

// Describe implements prometheus.Collector.
func (h *DurationHistogram) Describe(ch chan<- *prometheus.Desc) { ch <- h.desc }

// Collect implements prometheus.Collector.
func (h *DurationHistogram) Collect(ch chan<- prometheus.Metric) { ch <- h.metric() }

func (h *DurationHistogram) metric() prometheus.Metric {
	buckets, n := make(map[float64]uint64, len(h.bounds)), uint64(0)
	for i := range h.counts {
		n += h.counts[i].Load()
		if i < len(h.bounds) {
			buckets[h.bounds[i]] = n
		}
	}
	return prometheus.MustNewConstHistogram(h.desc, n, float64(h.sum.Load())/h.unit, buckets)
}
