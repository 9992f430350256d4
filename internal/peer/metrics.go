package peer

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	dto "github.com/prometheus/client_model/go"
)

// forwardStatus is the result of forwarding a group of requests, or of sending a message.
type forwardStatus uint8

const (
	forwardPending     forwardStatus = iota
	forwardOK                        // the member decided all requests
	forwardNotOwner                  // the member does not own at least one of the keys
	forwardTimeout                   // no reply before the deadline from a silent member
	forwardLate                      // no reply before the deadline from a member that is alive
	forwardRefused                   // the member does not decide such requests
	forwardShed                      // too many requests wait for the member, which is alive
	forwardQueueFull                 // too many requests wait for the member
	forwardBroken                    // the stream broke after the requests may have been sent
	forwardUnreachable               // there is no stream to the member
	forwardStatuses
)

func (r forwardStatus) String() string {
	return [forwardStatuses]string{
		"pending", "ok", "not_owner", "timeout", "late", "refused", "shed", "queue_full", "broken", "unreachable",
	}[r]
}

// waitStatus is the end of the wait for a pending result.
type waitStatus uint8

const (
	waitResolved waitStatus = iota
	waitExpired             // the deadline came first
	waitOverflow            // too many results were pending
	waitStatuses
)

func (r waitStatus) String() string {
	return [waitStatuses]string{"resolved", "expired", "overflow"}[r]
}

type metrics struct {
	forwardMetrics
	connectionMetrics
	clockMetrics
	loadMetrics
	handoffMetrics
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	return &metrics{
		forwardMetrics: newForwardMetrics(f), connectionMetrics: newConnectionMetrics(f),
		clockMetrics: newClockMetrics(f), loadMetrics: newLoadMetrics(f), handoffMetrics: newHandoffMetrics(f),
	}
}

// forwardMetrics are those of requests that this member does not decide at once.
type forwardMetrics struct {
	forwarded [forwardStatuses]prometheus.Counter
	duration  prometheus.Histogram
	batch     prometheus.Histogram
	waits     [waitStatuses]prometheus.Counter
}

func newForwardMetrics(f promauto.Factory) (m forwardMetrics) {
	m.duration = f.NewHistogram(prometheus.HistogramOpts{
		Name:                            "keyward_peer_rpc_duration_seconds",
		Help:                            "Time from queueing requests for another member to its reply.",
		Buckets:                         []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .5, 1},
		NativeHistogramBucketFactor:     1.2,
		NativeHistogramMaxBucketNumber:  64,
		NativeHistogramMinResetDuration: time.Hour,
	})
	m.batch = f.NewHistogram(prometheus.HistogramOpts{
		Name:    "keyward_peer_batch_size",
		Help:    "Requests sent to another member in one write.",
		Buckets: prometheus.ExponentialBuckets(1, 2, 12),
	})
	forwarded := f.NewCounterVec(prometheus.CounterOpts{
		Name: "keyward_peer_questions_total",
		Help: "Requests for keys that other members own, by result of forwarding them.",
	}, []string{"result"})
	for r := forwardOK; r < forwardStatuses; r++ {
		m.forwarded[r] = forwarded.WithLabelValues(r.String())
	}
	waits := f.NewCounterVec(prometheus.CounterOpts{
		Name: "keyward_answers_waited_total",
		Help: "Decisions that waited until another member had confirmed the replica or released the key, by result.",
	}, []string{"result"})
	for r := range waitStatuses {
		m.waits[r] = waits.WithLabelValues(r.String())
	}
	return m
}

// connectionMetrics are those of streams.
type connectionMetrics struct {
	members, connected, inbound prometheus.Gauge
	refusals                    *prometheus.CounterVec
}

func newConnectionMetrics(f promauto.Factory) connectionMetrics {
	return connectionMetrics{
		members: newGauge(f, "keyward_peer_members", "Other members to connect to. All should be connected."),
		connected: newGauge(f, "keyward_peer_connected",
			"Members with a live stream, to which requests can be forwarded."),
		inbound: newGauge(f, "keyward_peer_inbound", "Streams on which other members forward requests to this one."),
		refusals: f.NewCounterVec(prometheus.CounterOpts{
			Name: "keyward_peer_inbound_refused_total",
			Help: "Connections to the peer port that were rejected or closed, by reason.",
		}, []string{"reason"}),
	}
}

// clockMetrics are those of this member's clocks.
type clockMetrics struct {
	clockSteps  prometheus.Counter
	revocations *prometheus.CounterVec
}

func newClockMetrics(f promauto.Factory) clockMetrics {
	m := clockMetrics{
		clockSteps: f.NewCounter(prometheus.CounterOpts{
			Name: "keyward_clock_steps_total",
			Help: "Times this member's clock stepped to the wall clock because the difference was too large.",
		}),
		revocations: f.NewCounterVec(prometheus.CounterOpts{
			Name: "keyward_clock_fences_total",
			Help: "Times this member revoked its ownership because its clocks had stopped or were set, by reason.",
		}, []string{"reason"}),
	}
	for _, reason := range []string{revokedStep, revokedSuspend, revokedPeers} {
		m.revocations.WithLabelValues(reason)
	}
	return m
}

// loadMetrics are those of this member's load and capacity.
type loadMetrics struct {
	served                   prometheus.Counter
	capacity, load, fallback prometheus.Gauge
}

func newLoadMetrics(f promauto.Factory) loadMetrics {
	return loadMetrics{
		served: f.NewCounter(prometheus.CounterOpts{
			Name: "keyward_owner_requests_total",
			Help: "Requests that other members forwarded to this one as the keys' owner.",
		}),
		capacity: newGauge(f, "keyward_capacity_questions",
			"Estimated requests a second that this machine can decide, from the processor time that they take."),
		load: newGauge(f, "keyward_load_questions",
			"Requests a second that the processor time of this process is equivalent to."),
		fallback: newGauge(f, "keyward_fallback_seconds",
			"Time for which this member has decided by degraded policies without a break of 10 s."),
	}
}

// handoffMetrics are those of the messages between members.
type handoffMetrics struct {
	keysSent, keysReceived prometheus.Counter
	handoff                prometheus.Histogram
	incomplete             prometheus.Counter
	batches                *prometheus.CounterVec
	refused                *prometheus.CounterVec
	skew                   *prometheus.GaugeVec
}

func newHandoffMetrics(f promauto.Factory) handoffMetrics {
	keys := f.NewCounterVec(prometheus.CounterOpts{
		Name: "keyward_handoff_keys_total",
		Help: "Counters moved to their next owners, without replicas, by direction.",
	}, []string{"direction"})
	return handoffMetrics{
		keysSent: keys.WithLabelValues("sent"), keysReceived: keys.WithLabelValues("received"),
		handoff: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "keyward_handoff_seconds",
			Help:    "Time from connecting to a member until its last counter was sent.",
			Buckets: prometheus.ExponentialBuckets(.001, 2, 16),
		}),
		incomplete: f.NewCounter(prometheus.CounterOpts{
			Name: "keyward_handoff_incomplete_total",
			Help: "Transfers that failed. The remaining counters are sent again.",
		}),
		batches: f.NewCounterVec(prometheus.CounterOpts{
			Name: "keyward_replica_batches_total",
			Help: "Batches of replicas for the counters' successors, by result.",
		}, []string{"result"}),
		refused: f.NewCounterVec(prometheus.CounterOpts{
			Name: "keyward_peer_messages_refused_total",
			Help: "Messages from other members that were refused and had no effect, by reason.",
		}, []string{"reason"}),
		skew: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "keyward_peer_skew_seconds",
			Help: "Difference of another member's clock to this member's clock, measured with heartbeats.",
		}, []string{"member"}),
	}
}

// replicas returns the counter for batches of replicas with the given status: queued, not queued, or acknowledged.
func (m *handoffMetrics) replicas(status forwardStatus) prometheus.Counter {
	switch status {
	case forwardPending:
		return m.batches.WithLabelValues("sent")
	case forwardOK:
		return m.batches.WithLabelValues("acknowledged")
	}
	return m.batches.WithLabelValues(status.String())
}

func newGauge(f promauto.Factory, name, help string) prometheus.Gauge {
	return f.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
}

// CountersSent returns the number of counters sent to their next owners since the start, without replicas.
func (p *Peer) CountersSent() uint64 {
	var m dto.Metric
	if err := p.m.keysSent.Write(&m); err != nil {
		return 0
	}
	return uint64(m.GetCounter().GetValue())
}
