package cluster

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/keyward/keyward/internal/membership"
)

type metrics struct {
	members       *prometheus.GaugeVec
	ringMembers   prometheus.Gauge
	fingerprint   prometheus.Gauge
	disagreement  prometheus.Gauge
	incomplete    prometheus.Gauge
	health        prometheus.Gauge
	nref          prometheus.Gauge
	joined        prometheus.Gauge
	standalone    prometheus.Gauge
	missing       prometheus.Gauge
	joinFailures  *prometheus.CounterVec
	ringChanges   prometheus.Counter
	deaths        prometheus.Counter
	refused       prometheus.Gauge
	nameConflicts prometheus.Counter
	offRing       *prometheus.GaugeVec
	routes        prometheus.Gauge
}

// Reasons of keyward_join_failures_total.
const (
	failedLookup = "lookup"
	failedJoin   = "join"
)

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		members: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "keyward_cluster_members", Help: "Live members known by gossip, by state; observers have their own.",
		}, []string{"state"}),
		ringMembers:  gauge("keyward_ring_members", "Members on the ring this one goes by."),
		fingerprint:  gauge("keyward_ring_fingerprint", "Low 53 bits of the ring's fingerprint: equal on all members that go by the same ring."),
		disagreement: gauge("keyward_ring_disagreement", "Members on the ring that announce another ring than this one's."),
		incomplete:   gauge("keyward_ring_incomplete", "Members on the ring that have not taken over all that is theirs on it."),
		health:       gauge("keyward_gossip_health_score", "How late this member is with its own gossip; 0 is healthy."),
		nref:         gauge("keyward_n_ref", "Members that a limit is divided by when a key's owner cannot be asked."),
		joined:       gauge("keyward_cluster_joined", "1 once this member has met the cluster, 0 during a cold start."),
		standalone:   gauge("keyward_standalone", "1 if this member runs without a cluster."),
		missing:      gauge("keyward_cluster_missing", "Addresses that should be members, by name or by memory, and do not answer."),
		joinFailures: f.NewCounterVec(prometheus.CounterOpts{
			Name: "keyward_join_failures_total", Help: "Names that could not be looked up and addresses that could not be joined.",
		}, []string{"reason"}),
		ringChanges:   counter("keyward_ring_changes_total", "Times this member moved to another ring."),
		deaths:        counter("keyward_cluster_deaths_total", "Members that the ring lost without a farewell."),
		refused:       gauge("keyward_gossip_refused", "Announcements not let in so far: no member's, of a protocol this one does not speak, or not their author's own."),
		nameConflicts: counter("keyward_cluster_collisions_total", "Times another live member was seen under this one's name."),
		routes:        gauge("keyward_hot_routes", "Hot keys for which this member knows of a route of their own."),
	}
	m.offRing = f.NewGaugeVec(prometheus.GaugeOpts{
		Name: "keyward_off_ring", Help: "1 for the cause that keeps this member off the ring and not ready: lookup, gossip, streams, rival, full or flaps.",
	}, []string{"cause"})
	m.joinFailures.WithLabelValues(failedLookup)
	m.joinFailures.WithLabelValues(failedJoin)
	return m
}

// update sets all that follows from a View.
func (m *metrics) update(v *membership.View) {
	count := map[string]int{membership.Joining.String(): 0, membership.Active.String(): 0, membership.Leaving.String(): 0, membership.RoleObserver.String(): 0}
	for i := range v.Members {
		if x := &v.Members[i]; x.Role == membership.RoleObserver {
			count[membership.RoleObserver.String()]++
		} else {
			count[x.State.String()]++
		}
	}
	for state, n := range count {
		m.members.WithLabelValues(state).Set(float64(n))
	}
	m.ringMembers.Set(float64(v.Ring.Len()))
	m.fingerprint.Set(float64(v.Ring.Fingerprint() & (1<<53 - 1))) // a float holds no more
	m.disagreement.Set(float64(v.DifferingRings()))
	m.incomplete.Set(float64(v.IncompleteMembers()))
	m.nref.Set(float64(v.NRef))
	m.joined.Set(boolGauge(v.Joined))
	m.standalone.Set(boolGauge(v.Standalone))
	for _, c := range membership.Causes {
		m.offRing.WithLabelValues(string(c)).Set(boolGauge(v.Cause == c))
	}
}

func boolGauge(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
