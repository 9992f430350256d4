package stats

import "github.com/prometheus/client_golang/prometheus"

// metrics tell of the statistics themselves.
type metrics struct {
	series   prometheus.Gauge
	overflow prometheus.Counter
	unshown  prometheus.Counter
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
		unshown: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "keyward_stats_unshown_total",
			Help: "Statistics that Prometheus is not shown because a mapping gives them a name that is taken or not allowed.",
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "keyward_statsd_failures_total",
			Help: "Failed connections and writes to statsd.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.series, m.overflow, m.unshown, m.failures)
	}
	return m
}
