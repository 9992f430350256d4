package app

import (
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

// exportEpoch exports the epoch of the layout that this process uses. The region of a coordinator is "".
func exportEpoch(reg prometheus.Registerer, l *federation.Layout, region string) {
	promauto.With(reg).NewGauge(prometheus.GaugeOpts{
		Name: "keyward_federation_epoch", Help: "Epoch of the layout that this process uses. It is the same everywhere.",
		ConstLabels: prometheus.Labels{"federation": l.Name, "region": region},
	}).Set(float64(l.Epoch))
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
