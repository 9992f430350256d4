package stats

import "github.com/prometheus/client_golang/prometheus"

// metrics describe the statistics themselves.
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
			Help: "Series of ratelimit_* statistics whose names contain parts of requests; their number is limited.",
		}),
		overflow: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "keyward_stats_overflow_total",
			Help: "Times that a key or an unknown domain shared a series because the limit on series was reached.",
		}),
		unshown: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "keyward_stats_unshown_total",
			Help: "Statistics that are not exported to Prometheus because their mapping uses a name that is taken or reserved.",
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
