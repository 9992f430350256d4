package config

import (
	"fmt"
	"slices"
)

// RuleChange is what another version of the rules changes for those who are limited.
type RuleChange struct {
	Kind   ChangeKind
	Rule   string // FullKey
	File   string // where the new rule is; of a rule that is gone, where it was
	Line   int    // 0 when unknown
	Column int
	Text   string
}

// ChangeKind is a sort of change.
type ChangeKind string

// The kinds of changes.
const (
	RuleAdded   ChangeKind = "added"
	RuleRemoved ChangeKind = "removed"
	NewAmount   ChangeKind = "amount"      // from the switch on it meets the count that stands
	CountsAnew  ChangeKind = "counts-anew" // in the window of the change as many hits as both limits together may pass
	NewWay      ChangeKind = "way"         // the limit is the same, not who is refused or what answers while an owner is away
)

// Changes lists what differs between two versions for those who are limited: in the order of the new rules, then what is
// gone. A rule is the same rule when its domain and levels are.
func Changes(old, rules *Rules) []RuleChange {
	var all []RuleChange
	add := func(kind ChangeKind, r *RuleSpec, format string, args ...any) {
		all = append(all, RuleChange{kind, r.FullKey, r.File, r.Line, r.Column, fmt.Sprintf("'%s' %s", r.FullKey, fmt.Sprintf(format, args...))})
	}
	before, after := byFullKey(old), byFullKey(rules)
	for _, r := range rules.rules {
		was := before[r.FullKey]
		if was == nil {
			add(RuleAdded, r, "is new: %s", r.said())
			continue
		}
		if what := anew(was, r); what != "" {
			add(CountsAnew, r, "counts anew, for its %s is another: up to %d hits may pass in the window of the change", what, was.most()+r.most())
		} else if was.said() != r.said() {
			add(NewAmount, r, "lets through %s, so far %s; this meets what is counted already", r.said(), was.said())
		}
		for _, w := range ways(was, r) {
			add(NewWay, r, "%s", w)
		}
	}
	for _, r := range old.rules {
		if after[r.FullKey] == nil {
			add(RuleRemoved, r, "is gone (%s): what it was about is limited by another rule, or by none", r.said())
		}
	}
	return all
}

func byFullKey(rules *Rules) map[string]*RuleSpec {
	m := make(map[string]*RuleSpec, len(rules.rules))
	for _, r := range rules.rules {
		m[r.FullKey] = r
	}
	return m
}

// said is what r lets through, in words.
func (r *RuleSpec) said() string {
	switch {
	case r.Unlimited:
		return "any number of hits"
	case r.Limit.Burst > 0:
		return fmt.Sprintf("%s, %d at once", r.amount(), r.Limit.Burst)
	default:
		return r.amount()
	}
}

// anew is what makes r's counters others than was had; empty when they are the same.
func anew(was, r *RuleSpec) string {
	if was.Unlimited || r.Unlimited {
		return ""
	}
	for _, what := range []struct {
		name    string
		changed bool
	}{
		{"unit", was.Limit.Window != r.Limit.Window && was.Unit != r.Unit},
		{"window", was.Limit.Window != r.Limit.Window},
		{"algorithm", was.Limit.Algorithm != r.Limit.Algorithm},
		{"share_threshold", !slices.EqualFunc(was.Levels, r.Levels, func(a, b Level) bool { return a.Shared == b.Shared })},
		{"shard_by", !slices.Equal(was.Extension.ShardBy, r.Extension.ShardBy) && !slices.Equal(was.ownerAt, r.ownerAt)},
		{"owner", was.ownerText != r.ownerText || !slices.Equal(was.ownerAt, r.ownerAt)},
	} {
		if what.changed {
			return what.name
		}
	}
	return ""
}

// ways are the other differences that somebody notices.
func ways(was, r *RuleSpec) (texts []string) {
	mode := func(name string, before, now bool) {
		if before != now {
			texts = append(texts, fmt.Sprintf("has %s: %t, so far %t", name, now, before))
		}
	}
	mode("shadow_mode", was.Shadow, r.Shadow)
	mode("quota_mode", was.Quota, r.Quota)
	if r.Unlimited || was.Unlimited {
		return texts
	}
	mode("durability: strict", was.Extension.Strict, r.Extension.Strict)
	if a, b := was.Extension.Degraded, r.Extension.Degraded; a != b {
		texts = append(texts, fmt.Sprintf("has degraded: %s, so far %s", b, a))
	}
	if a, b := was.Extension.Mechanism, r.Extension.Mechanism; a != b {
		texts = append(texts, fmt.Sprintf("has mechanism: %s, so far %s", b, a))
	}
	return texts
}
