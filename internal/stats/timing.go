package stats

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/statsd_exporter/pkg/mapper"
)

// timing exports a timer to Prometheus as a histogram or summary.
type timing struct {
	show func() prometheus.Metric
	to   func(time.Duration)
	seen atomic.Bool // whether there is something to export
}

func (t *timing) observe(d time.Duration) {
	t.to(d)
	if !t.seen.Load() {
		t.seen.Store(true)
	}
}

// timer returns where a timer is exported, or nil. Timers that map to the same series share its histogram.
func (c *Collector) timer(name string) observer {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, shown, labels := c.resolve(name, mapper.MetricTypeObserver)
	if m == nil {
		return nil
	}
	kind := c.observerKind(m)
	f, ok := c.claim(shown, kind, m.HelpText)
	if !ok {
		c.store.metrics.unshown.Inc()
		return nil
	}
	id := identity(shown, labels)
	if t, ok := c.timings[id]; ok {
		return t
	}
	scale := 1.0 // relative to milliseconds
	if m.Scale.Set {
		scale = m.Scale.Val
	}
	t := new(timing)
	if kind == kindHistogram {
		t.histogram(c.histogram(m, shown, f.help, labels), scale)
	} else {
		s := prometheus.NewSummary(c.summary(m, shown, f.help, labels))
		t.other(s, s, scale)
	}
	c.timings[id] = t
	return t
}

func (t *timing) histogram(o prometheus.HistogramOpts, scale float64) {
	if o.NativeHistogramBucketFactor > 1 || scale <= 0 {
		h := prometheus.NewHistogram(o)
		t.other(h, h, scale)
		return
	}
	h := newHistogram(o, float64(time.Millisecond)/scale)
	t.show, t.to = h.metric, h.Observe
}

// other exports the timer in one of Prometheus's own metrics.
func (t *timing) other(m prometheus.Metric, to prometheus.Observer, scale float64) {
	t.show = func() prometheus.Metric { return m }
	t.to = func(d time.Duration) { to.Observe(float64(d) / float64(time.Millisecond) * scale) }
}

func (c *Collector) observerKind(m *mapper.MetricMapping) string {
	kind := m.ObserverType
	if kind == mapper.ObserverTypeDefault {
		kind = c.mapper.Defaults.ObserverType
	}
	if kind == mapper.ObserverTypeHistogram {
		return kindHistogram
	}
	return kindSummary
}

func (c *Collector) histogram(m *mapper.MetricMapping, name, help string,
	labels map[string]string) prometheus.HistogramOpts {
	o := prometheus.HistogramOpts{Name: name, Help: help, ConstLabels: labels,
		Buckets: c.mapper.Defaults.HistogramOptions.Buckets}
	if h := m.HistogramOptions; h != nil {
		if len(h.Buckets) > 0 {
			o.Buckets = h.Buckets
		}
		// Native buckets cost several times as much as classic ones, so they are opt-in.
		o.NativeHistogramBucketFactor = h.NativeHistogramBucketFactor
		o.NativeHistogramMaxBucketNumber = h.NativeHistogramMaxBuckets
	}
	return o
}

func (c *Collector) summary(m *mapper.MetricMapping, name, help string,
	labels map[string]string) prometheus.SummaryOpts {
	so := c.mapper.Defaults.SummaryOptions
	if m.SummaryOptions != nil {
		so = *m.SummaryOptions
	}
	if len(so.Quantiles) == 0 {
		so.Quantiles = c.mapper.Defaults.SummaryOptions.Quantiles
	}
	objectives := map[float64]float64{}
	for _, q := range so.Quantiles {
		objectives[q.Quantile] = q.Error
	}
	return prometheus.SummaryOpts{
		Name: name, Help: help, ConstLabels: labels, Objectives: objectives,
		MaxAge: so.MaxAge, AgeBuckets: so.AgeBuckets, BufCap: so.BufCap,
	}
}
