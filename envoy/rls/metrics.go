package rls

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/internal/stats"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// path is the path label: how a decision was made.
type path uint8

const (
	direct    path = iota // decided here, and the call carried a key: Envoy chose this member
	local                 // decided here
	forwarded             // decided by the owner
	leased                // decided from a lease, or where the route of a hot key leads
	degraded              // decided by the rule's degraded policy
	paths
)

// metrics resolve their labels once, so that no label is looked up during a call.
type metrics struct {
	decisions [paths][2]prometheus.Counter // index 1 is over the limit
	direct    prometheus.Counter
	misrouted [2]prometheus.Counter // cause ring, cause key
	degraded  [3]prometheus.Counter // by policy.Degraded
	oversize  [excesses]prometheus.Counter
	duration  *stats.DurationHistogram

	holdsWithoutID, holdsAbandoned prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		direct: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "keyward_direct_total",
			Help: "Requests of calls with a key (x-keyward-key) that were decided by the member that Envoy chose.",
		}),
		holdsWithoutID: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "keyward_holds_without_id_total",
			Help: "Requests of rules with holds that have no x-keyward-id. A hold that they make can only lapse; a settlement has no effect.",
		}),
		holdsAbandoned: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "keyward_holds_abandoned_total",
			Help: "Holds that were released because the caller had given up before the answer.",
		}),
		duration: stats.NewDurationHistogram(prometheus.HistogramOpts{
			Name: "keyward_decision_duration_seconds",
			Help: "Time from receiving a call to its response, including forwarding.",
			Buckets: []float64{5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 1.2e-2, 2e-2,
				5e-2, 0.1, 1},
		}, time.Second),
	}
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		if reg != nil {
			reg.MustRegister(v)
		}
		return v
	}
	decisions := vec("keyward_decisions_total", "Requests decided, by decision and by how it was made (path).",
		"decision", "path")
	for p, name := range [paths]string{"direct", "local", "forwarded", "lease", "degraded"} {
		m.decisions[p] = [2]prometheus.Counter{decisions.WithLabelValues("ok", name),
			decisions.WithLabelValues("over", name)}
	}
	misrouted := vec("keyward_misrouted_total", "Requests of calls with a key that had to be forwarded: because Envoy's ring differs (ring), "+
		"or because the key is not that of the descriptor (key).", "cause")
	m.misrouted = [2]prometheus.Counter{misrouted.WithLabelValues("ring"), misrouted.WithLabelValues("key")}
	policies := vec("keyward_degraded_total", "Requests decided by the degraded policy of their rule.", "policy")
	for i, name := range [...]string{"local_share", "fail_open", "fail_closed"} {
		m.degraded[i] = policies.WithLabelValues(name)
	}
	oversize := vec("keyward_oversize_total", "Calls that exceed a limit on their size, answered OVER_LIMIT without being counted.", "bound")
	for e := within + 1; e < excesses; e++ {
		m.oversize[e] = oversize.WithLabelValues(e.String())
	}
	if reg != nil {
		reg.MustRegister(m.direct, m.duration, m.holdsWithoutID, m.holdsAbandoned)
	}
	return m
}

// callKey is the key of a call (x-keyward-key), by which Envoy chose this member.
type callKey struct {
	hash, base uint64 // of the key; of the owner string, if the key is a sub-key
	given, sub bool
}

func newCallKey(key string) callKey {
	if key == "" {
		return callKey{}
	}
	k := callKey{hash: ring.Hash(key), given: true}
	if i := strings.LastIndexByte(key, '#'); i >= 0 && i < len(key)-1 && strings.Trim(key[i+1:], "0123456789") == "" {
		k.sub, k.base = true, ring.Hash(key[:i])
	}
	return k
}

// isSubKeyOf reports whether the route of a hot key sent the call here by a sub-key of q. This member is then neither
// the owner nor a wrong member.
func (k *callKey) isSubKeyOf(q *owner.Request) bool { return k.sub && k.base == q.RingPos }

// countResult counts one result of a call with the given key.
func (m *metrics) countResult(q *owner.Request, a *owner.Result, key *callKey) {
	p := local
	switch a.Path {
	case owner.Local:
		switch {
		case key.isSubKeyOf(q):
			p = leased
		case key.given:
			p = direct
			m.direct.Inc()
		}
	case owner.Forwarded:
		p = forwarded
		if key.given && !key.isSubKeyOf(q) {
			m.misrouted[b2i(key.hash != q.RingPos)].Inc()
		}
	case owner.Leased:
		p = leased
	case owner.Fallback:
		p = degraded
		if int(q.Degraded) < len(m.degraded) {
			m.degraded[q.Degraded].Inc()
		}
	}
	m.decisions[p][b2i(a.Over)].Inc()
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
