package config

import (
	"fmt"
	"strings"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
)

// AppendStatKey appends the key under which a descriptor's statistics are kept: domain and levels joined by dots, not
// sanitised. m is what Match found for the same domain and entries, Limited, Unlimited or Overridden. With m.Static it
// is m.Rule.FullKey, and need not be built.
//
// A level of a default is the key alone and one of a wildcard keeps its pattern; value_to_metric puts the request's
// value there, detailed_metric puts all of the request's values, and the pattern of a share_threshold beats both.
func (r *Rules) AppendStatKey(dst []byte, domain string, entries []Entry, m *Match) []byte {
	switch {
	case m.Rule == nil:
		return appendOverrideKey(dst, domain, entries)
	case m.Static:
		return append(dst, m.Rule.FullKey...)
	case m.Rule.DetailedMetric:
		return appendDetailedKey(dst, domain, entries, m.Rule)
	}
	dst = append(dst, domain...)
	for i := range entries {
		e, n := &entries[i], m.Rule.path[i]
		dst = append(dst, '.')
		dst = appendLevel(dst, e.Key, n.metricValue(e))
	}
	return dst
}

// metricValue is what stands for e's value in a key without detailed_metric.
func (n *node) metricValue(e *Entry) string {
	found := n.foundBy(e)
	switch {
	case found == byText:
		return e.Value
	case found == byWildcard && n.level.Shared:
		if value, _ := trimKey(n.glued, e.Key); value != "" {
			return value
		}
		fallthrough
	default:
		if n.level.ValueToMetric {
			return e.Value
		}
	}
	if found == byKey {
		return ""
	}
	value, _ := trimKey(n.glued, e.Key)
	return value
}

func appendLevel(dst []byte, key, value string) []byte {
	dst = append(dst, key...)
	if value != "" {
		dst = append(dst, '_')
		dst = append(dst, value...)
	}
	return dst
}

func appendDetailedKey(dst []byte, domain string, entries []Entry, r *RuleSpec) []byte {
	dst = append(dst, domain...)
	sharing := false
	if r.ShareThreshold {
		for i := range entries {
			sharing = sharing || r.Levels[i].Shared && r.path[i].foundBy(&entries[i]) == byWildcard
		}
	}
	for i := range entries {
		e := &entries[i]
		dst = append(dst, '.')
		if !sharing {
			dst = appendGlued(dst, e) // the underscore stands even before an empty value
			continue
		}
		value := r.path[i].shared(e)
		if value == "" {
			value = e.Value
		}
		dst = appendLevel(dst, e.Key, value)
	}
	return dst
}

func appendOverrideKey(dst []byte, domain string, entries []Entry) []byte {
	dst = append(dst, domain...)
	dst = append(dst, '.')
	start := len(dst)
	for i := range entries {
		if len(dst) > start {
			dst = append(dst, '.')
		}
		dst = appendLevel(dst, entries[i].Key, entries[i].Value)
	}
	return dst
}

// Dump lists the limits as /rlconfig does, one line each, in the order of the files. What envoyproxy/ratelimit has no
// word for comes last.
func (r *Rules) Dump() []string {
	lines := make([]string, len(r.rules))
	for i, rule := range r.rules {
		lines[i] = fmt.Sprintf("%s: unit=%s requests_per_unit=%d, shadow_mode: %t, quota_mode: %t",
			rule.FullKey, rule.Unit, rule.Limit.Limit, rule.Shadow, rule.Quota) + rule.way()
	}
	return lines
}

// way is how r counts, where that differs from the default.
func (r *RuleSpec) way() string {
	x, text := &r.Extension, ""
	if x.Algorithm != limit.FixedWindow {
		text += ", algorithm: " + x.Algorithm.String()
	}
	if x.Window > 0 {
		text += ", window: " + x.Window.String()
	}
	if x.Burst > 0 {
		text += fmt.Sprintf(", burst: %d", x.Burst)
	}
	if x.Strict {
		text += ", durability: strict"
	}
	if x.Mechanism != policy.ByOwner {
		text += ", mechanism: " + x.Mechanism.String()
	}
	if x.Epsilon > 0 {
		text += ", epsilon: " + percent(x.Epsilon)
	}
	return text
}

// String is the dump as one text.
func (r *Rules) String() string { return strings.Join(r.Dump(), "\n") }
