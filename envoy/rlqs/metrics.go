package rlqs

import "github.com/prometheus/client_golang/prometheus"

// rejectReason is why something of an Envoy was rejected.
type rejectReason uint8

const (
	rejectMalformed rejectReason = iota // a message; the stream ends
	rejectStreams                       // a stream, because there are too many
	rejectBuckets                       // a report of an id, because its stream has too many
	rejectOversize                      // an id that is too long
	rejectUnread                        // a stream whose Envoy does not read or answer
	rejectReasons
)

// quotaMetrics are the metrics of a QuotaServer.
type quotaMetrics struct {
	rejected  [rejectReasons]prometheus.Counter
	unmatched [FitUnlimited]prometheus.Counter
}

func newQuotaMetrics(reg prometheus.Registerer, s *QuotaServer) *quotaMetrics {
	m := &quotaMetrics{}
	rejected := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "keyward_quota_rejected_total",
		Help: "Faults of Envoys on streams of the rate limit quota service: malformed messages, too many streams, reports of buckets " +
			"above the number that a stream may have, ids that are too long, and streams whose Envoy did not read.",
	}, []string{"reason"})
	for i, name := range [rejectReasons]string{"malformed", "streams", "buckets", "oversize", "unread"} {
		m.rejected[i] = rejected.WithLabelValues(name)
	}
	unmatched := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "keyward_quota_unmatched_total",
		Help: "Bucket ids of Envoys that fit no rule (none) or several (ambiguous), which are admitted without a limit, and those of a rule with another mechanism than quota (owner), which get no assignment. An id counts " +
			"once per stream and version of the rules.",
	}, []string{"fit"})
	for fit := range FitUnlimited {
		m.unmatched[fit] = unmatched.WithLabelValues(fit.String())
	}
	if reg != nil {
		reg.MustRegister(rejected, unmatched, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "keyward_quota_streams",
			Help: "Open streams of the rate limit quota service: one for each Envoy and domain.",
		}, func() float64 {
			s.mu.Lock()
			defer s.mu.Unlock()
			return float64(len(s.streams))
		}))
	}
	return m
}
