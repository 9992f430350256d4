package peer

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// result says what became of a group of questions that another member was to answer.
type result uint8

const (
	pending     result = iota
	ok                 // it answered all of them
	notOwner           // it owns at least one of them as little as we do
	timeout            // no answer before the deadline
	refused            // it will not answer such questions
	queueFull          // too much waits to be sent to it
	broken             // the stream broke after the questions may have left
	unreachable        // no live stream to it
	results
)

func (r result) String() string {
	return [results]string{"pending", "ok", "not_owner", "timeout", "refused", "queue_full", "broken", "unreachable"}[r]
}

type metrics struct {
	questions [results]prometheus.Counter
	duration  prometheus.Histogram
	batch     prometheus.Histogram
	members   prometheus.Gauge
	connected prometheus.Gauge
	inbound   prometheus.Gauge
	refusals  *prometheus.CounterVec
	steps     prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	m := &metrics{
		duration: f.NewHistogram(prometheus.HistogramOpts{
			Name:                            "keyward_peer_rpc_duration_seconds",
			Help:                            "Time from queueing questions for another member to its answer.",
			Buckets:                         []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .5, 1},
			NativeHistogramBucketFactor:     1.2,
			NativeHistogramMaxBucketNumber:  64,
			NativeHistogramMinResetDuration: time.Hour,
		}),
		batch: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "keyward_peer_batch_size",
			Help:    "Questions sent to another member in one write.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 12),
		}),
		members: f.NewGauge(prometheus.GaugeOpts{
			Name: "keyward_peer_members",
			Help: "Other members that are dialled; all should be connected.",
		}),
		connected: f.NewGauge(prometheus.GaugeOpts{
			Name: "keyward_peer_connected",
			Help: "Members that questions can be sent to: live streams.",
		}),
		inbound: f.NewGauge(prometheus.GaugeOpts{
			Name: "keyward_peer_inbound",
			Help: "Streams on which other members ask this one.",
		}),
		refusals: f.NewCounterVec(prometheus.CounterOpts{
			Name: "keyward_peer_inbound_refused_total",
			Help: "Connections to the peer port that were turned away, by reason.",
		}, []string{"reason"}),
		steps: f.NewCounter(prometheus.CounterOpts{
			Name: "keyward_clock_steps_total",
			Help: "Times the wall clock was so far off that this member's clock jumped to it.",
		}),
	}
	questions := f.NewCounterVec(prometheus.CounterOpts{
		Name: "keyward_peer_questions_total",
		Help: "Questions that other members were to answer, by result.",
	}, []string{"result"})
	for r := ok; r < results; r++ {
		m.questions[r] = questions.WithLabelValues(r.String())
	}
	return m
}
