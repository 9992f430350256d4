package config

import (
	"math"
	"strings"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
)

// MatchKind classifies the result of a match.
type MatchKind uint8

// The kinds of matches.
const (
	NoRule     MatchKind = iota // no rule limits it: the response is OK
	NoDomain                    // its domain is not configured: the response is OK, and domain_not_found is counted
	Limited                     // Match.Rule limits it
	Unlimited                   // Match.Rule is unlimited
	Overridden                  // the limit in the descriptor applies
	BadUnit                     // the limit in the descriptor has an unknown unit: an error
)

// Override is a limit that is part of a descriptor. It takes precedence over the rules.
type Override struct {
	Limit uint32
	Unit  Unit
}

// Match is the result of Rules.Match. For Limited and Overridden all fields are set, for Unlimited only Rule, Static
// and Kind.
type Match struct {
	Rule   *RuleSpec  // nil for an override
	Digest [2]uint64  // of the counter; it covers the entries, algorithm and window, but not the amount
	Owner  uint64     // ring position: Envoy's hash of the owner string
	Limit  limit.Rule // the limit that applies
	Unit   Unit       // with Times: how responses state the window; UnitUnknown if it is not a multiple of a second
	Times  uint32     // units in the window
	Kind   MatchKind
	Tenant uint64 // digest of the tenant that asks, if the rule divides its limit between tenants; else 0
	Weight uint32 // of the tenant
	// unknown reports whether the descriptor names no caller, by the rule's Identity.
	unknown bool
	Static  bool // the statistics' key is Rule.FullKey; otherwise see AppendStatKey

	ownerRule *RuleSpec // whose levels determine the owner: Rule, or the rule that an override replaces
}

// Buffers of these sizes hold ordinary descriptors on the stack. Longer descriptors cost an allocation.
const (
	gluedSize  = 256
	digestSize = 384
)

// Match sets m to the limit of a descriptor. An override replaces the rules of a configured domain. Match does not
// allocate for descriptors of ordinary size.
func (r *Rules) Match(domain string, entries []Entry, override *Override, m *Match) {
	*m = Match{}
	d := r.domains[domain]
	if d == nil {
		m.Kind = NoDomain
		return
	}
	leaf, static := d.find(entries)
	if leaf != nil {
		m.ownerRule = leaf.rule
	}
	switch {
	case override != nil:
		if !m.override(override) {
			m.Kind = BadUnit
			return
		}
	case m.ownerRule == nil:
		return
	case m.ownerRule.Unlimited:
		m.Kind, m.Rule = Unlimited, m.ownerRule
		m.Static = static && !m.Rule.DetailedMetric
		return
	default:
		m.Kind, m.Rule, m.Limit = Limited, m.ownerRule, m.ownerRule.Limit
		m.Unit, m.Times = m.ownerRule.statedUnit, m.ownerRule.statedTimes
		m.Static = static && !m.Rule.DetailedMetric
	}
	if m.ownerRule != nil && m.ownerRule.Extension.Identity != nil {
		m.unknown = m.ownerRule.Extension.Identity.isUnknown(entries)
	}
	if m.Rule != nil && m.Rule.Extension.Fair != nil {
		r.setTenant(m.Rule.Extension.Fair, entries, m)
	}
	m.Digest = r.digest(d, entries, m)
	m.Owner = ownerHash(domain, entries, m)
}

// override applies the amount and unit of o. It keeps the algorithm of the rule that it replaces and, if the units are
// equal, the window, so that both use one counter. The burst is scaled with the amount. It reports whether the unit is
// known.
func (m *Match) override(o *Override) (ok bool) {
	m.Kind, m.Unit, m.Times = Overridden, o.Unit, 1
	m.Limit = limit.Rule{Window: o.Unit.Window(), Limit: o.Limit}
	if replaced := m.ownerRule; replaced != nil && !replaced.Unlimited {
		m.Limit.Algorithm, m.Limit.Burst = replaced.Limit.Algorithm, replaced.burst(o.Limit)
		if o.Unit == replaced.Unit {
			m.Limit.Window, m.Unit, m.Times = replaced.Limit.Window, replaced.statedUnit, replaced.statedTimes
		}
	}
	return m.Limit.Window > 0
}

// burst returns the burst of r, scaled to another limit.
func (r *RuleSpec) burst(of uint32) uint32 {
	if r.Limit.Burst == 0 || r.Limit.Limit == 0 {
		return r.Limit.Burst
	}
	n := uint64(r.Limit.Burst) * uint64(of) / uint64(r.Limit.Limit)
	return uint32(min(max(1, n), math.MaxUint32))
}

// Extension returns the settings of the rule, also if an override replaces its limit. The slack of an approximate rule
// is a part of its own limit and too large for a lower override: then the owner decides, with default lease settings.
// So it does for a caller without slack.
func (m *Match) Extension() Extension {
	if m.ownerRule == nil {
		return Extension{}
	}
	x := m.ownerRule.Extension
	if x.Mechanism != policy.Approximate {
		return x
	}
	exact := m.Limit.Limit < m.ownerRule.Limit.Limit
	if id := x.Identity; m.unknown && id.terms != nil {
		x.Lease, exact = id.terms, exact || id.terms.Slack == 0
	}
	if exact {
		x.Mechanism, x.Lease = policy.ByOwner, nil // slack without Approximate would have an effect
	}
	return x
}

// Holds returns the rule's settings of holds, nil without holds, and whether the rule recognizes repeated requests and
// whether a request is charged to all of its rules or to none.
func (m *Match) Holds() (t *claim.HoldTerms, once, allOrNothing bool) {
	if m.ownerRule == nil {
		return nil, false, false
	}
	x := &m.ownerRule.Extension
	return x.Holds, x.Once, x.AllOrNothing
}

// find walks down the levels. In each it takes the exact text, or else the first wildcard that matches, or else the key
// alone; it never backtracks. It returns the node of the last entry, or nil if the walk ends earlier. static reports
// whether the statistics' key is independent of the request.
func (d *domain) find(entries []Entry) (n *node, static bool) {
	if len(entries) == 0 {
		return nil, false
	}
	var space [gluedSize]byte
	n, static = &d.node, true
	for i := range entries {
		e := &entries[i]
		glued := appendGlued(space[:0], e)
		next := n.children[string(glued)]
		switch {
		case next != nil:
			static = static && e.Value != ""
		case n.wild.count > 0:
			if next = n.wild.find(glued); next != nil {
				_, complete := trimKey(next.glued, e.Key)
				static = static && complete && (next.level.Shared || !next.level.ValueToMetric)
				break
			}
			fallthrough
		default:
			if next = n.children[e.Key]; next == nil {
				return nil, false
			}
			static = static && !next.level.ValueToMetric
		}
		n = next
	}
	return n, static
}

func appendGlued(dst []byte, e *Entry) []byte {
	dst = append(dst, e.Key...)
	dst = append(dst, '_')
	return append(dst, e.Value...)
}

// trimKey returns the value part of a wildcard's glued text for an entry with the given key, or all of it if the * is
// in the key. complete reports whether the text consists of the key, an underscore and a non-empty value.
func trimKey(glued, key string) (value string, complete bool) {
	if len(glued) > len(key) && glued[len(key)] == '_' && strings.HasPrefix(glued, key) {
		value = glued[len(key)+1:]
		return value, value != ""
	}
	return glued, false
}

// matchedBy states how a node was found for an entry.
type matchedBy uint8

const (
	byText matchedBy = iota
	byWildcard
	byKey
)

// foundBy returns how n was found for e. The order of the lookups makes it independent of n's siblings.
func (n *node) foundBy(e *Entry) matchedBy {
	if len(n.glued) == len(e.Key)+1+len(e.Value) {
		if value, _ := trimKey(n.glued, e.Key); len(value) == len(e.Value) && value == e.Value {
			return byText
		}
	}
	if n.pattern == nil {
		return byKey
	}
	var space [gluedSize]byte
	if n.pattern.match(appendGlued(space[:0], e)) {
		return byWildcard
	}
	return byKey
}

// shared returns the pattern under which e's value is counted. It is empty if the value is counted separately.
func (n *node) shared(e *Entry) string {
	if !n.level.Shared || n.foundBy(e) != byWildcard {
		return ""
	}
	value, _ := trimKey(n.glued, e.Key)
	return value
}

// patternOf returns the text for all values that n matches: its pattern, or * without one.
func (n *node) patternOf(e *Entry) string {
	if n.foundBy(e) != byWildcard {
		return "*"
	}
	value, _ := trimKey(n.glued, e.Key)
	return value
}
