package rls

import (
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/keyward/keyward/envoy/internal/h2"
	"github.com/keyward/keyward/envoy/internal/names"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/stats"
	"github.com/keyward/keyward/owner"
)

// EnvoyHeader names the Envoy of a stream of the rate limit quota service, in the stream's initial metadata.
const EnvoyHeader = names.EnvoyHeader

// EnvoyName returns the value of EnvoyHeader, or "" if it is missing or longer than 256 bytes.
func EnvoyName(d *h2.Duplex) string {
	if v := d.Header(headerEnvoy); len(v) <= maxHoldHeader {
		return v
	}
	return ""
}

// RuleMatcher matches descriptors against one version of the rules, as calls of the rate limit service do. Equal values
// match alike. The zero value matches nothing; Matcher returns it before the first SetRules.
type RuleMatcher struct {
	service *Service
	view    *view
}

// Matcher returns a matcher for the rules in force. It is safe for concurrent use.
func (s *Service) Matcher() RuleMatcher {
	if v := s.current.Load(); v != nil {
		return RuleMatcher{s, v}
	}
	return RuleMatcher{}
}

// RuleMatch is a descriptor's limit.
type RuleMatch struct {
	Match   config.Match
	Request owner.Request // of its counter, without operation and hits; only if Limited
	Limited bool          // a rule limits it, and is enforced
	Shadow  bool          // a rule limits it, but in shadow mode
}

// Rules returns the rules, or nil before the first SetRules.
func (m RuleMatcher) Rules() *config.Rules {
	if m.view == nil {
		return nil
	}
	return m.view.rules
}

// Match returns the limit of a descriptor. It keeps no part of entries.
func (m RuleMatcher) Match(domain string, entries []config.Entry) (r RuleMatch) {
	if m.view == nil {
		return r
	}
	m.view.rules.Match(domain, entries, nil, &r.Match)
	if r.Match.Kind != config.Limited {
		return r
	}
	r.Shadow = m.view.switches.Shadow || r.Match.Rule.Shadow
	r.Limited = !r.Shadow
	r.Request = m.view.request(domainHash(domain), domain, entries, &r.Match)
	return r
}

// CountUsage adds requests that an Envoy has decided itself to the statistics of the rule of a descriptor, which m has
// matched. It is safe for concurrent use.
func (m RuleMatcher) CountUsage(domain string, entries []config.Entry, of *config.Match, admitted, refused uint64) {
	if m.view == nil || of.Rule == nil || admitted+refused == 0 {
		return
	}
	to := m.statsOf(domain, entries, of)
	to.TotalHits.Add(admitted + refused)
	add(&to.WithinLimit, admitted)
	add(&to.OverLimit, refused)
}

func (m RuleMatcher) statsOf(domain string, entries []config.Entry, of *config.Match) *stats.RuleStats {
	if of.Static {
		return m.service.fixedSeries(m.view, of.Rule)
	}
	return m.service.store.RuleBytes(m.view.rules.AppendStatKey(nil, domain, entries, of))
}

// Leasable reports whether hits of a limit may be leased, so that an Envoy admits requests without a call: an enforced limit
// that every request of the descriptor counts in, by one, and that its owner alone decides.
func (m RuleMatcher) Leasable(r *RuleMatch) bool {
	if !r.Limited || m.view.switches.Quota {
		return false
	}
	rule, x := r.Match.Rule, r.Match.Extension()
	switch {
	case rule.Quota, len(rule.Replaces) > 0, rule.Name != "" && m.view.rules.Replaced()[rule.Name]:
		return false
	case x.Mechanism != policy.ByOwner, r.Match.Limit.Algorithm != limit.FixedWindow, x.Lease != nil && x.Lease.Audit:
		return false
	}
	return x.Fair == nil && x.Federation == nil && x.Identity == nil && x.Holds == nil && !x.Once && !x.AllOrNothing
}

// Unlimited reports whether every call admits a descriptor, which m has matched, and counts nothing for it: no rule limits it,
// or one that is unlimited. The result of a call with other descriptors then depends on these alone.
func (m RuleMatcher) Unlimited(domain string, entries []config.Entry, r *RuleMatch) bool {
	if m.view == nil || m.view.switches.Shadow || m.view.switches.Quota {
		return false
	}
	if rest, mark := cutHold(entries); mark.marked || len(rest) < len(entries) {
		return false // a call matches other entries
	}
	if b := &m.service.limits; len(entries) > b.Entries || len(domain) > b.Value {
		return false
	} else if slices.ContainsFunc(entries, func(e config.Entry) bool { return max(len(e.Key), len(e.Value)) > b.Value }) {
		return false
	}
	switch r.Match.Kind {
	case config.NoRule:
		return true
	case config.Unlimited:
		return len(r.Match.Rule.Replaces) == 0
	}
	return false // limited, or a call counts that its domain is unknown
}

// domainHash returns the hash of a domain, for the domain quotas of the counter table.
func domainHash(domain string) uint64 { return xxhash.Sum64String(domain) }

// request returns the request for a descriptor that matches m, without its operation and hits.
func (v *view) request(hash uint64, domain string, entries []config.Entry, m *config.Match) owner.Request {
	q := NewRequest(hash, v.version, m)
	if q.Federation != nil && q.Federation.Named {
		var space [128]byte
		q.Name = string(v.rules.AppendSharedName(space[:0], domain, entries, m))
	}
	return q
}
