package config

import (
	"math"
	"strings"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
)

// MatchKind is what became of a descriptor.
type MatchKind uint8

// The kinds.
const (
	NoRule     MatchKind = iota // nothing limits it: answer OK
	NoDomain                    // its domain is not configured: answer OK and count domain_not_found
	Limited                     // Match.Rule limits it
	Unlimited                   // Match.Rule says that nothing does
	Overridden                  // the limit that came with the descriptor does
	BadUnit                     // the limit that came with it has a unit that names no window: an error
)

// Override is a limit that comes with a descriptor.
type Override struct {
	Limit uint32
	Unit  Unit
}

// Match is what Rules.Match found. All but Kind is meaningful for Limited and Overridden only, and Rule for Unlimited.
type Match struct {
	Rule   *RuleSpec  // nil for an override: neither its name nor its flags are any rule's
	Digest [2]uint64  // of the counter: who is counted, by which windows; never of amounts
	Owner  uint64     // ring position of the counter: Envoy's hash of the owner string
	Limit  limit.Rule // what to count by
	Unit   Unit       // with Times: what an answer says of the window; UnitUnknown when no whole seconds make it up
	Times  uint32     // units in the window
	Kind   MatchKind
	Static bool // the statistics' key is Rule.FullKey; else see AppendStatKey

	placed *RuleSpec // whose levels place the owner: Rule, or the one an override hides
}

// gluedSize and digestSize hold ordinary descriptors on the stack; longer ones cost an allocation.
const (
	gluedSize  = 256
	digestSize = 384
)

// Match fills m with what limits the descriptor made of entries. An override takes the place of the rules in any
// domain that is configured. It never allocates for descriptors of ordinary size.
func (r *Rules) Match(domain string, entries []Entry, override *Override, m *Match) {
	*m = Match{}
	d := r.domains[domain]
	if d == nil {
		m.Kind = NoDomain
		return
	}
	leaf, static := d.find(entries)
	if leaf != nil {
		m.placed = leaf.rule
	}
	switch {
	case override != nil:
		if !m.override(override) {
			m.Kind = BadUnit
			return
		}
	case m.placed == nil:
		return
	case m.placed.Unlimited:
		m.Kind, m.Rule = Unlimited, m.placed
		m.Static = static && !m.Rule.DetailedMetric
		return
	default:
		m.Kind, m.Rule, m.Limit = Limited, m.placed, m.placed.Limit
		m.Unit, m.Times = m.placed.told, m.placed.times
		m.Static = static && !m.Rule.DetailedMetric
	}
	m.Digest = r.digest(d, entries, m)
	m.Owner = ownerHash(domain, entries, m)
}

// override takes o's amount and unit. What metadata.keyward of the rule that it hides says goes on to hold: the algorithm
// and, in the unit of that rule, its window, so that both meet in one count; a burst grows and shrinks with the amount.
func (m *Match) override(o *Override) (ok bool) {
	m.Kind, m.Unit, m.Times = Overridden, o.Unit, 1
	m.Limit = limit.Rule{Window: o.Unit.Window(), Limit: o.Limit}
	if hidden := m.placed; hidden != nil && !hidden.Unlimited {
		m.Limit.Algorithm, m.Limit.Burst = hidden.Limit.Algorithm, hidden.burst(o.Limit)
		if o.Unit == hidden.Unit {
			m.Limit.Window, m.Unit, m.Times = hidden.Limit.Window, hidden.told, hidden.times
		}
	}
	return m.Limit.Window > 0
}

// burst is r's, for another limit than its own, in proportion.
func (r *RuleSpec) burst(of uint32) uint32 {
	if r.Limit.Burst == 0 || r.Limit.Limit == 0 {
		return r.Limit.Burst
	}
	n := uint64(r.Limit.Burst) * uint64(of) / uint64(r.Limit.Limit)
	return uint32(min(max(1, n), math.MaxUint32))
}

// Extension is what metadata.keyward says of the counter: that of the rule, also of one that an override hides. What may
// drift is a part of the rule's limit, too much for a lower one: hits on that are decided by the owner, and its knobs are the defaults.
func (m *Match) Extension() Extension {
	if m.placed == nil {
		return Extension{}
	}
	x := m.placed.Extension
	if x.Mechanism == policy.Approximate && m.Limit.Limit < m.placed.Limit.Limit {
		x.Mechanism, x.Lease = policy.ByOwner, nil // knobs with a slack would still say: approximate
	}
	return x
}

// find walks down the levels: the glued text, else the first wildcard that matches it, else the bare key; what is
// taken is never taken back. It returns the node of the last entry, nil when the walk ends before it. static says that
// the statistics' key has nothing of the request in it.
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
				_, whole := trimKey(next.glued, e.Key)
				static = static && whole && (next.level.Shared || !next.level.ValueToMetric)
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

// trimKey is the value's part of a wildcard's glued text for an entry of the given key: all of it when the * is in
// the key. whole says that key, underscore and a value that is not empty make up the text again.
func trimKey(glued, key string) (value string, whole bool) {
	if len(glued) > len(key) && glued[len(key)] == '_' && strings.HasPrefix(glued, key) {
		value = glued[len(key)+1:]
		return value, value != ""
	}
	return glued, false
}

// by is how a node was found for an entry.
type by uint8

const (
	byText by = iota
	byWildcard
	byKey
)

// foundBy tells again how n was found for e. It need not look at n's siblings: the order of the look-ups decides.
func (n *node) foundBy(e *Entry) by {
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

// shared is the pattern that e's value counts as; empty when it counts as itself.
func (n *node) shared(e *Entry) string {
	if !n.level.Shared || n.foundBy(e) != byWildcard {
		return ""
	}
	value, _ := trimKey(n.glued, e.Key)
	return value
}
