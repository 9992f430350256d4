package xds

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	streams prometheus.Gauge
	pushes  *prometheus.CounterVec
	nacks   *prometheus.CounterVec
	ack     prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		streams: prometheus.NewGauge(prometheus.GaugeOpts{Name: "keyward_xds_streams", Help: "Open xDS streams."}),
		pushes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "keyward_xds_pushes_total",
			Help: "xDS responses sent, by type."}, []string{"type"}),
		nacks: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "keyward_xds_nacks_total",
			Help: "xDS responses that a client refused, by type."}, []string{"type"}),
		ack: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "keyward_xds_ack_seconds", Help: "Time from sending a response to its acknowledgement.",
			Buckets: []float64{.001, .005, .01, .05, .1, .5, 1, 5}, NativeHistogramBucketFactor: 1.1,
			NativeHistogramMaxBucketNumber: 160,
		}),
	}
	// Start at 0, so that the first refusal is an increase.
	for _, t := range []string{"Cluster", "ClusterLoadAssignment", "Listener", "RouteConfiguration",
		"RateLimitConfig", ExtensionConfigs} {
		m.nacks.WithLabelValues(t)
	}
	if reg != nil {
		reg.MustRegister(m.streams, m.pushes, m.nacks, m.ack)
	}
	return m
}
