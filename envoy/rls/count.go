package rls

import (
	"math"
	"time"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/stats"
	"github.com/keyward/keyward/owner"
)

// serviceCounts are the statistics of envoyproxy/ratelimit that belong to no rule.
type serviceCounts struct {
	loadSuccess, loadError   *stats.StatCounter
	globalShadow             *stats.StatCounter
	serviceError, ownerError *stats.StatCounter
	call                     stats.MethodStats // the gRPC method
}

func newServiceCounts(st *stats.StatStore) serviceCounts {
	return serviceCounts{
		loadSuccess:  st.Counter("ratelimit.service.config_load_success"),
		loadError:    st.Counter("ratelimit.service.config_load_error"),
		globalShadow: st.Counter("ratelimit.service.global_shadow_mode"),
		serviceError: st.Counter("ratelimit.service.call.should_rate_limit.service_error"),
		// Here it means that the owner of a key was unreachable, which is closest to a Redis that does not answer.
		ownerError: st.Counter("ratelimit.service.call.should_rate_limit.redis_error"),
		call:       st.Method("ShouldRateLimit"),
	}
}

// served counts one gRPC call.
func (n *serviceCounts) served(took time.Duration) {
	n.call.TotalRequests.Add(1)
	n.call.ResponseTime.Observe(took)
}

// count updates the statistics of each result, and reports the names of hot keys.
func (s *Service) count(c *Call, v *view, from Caller) {
	key := newCallKey(from.Key)
	degraded := false
	for i := range c.slots {
		l := &c.slots[i]
		if !l.counted() {
			continue
		}
		q, a := &c.requests[l.request], &c.results[l.request]
		r := l.match.Rule
		s.countRule(s.series(c, v, i), q, a, r != nil && r.Shadow)
		s.metrics.countResult(q, a, &key)
		if a.Hot || q.Op == owner.Reserve && !a.Over {
			s.reportName(c, v, i, from.ReceivedAt)
		}
		degraded = degraded || a.Path == owner.Fallback
	}
	if degraded {
		s.counts.ownerError.Add(1)
	}
}

// series returns the statistics of descriptor i.
func (s *Service) series(c *Call, v *view, i int) *stats.RuleStats {
	m := &c.slots[i].match
	if !m.Static {
		c.text = v.rules.AppendStatKey(c.text[:0], c.Request.Domain, c.Request.Descriptors[i].Entries, m)
		return s.store.RuleBytes(c.text)
	}
	return s.fixedSeries(v, m.Rule)
}

// fixedSeries returns the statistics of a rule that has the same name for all descriptors.
func (s *Service) fixedSeries(v *view, r *config.RuleSpec) *stats.RuleStats {
	at := v.series[r.Index].Load()
	if at == nil {
		at = s.store.Rule(r.FullKey)
		v.series[r.Index].Store(at)
	}
	return at
}

// countRule updates the statistics of one rule as envoyproxy/ratelimit does. Hits that cross a threshold are split
// between the statistics on both sides of it.
func (s *Service) countRule(to *stats.RuleStats, q *owner.Request, a *owner.Result, shadow bool) {
	switch {
	case q.Op == owner.Refund:
		to.TotalNegativeHits.Add(q.Hits)
		return
	case q.Op == owner.Commit: // what was used
		to.TotalHits.Add(q.Hits)
		to.WithinLimit.Add(q.Hits)
		return
	case q.Op > owner.Reserve, q.Op != owner.Take && !a.Over: // what is used is not known yet
		return
	}
	to.TotalHits.Add(q.Hits)
	n := split(q, a, s.ratio)
	add(&to.OverLimit, n.over)
	add(&to.NearLimit, n.near)
	add(&to.WithinLimit, n.within)
	if a.Authority == owner.Cached {
		add(&to.OverLimitWithLocalCache, q.Hits)
	}
	if shadow {
		add(&to.ShadowMode, n.over)
	}
}

func add(c *stats.StatCounter, n uint64) {
	if n > 0 {
		c.Add(n)
	}
}

// parts is how the hits of a request are split between statistics.
type parts struct{ over, near, within uint64 }

func split(q *owner.Request, a *owner.Result, ratio float32) parts {
	limit := uint64(q.Rule.Depth()) // a bucket is full at its burst
	// May exceed the limit by rounding, or if the ratio is above 1.
	near := min(limit, uint64(math.Floor(float64(float32(limit)*ratio))))
	// In stop mode After may be a count without the hits. Before is still smaller by the hits and may wrap below
	// zero. The statistics count the requested hits, as those of envoyproxy/ratelimit do.
	before := a.Before
	switch {
	case !a.Over:
		p := parts{within: q.Hits}
		switch {
		case a.After <= near:
		case before >= near:
			p.near = q.Hits
		default:
			p.near = a.After - near
		}
		return p
	case a.Authority == owner.Cached, a.After <= limit, before >= limit:
		return parts{over: q.Hits}
	}
	return parts{over: a.After - limit, near: limit - max(near, before)}
}
