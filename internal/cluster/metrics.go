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
	parameters    prometheus.Gauge
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

// Label values of keyward_join_failures_total.
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
			Name: "keyward_cluster_members",
			Help: "Live members known by gossip, by state. Observers are counted as a state of their own.",
		}, []string{"state"}),
		ringMembers: gauge("keyward_ring_members", "Members on the ring that this member uses."),
		fingerprint: gauge("keyward_ring_fingerprint",
			"Low 53 bits of the ring's fingerprint. Members that use the same ring have the same value."),
		disagreement: gauge("keyward_ring_disagreement",
			"Members on the ring that use another ring than this member."),
		parameters: gauge("keyward_ring_parameters_differ",
			"Members on the ring that are configured for another kind of ring (--ring). While there are any, all members use "+
				"Keyward's own ring."),
		incomplete: gauge("keyward_ring_incomplete",
			"Members on the ring that have not taken over all of their keys."),
		health: gauge("keyward_gossip_health_score",
			"Delay of this member's own gossip as a score of memberlist; 0 is healthy."),
		nref: gauge("keyward_n_ref",
			"Number of members by which a limit is divided when the owner of a key is unreachable."),
		joined: gauge("keyward_cluster_joined",
			"1 if this member has joined the cluster, 0 during a cold start."),
		standalone: gauge("keyward_standalone", "1 if this member runs without a cluster."),
		missing:    gauge("keyward_cluster_missing", "Addresses in --join or of lost members that do not answer."),
		joinFailures: f.NewCounterVec(prometheus.CounterOpts{
			Name: "keyward_join_failures_total",
			Help: "Names that could not be resolved and addresses that could not be joined.",
		}, []string{"reason"}),
		ringChanges: counter("keyward_ring_changes_total", "Times that this member has adopted another ring."),
		deaths: counter("keyward_cluster_deaths_total",
			"Members that the ring has lost without a graceful leave."),
		refused: gauge("keyward_gossip_refused",
			"Announcements rejected so far: malformed, of an unsupported protocol version, or not sent by their author."),
		nameConflicts: counter("keyward_cluster_collisions_total",
			"Times that another live member with this member's name was detected."),
		routes: gauge("keyward_hot_routes", "Hot keys with a route of their own."),
	}
	m.offRing = f.NewGaugeVec(prometheus.GaugeOpts{
		Name: "keyward_off_ring",
		Help: "1 for the cause that keeps this member off the ring and not ready: lookup, gossip, streams, rival, full, host or flaps.",
	}, []string{"cause"})
	m.joinFailures.WithLabelValues(failedLookup)
	m.joinFailures.WithLabelValues(failedJoin)
	return m
}

// update sets all metrics of a View.
func (m *metrics) update(v *membership.View) {
	count := map[string]int{membership.RoleObserver.String(): 0}
	for _, s := range []membership.MemberState{membership.Joining, membership.Active, membership.Leaving} {
		count[s.String()] = 0
	}
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
	m.fingerprint.Set(float64(v.Ring.Fingerprint() & (1<<53 - 1))) // a float64 holds no more
	m.disagreement.Set(float64(v.DifferingRings()))
	m.parameters.Set(float64(len(v.OtherRingParameters())))
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
