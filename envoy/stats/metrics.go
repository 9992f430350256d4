package stats

import "github.com/prometheus/client_golang/prometheus"

// metrics tell of the statistics themselves.
type metrics struct {
	series   prometheus.Gauge
	overflow prometheus.Counter
	failures prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		series: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "keyward_stats_series",
			Help: "Series of ratelimit_* statistics whose names came with requests, against their budget.",
		}),
		overflow: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "keyward_stats_overflow_total",
			Help: "Times a key or an unknown domain had to share a series because the budget was spent.",
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "keyward_statsd_failures_total",
			Help: "Failed connections and writes to statsd.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.series, m.overflow, m.failures)
	}
	return m
}
