package app

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/keyward/keyward/federation"
)

// exportRepaired exports the hits that a coordinator's store has charged again, if it has a store that may lose them.
func exportRepaired(reg prometheus.Registerer, name string, labels prometheus.Labels, c federation.Coordinator) {
	store, counts := c.(interface{ Repaired() uint64 })
	if !counts {
		return
	}
	promauto.With(reg).NewCounterFunc(prometheus.CounterOpts{
		Name: name, ConstLabels: labels,
		Help: "Hits that a region had and whose record the coordinator's store had lost; they are charged again.",
	}, func() float64 { return float64(store.Repaired()) })
}

type federationMetrics struct {
	seconds                   *prometheus.HistogramVec
	errors, dropped, requests *prometheus.CounterVec
	refused                   *prometheus.CounterVec
	up, offset                *prometheus.GaugeVec
}

func newFederationMetrics(reg prometheus.Registerer) federationMetrics {
	f, label := promauto.With(reg), []string{"authority"}
	counter := func(name, help string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: "keyward_federation_" + name, Help: help}, label)
	}
	return federationMetrics{
		seconds: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "keyward_federation_call_seconds", Help: "Time of a call to the coordinator that succeeded.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 3},
		}, label),
		errors:   counter("errors_total", "Calls to the coordinator that failed."),
		dropped:  counter("dropped_total", "Requests to the coordinator that found no room, and are repeated."),
		requests: counter("requests_total", "Requests to the coordinator, of which one call has many."),
		refused:  counter("refused_total", "Requests that the coordinator refused: late, invalid, or of another layout."),
		offset: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "keyward_federation_clock_offset_seconds",
			Help: "By how much the coordinator's clock is at least ahead of this member's; negative if it is behind.",
		}, label),
		up: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "keyward_federation_up", Help: "1 while the coordinator answers, 0 while it counts as away, so that outage policies decide.",
		}, label),
	}
}

// caller returns a caller of a, which is not started yet.
func (m *federationMetrics) caller(a *authority, region string, log *slog.Logger, reply poolReply) *poolCaller {
	c := &poolCaller{
		id: federation.AuthorityID(a.name), name: a.name, log: log, region: region, coordinator: a.coordinator, reply: reply,
		wake: make(chan struct{}, 1), slots: make(chan struct{}, poolCalls),
		seconds: m.seconds.WithLabelValues(a.name), errors: m.errors.WithLabelValues(a.name),
		dropped: m.dropped.WithLabelValues(a.name), requests: m.requests.WithLabelValues(a.name), up: m.up.WithLabelValues(a.name),
		refused: m.refused.WithLabelValues(a.name), offset: m.offset.WithLabelValues(a.name),
	}
	c.up.Set(1)
	return c
}

// measureOffset sets the metric of the clocks by the grants gs for the requests rs, which were sent at began.
func (c *poolCaller) measureOffset(rs []federation.PoolRequest, gs []federation.PoolGrant, began time.Time, took time.Duration) {
	if len(gs) == 0 {
		return
	}
	g := &gs[len(gs)-1]
	for i := range rs {
		if r := &rs[i]; r.Key == g.Key && r.Seq == g.Seq {
			c.offset.Set(clockOffset(r.Rule.End(g.Window)-int64(g.Left), began.UnixNano(), took).Seconds())
			return
		}
	}
}

// clockOffset returns by how much a clock that showed at during a call is at least ahead of this process's clock, or as a
// negative number behind it. 0 means that the call's duration explains the difference.
func clockOffset(at, began int64, took time.Duration) time.Duration {
	switch ended := began + int64(took); {
	case at > ended:
		return time.Duration(at - ended)
	case at < began:
		return time.Duration(at - began)
	}
	return 0
}
