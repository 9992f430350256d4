package assign

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/internal/quota"
)

// metrics export what an Assigner does.
type metrics struct {
	acks prometheus.Histogram
	// reports counts messages, each with the usage of several ids.
	reports prometheus.Counter
	unsent  prometheus.Counter
	// returned and lost count hits that the ledger has given back: those that the owner has confirmed, and the others.
	returned, lost prometheus.Counter
	// admitted and refused count the requests that Envoys have reported, those above the cap included.
	admitted, refused prometheus.Counter

	all []prometheus.Collector
}

func (m *metrics) init(a *Assigner) {
	m.acks = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "keyward_quota_ack_seconds", Help: "Time from a response to an Envoy until the Envoy uses it.",
		Buckets: []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1},
	})
	m.unsent = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "keyward_quota_unsent_total", Help: "Responses that could not be sent to their Envoys, mostly because the streams had ended.",
	})
	m.returned = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "keyward_quota_returned_hits_total", Help: "Hits of them that were given back, and that the owner has confirmed.",
	})
	m.lost = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "keyward_quota_unreturned_hits_total",
		Help: "Hits that were not needed and that the owner keeps charged, because they could not be given back.",
	})
	m.reports = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "keyward_quota_reports_total", Help: "Messages with the usage that Envoys report.",
	})
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "keyward_quota_requests_total", Help: "Requests that Envoys have admitted and refused themselves, as they have reported.",
	}, []string{"result"})
	m.admitted, m.refused = requests.WithLabelValues("admitted"), requests.WithLabelValues("refused")
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
		m.reports, requests, m.acks, m.unsent, m.returned, m.lost,
		a.gauge("ids", "Bucket ids of all open streams together that have an account.", func(int64) float64 {
			return float64(a.ledger.IDs())
		}),
		a.gauge("report_age_seconds", "Age of the newest report of the stream whose newest report is the oldest.", func(now int64) float64 {
			report, _ := a.ledger.Waits(now)
			return report.Seconds()
		}),
		a.gauge("unacked_seconds", "Age of the oldest response that an Envoy has not acknowledged.", func(now int64) float64 {
			_, ack := a.ledger.Waits(now)
			return ack.Seconds()
		}),
		counter("granted_hits_total", "Hits that owners have charged for Envoys.", func(s *quota.LedgerStats) uint64 { return s.Granted }),
		counter("credited_hits_total", "Assigned hits that were unspent and free again before their windows ended.",
			func(s *quota.LedgerStats) uint64 { return s.Credited }),
		counter("stranded_hits_total", "Assigned hits of windows or streams that have ended, and that no report has proven spent.",
			func(s *quota.LedgerStats) uint64 { return s.Stranded }),
		counter("unassigned_hits_total", "Charged hits that were neither assigned nor given back when their windows ended.",
			func(s *quota.LedgerStats) uint64 { return s.Unassigned }),
		counter("over_cap_total", "Reports of buckets above the cap of an Envoy, which are not assigned anything.",
			func(s *quota.LedgerStats) uint64 { return s.OverCap }),
	}
}

// gauge returns a gauge of the ledger.
func (a *Assigner) gauge(name, help string, f func(now int64) float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "keyward_quota_" + name, Help: help}, func() float64 {
		a.mu.Lock()
		defer a.mu.Unlock()
		return f(a.now().UnixNano())
	})
}

// Collectors returns the metrics.
func (a *Assigner) Collectors() []prometheus.Collector { return a.metrics.all }
