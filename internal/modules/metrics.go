package modules

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/envoy/module"
	"github.com/keyward/keyward/internal/sublease"
)

// Collectors returns the metrics of a Lessor and of the server whose LeaseBook it is.
func (l *Lessor) Collectors(s *module.SegmentServer) []prometheus.Collector {
	number := func(name, help string, labels prometheus.Labels, value func() uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "keyward_module_" + name, Help: help, ConstLabels: labels},
			func() float64 { return float64(value()) })
	}
	hits := func(name, help string, of func(t *sublease.BookTotals) uint64) prometheus.Collector {
		return number(name, help, nil, func() uint64 {
			t := l.totals()
			return of(&t)
		})
	}
	missed := func(cause string, of func(c *module.SpendCounters) uint64) prometheus.Collector {
		return number("missed_total", "Requests for which an Envoy had no tokens, as its module counts them: no lease, an empty or expired one, "+
			"or one that the module found corrupt.", prometheus.Labels{"cause": cause}, func() uint64 {
			l.mu.Lock()
			defer l.mu.Unlock()
			return of(&l.counters)
		})
	}
	all := []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "keyward_module_connections", Help: "Modules in Envoys that are connected.",
		}, func() float64 { return float64(s.Connections()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "keyward_module_keys", Help: "Keys of which hits are leased to modules.",
		}, func() float64 { return float64(l.totals().Keys) }),
		hits("granted_hits_total", "Hits that owners have charged for modules.", func(t *sublease.BookTotals) uint64 { return t.Granted }),
		hits("taken_hits_total", "Hits that modules have spent.", func(t *sublease.BookTotals) uint64 { return t.Spent }),
		number("returned_hits_total", "Charged hits that were not spent and were given back, as the owner has confirmed.", nil, l.returned.Load),
		number("unreturned_hits_total", "Charged hits that were not spent and that the owner keeps charged, because they could not be given back.",
			nil, l.unreturned.Load),
		hits("expired_hits_total", "Charged hits that were not spent when their windows ended.", func(t *sublease.BookTotals) uint64 { return t.Expired }),
		hits("lost_hits_total", "Charged hits that count as spent because an Envoy's memory was corrupt.", func(t *sublease.BookTotals) uint64 { return t.Lost }),
		hits("free_hits_total", "Hits that modules have spent of descriptors that no rule limits. No owner has charged them.", func(t *sublease.BookTotals) uint64 { return t.Free }),
		hits("full_total", "Leases for which an Envoy's memory had no room.", func(t *sublease.BookTotals) uint64 { return t.Full }),
		missed("no_lease", func(c *module.SpendCounters) uint64 { return c.Misses }),
		missed("empty", func(c *module.SpendCounters) uint64 { return c.Empty }),
		missed("corrupt", func(c *module.SpendCounters) uint64 { return c.Corrupt }),
	}
	for kind := range module.RefusalKinds {
		all = append(all, number("refused_total", "Connections of modules that were closed or not accepted: malformed messages, corrupt memory, "+
			"no greeting in time (silent), too many (excess).", prometheus.Labels{"reason": kind.String()}, func() uint64 { return s.Refused(kind) }))
	}
	return all
}

func (l *Lessor) totals() sublease.BookTotals {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.book.Totals()
}
