package assign

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/internal/quota"
)

// metrics export what an Assigner does.
type metrics struct {
	acks   prometheus.Histogram
	unsent prometheus.Counter
	all    []prometheus.Collector
}

func (m *metrics) init(a *Assigner) {
	m.acks = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "keyward_quota_ack_seconds", Help: "Time from a response to an Envoy until the Envoy uses it.",
		Buckets: []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1},
	})
	m.unsent = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "keyward_quota_unsent_total", Help: "Responses to Envoys that were not sent, because their streams had ended.",
	})
	stat := func(f func(*quota.LedgerStats) uint64) func() float64 {
		return func() float64 {
			a.mu.Lock()
			defer a.mu.Unlock()
			s := a.ledger.Stats()
			return float64(f(&s))
		}
	}
	counter := func(name, help string, f func(*quota.LedgerStats) uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "keyward_quota_" + name, Help: help}, stat(f))
	}
	m.all = []prometheus.Collector{
		m.acks, m.unsent,
		counter("granted_hits_total", "Hits that owners have charged for Envoys.", func(s *quota.LedgerStats) uint64 { return s.Granted }),
		counter("returned_hits_total", "Hits of them that were given back.", func(s *quota.LedgerStats) uint64 { return s.Returned }),
		counter("credited_hits_total", "Assigned hits that were unspent and free again before their windows ended.",
			func(s *quota.LedgerStats) uint64 { return s.Credited }),
		counter("stranded_hits_total", "Assigned hits that may have been unspent when their windows or streams ended.",
			func(s *quota.LedgerStats) uint64 { return s.Stranded }),
		counter("over_cap_total", "Reports of buckets above the cap of an Envoy, which are not assigned anything.",
			func(s *quota.LedgerStats) uint64 { return s.OverCap }),
	}
}

// Collectors returns the metrics.
func (a *Assigner) Collectors() []prometheus.Collector { return a.metrics.all }
