package app

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/keyward/keyward/federation"
)

// coordinatorMetrics are the metrics of cmd/coordinator.
type coordinatorMetrics struct {
	requests, hits, refused *prometheus.CounterVec // by region
	connections             *prometheus.GaugeVec   // by region
	errors                  prometheus.Counter
	seconds                 prometheus.Histogram
	up                      prometheus.Gauge
}

func newCoordinatorMetrics(reg prometheus.Registerer) *coordinatorMetrics {
	f, label := promauto.With(reg), []string{"region"}
	byRegion := func(name, help string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: "keyward_coordinator_" + name, Help: help}, label)
	}
	return &coordinatorMetrics{
		requests: byRegion("requests_total", "Requests of regions, of which one call has many."),
		hits:     byRegion("grants_hits_total", "Hits lent to regions, including those that came back."),
		refused:  byRegion("refused_total", "Requests of regions that were late, invalid or of another layout."),
		connections: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "keyward_coordinator_connections", Help: "Open connections of regions.",
		}, label),
		errors: f.NewCounter(prometheus.CounterOpts{
			Name: "keyward_coordinator_store_errors_total", Help: "Calls to the store that failed.",
		}),
		seconds: f.NewHistogram(prometheus.HistogramOpts{
			Name: "keyward_coordinator_store_seconds", Help: "Time of a call to the store that succeeded.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 3},
		}),
		up: f.NewGauge(prometheus.GaugeOpts{
			Name: "keyward_coordinator_up", Help: "1 if the store was healthy at the last check, else 0.",
		}),
	}
}

// create creates the series of a region, so that they begin at 0.
func (m *coordinatorMetrics) create(region string) {
	for _, c := range []*prometheus.CounterVec{m.requests, m.hits, m.refused} {
		c.WithLabelValues(region)
	}
	m.connections.WithLabelValues(region)
}

// measuredStore measures the calls of a store.
type measuredStore struct {
	federation.Coordinator
	metrics *coordinatorMetrics
}

// Lease implements federation.Coordinator.
func (s *measuredStore) Lease(
	ctx context.Context, region string, rs []federation.PoolRequest,
) ([]federation.PoolGrant, error) {
	began := time.Now()
	gs, err := s.Coordinator.Lease(ctx, region, rs)
	m := s.metrics
	m.requests.WithLabelValues(region).Add(float64(len(rs)))
	if err != nil {
		m.errors.Inc()
		return gs, err
	}
	m.seconds.Observe(time.Since(began).Seconds())
	m.hits.WithLabelValues(region).Add(float64(lent(rs, gs)))
	m.refused.WithLabelValues(region).Add(float64(len(rs) - len(gs)))
	return gs, nil
}

// Reconcile implements federation.Coordinator. It calls Lease, whose grants show which requests are refused.
func (s *measuredStore) Reconcile(ctx context.Context, region string, rs []federation.PoolRequest) error {
	_, err := s.Lease(ctx, region, rs)
	return err
}

// lent returns how many hits grants add to those that the regions had at their requests. Grants are in the order of the
// requests.
func lent(rs []federation.PoolRequest, gs []federation.PoolGrant) (hits uint64) {
	for i := range rs {
		if len(gs) == 0 {
			break
		}
		r, g := &rs[i], &gs[0]
		if g.Key != r.Key || g.Seq != r.Seq {
			continue // refused
		}
		had := uint64(0)
		if r.Window == g.Window {
			had = r.Have
		}
		hits += g.Total - min(g.Total, had)
		gs = gs[1:]
	}
	return hits
}
