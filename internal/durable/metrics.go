package durable

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are those of the journal.
type metrics struct {
	up      prometheus.Gauge
	sync    prometheus.Histogram
	records prometheus.Counter
	bytes   prometheus.Gauge
	bad     prometheus.Counter
	loaded  prometheus.Counter
}

// newMetrics registers the metrics with reg; nil: with none.
func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	return &metrics{
		up: f.NewGauge(prometheus.GaugeOpts{
			Name: "keyward_journal_up",
			Help: "1 if the journal can be written, or there was nothing to write yet; 0 while counters are only in memory.",
		}),
		sync: f.NewHistogram(prometheus.HistogramOpts{
			Name:                            "keyward_journal_sync_seconds",
			Help:                            "Time in which the disk makes records durable.",
			Buckets:                         []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 2, 10},
			NativeHistogramBucketFactor:     1.2,
			NativeHistogramMaxBucketNumber:  64,
			NativeHistogramMinResetDuration: time.Hour,
		}),
		records: f.NewCounter(prometheus.CounterOpts{
			Name: "keyward_journal_records_total",
			Help: "Counters written to the journal.",
		}),
		bytes: f.NewGauge(prometheus.GaugeOpts{
			Name: "keyward_journal_bytes",
			Help: "Size of the journal's files.",
		}),
		bad: f.NewCounter(prometheus.CounterOpts{
			Name: "keyward_journal_bad_blocks_total",
			Help: "Blocks of former journals that were damaged or missing, and were skipped.",
		}),
		loaded: f.NewCounter(prometheus.CounterOpts{
			Name: "keyward_journal_loaded_counters",
			Help: "Counters loaded from the journals of former boots since the start.",
		}),
	}
}

func (m *metrics) setUp(up bool) {
	if m.up.Set(0); up {
		m.up.Set(1)
	}
}
