package config

import (
	"fmt"
	"strings"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
)

// AppendStatKey appends the key of a descriptor's statistics: domain and levels joined by dots, not sanitized. m is the
// result of Match for the same domain and entries, and must be Limited, Unlimited or Overridden. If m.Static is set,
// the key is m.Rule.FullKey.
//
// A level without a value contributes its key alone, and a wildcard its pattern. With value_to_metric the value of the
// request is used instead, and with detailed_metric all values of the request. The pattern of a share_threshold level
// takes precedence.
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

// metricValue returns the value of e in a key without detailed_metric.
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
			dst = appendGlued(dst, e) // includes the underscore before an empty value
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

// Dump returns the limits as /rlconfig prints them, one line each, in the order of the files. Keyward's own settings
// are at the end of each line.
func (r *Rules) Dump() []string {
	lines := make([]string, len(r.rules))
	for i, rule := range r.rules {
		lines[i] = fmt.Sprintf("%s: unit=%s requests_per_unit=%d, shadow_mode: %t, quota_mode: %t",
			rule.FullKey, rule.Unit, rule.Limit.Limit, rule.Shadow, rule.Quota) + rule.settings()
	}
	return lines
}

// settings returns Keyward's own settings that differ from the defaults.
func (r *RuleSpec) settings() string {
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
	if d := x.Durability(); d != "async" {
		text += ", durability: " + d
	}
	if x.Mechanism != policy.ByOwner {
		text += ", mechanism: " + x.Mechanism.String()
	}
	if x.Partition != 0 {
		text += ", partition: " + x.Partition.String()
	}
	if f := x.Federation; f != nil {
		text += fmt.Sprintf(", federation: %s", f)
	}
	if f := x.Fair; f != nil {
		text += fmt.Sprintf(", fair: %s", f)
	}
	if x.Epsilon > 0 {
		text += ", epsilon: " + percent(x.Epsilon)
	}
	return text
}

// String returns the dump as one text.
func (r *Rules) String() string { return strings.Join(r.Dump(), "\n") }
