package peer

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	dto "github.com/prometheus/client_model/go"
)

// forwardStatus says what became of a group of questions that another member was to answer.
type forwardStatus uint8

const (
	forwardPending     forwardStatus = iota
	forwardOK                        // it answered all of them
	forwardNotOwner                  // it owns at least one of them as little as we do
	forwardTimeout                   // no answer before the deadline, from a member that was silent
	forwardLate                      // no answer before the deadline, from a member that is alive
	forwardRefused                   // it will not answer such questions
	forwardShed                      // too much waits for it, and it is alive
	forwardQueueFull                 // too much waits for it
	forwardBroken                    // the stream broke after the questions may have left
	forwardUnreachable               // no live stream to it
	forwardStatuses
)

func (r forwardStatus) String() string {
	return [forwardStatuses]string{"pending", "ok", "not_owner", "timeout", "late", "refused", "shed", "queue_full", "broken", "unreachable"}[r]
}

type metrics struct {
	forwarded   [forwardStatuses]prometheus.Counter
	duration    prometheus.Histogram
	batch       prometheus.Histogram
	members     prometheus.Gauge
	connected   prometheus.Gauge
	inbound     prometheus.Gauge
	refusals    *prometheus.CounterVec
	clockSteps  prometheus.Counter
	revocations *prometheus.CounterVec
	waits       [waitStatuses]prometheus.Counter

	loadMetrics
	handoffMetrics
}

// loadMetrics are of what this member has to do, and whether it can.
type loadMetrics struct {
	served                   prometheus.Counter
	capacity, load, fallback prometheus.Gauge
}

// handoffMetrics are of the messages between members.
type handoffMetrics struct {
	keysSent, keysReceived prometheus.Counter
	handoff                prometheus.Histogram
	incomplete             prometheus.Counter
	batches                *prometheus.CounterVec
	refused                *prometheus.CounterVec
	skew                   *prometheus.GaugeVec
}

// waitStatus says what became of an answer that had to wait.
type waitStatus uint8

const (
	waitResolved waitStatus = iota
	waitExpired             // its asker's deadline came first
	waitOverflow            // too many were waited for
	waitStatuses
)

func (r waitStatus) String() string {
	return [waitStatuses]string{"resolved", "expired", "overflow"}[r]
}

// replicas counts a batch of copies: queued, refused by the queue, or acknowledged.
func (m *handoffMetrics) replicas(r forwardStatus) prometheus.Counter {
	switch r {
	case forwardPending:
		return m.batches.WithLabelValues("sent")
	case forwardOK:
		return m.batches.WithLabelValues("acknowledged")
	}
	return m.batches.WithLabelValues(r.String())
}

func newHandoffMetrics(f promauto.Factory) handoffMetrics {
	keys := f.NewCounterVec(prometheus.CounterOpts{
		Name: "keyward_handoff_keys_total",
		Help: "Counters that were moved to their next owners, copies apart, by direction.",
	}, []string{"direction"})
	return handoffMetrics{
		keysSent: keys.WithLabelValues("sent"), keysReceived: keys.WithLabelValues("received"),
		handoff: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "keyward_handoff_seconds",
			Help:    "Time from connecting to a member to its last counter being sent.",
			Buckets: prometheus.ExponentialBuckets(.001, 2, 16),
		}),
		incomplete: f.NewCounter(prometheus.CounterOpts{
			Name: "keyward_handoff_incomplete_total",
			Help: "Transfers that broke off; what is still owed is sent anew.",
		}),
		batches: f.NewCounterVec(prometheus.CounterOpts{
			Name: "keyward_replica_batches_total",
			Help: "Batches of counters' copies for their heirs, by result.",
		}, []string{"result"}),
		refused: f.NewCounterVec(prometheus.CounterOpts{
			Name: "keyward_peer_messages_refused_total",
			Help: "Messages from other members that changed nothing, by reason.",
		}, []string{"reason"}),
		skew: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "keyward_peer_skew_seconds",
			Help: "Another member's clock less this one's, measured by heartbeats.",
		}, []string{"member"}),
	}
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
		clockSteps: f.NewCounter(prometheus.CounterOpts{
			Name: "keyward_clock_steps_total",
			Help: "Times the wall clock was so far off that this member's clock jumped to it.",
		}),
		revocations: f.NewCounterVec(prometheus.CounterOpts{
			Name: "keyward_clock_fences_total",
			Help: "Times this member gave up its tokens because its clocks stood still or were set, by reason.",
		}, []string{"reason"}),
	}
	for _, reason := range []string{revokedStep, revokedSuspend, revokedPeers} {
		m.revocations.WithLabelValues(reason)
	}
	questions := f.NewCounterVec(prometheus.CounterOpts{
		Name: "keyward_peer_questions_total",
		Help: "Questions that other members were to answer, by result.",
	}, []string{"result"})
	for r := forwardOK; r < forwardStatuses; r++ {
		m.forwarded[r] = questions.WithLabelValues(r.String())
	}
	waits := f.NewCounterVec(prometheus.CounterOpts{
		Name: "keyward_answers_waited_total",
		Help: "Answers that had to wait until another member had a copy of the charge or had handed the key over, by result.",
	}, []string{"result"})
	for r := range waitStatuses {
		m.waits[r] = waits.WithLabelValues(r.String())
	}
	m.loadMetrics, m.handoffMetrics = newLoadMetrics(f), newHandoffMetrics(f)
	return m
}

func newLoadMetrics(f promauto.Factory) loadMetrics {
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	return loadMetrics{
		served: f.NewCounter(prometheus.CounterOpts{
			Name: "keyward_owner_requests_total",
			Help: "Questions that other members asked this one as the keys' owner.",
		}),
		capacity: gauge("keyward_capacity_questions", "Questions a second that this machine could decide, by the processor time that they take."),
		load:     gauge("keyward_load_questions", "Questions a second that this process's processor time would be worth."),
		fallback: gauge("keyward_fallback_seconds", "For how long this member has answered by degraded policies without a break of 10 s."),
	}
}

// CountersSent returns the number of counters sent to their next owners since the start, without replicas.
func (p *Peer) CountersSent() uint64 {
	var m dto.Metric
	if err := p.m.keysSent.Write(&m); err != nil {
		return 0
	}
	return uint64(m.GetCounter().GetValue())
}
