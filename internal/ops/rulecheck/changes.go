package rulecheck

import (
	"fmt"
	"slices"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/policy"
)

// The kinds of changes.
const (
	RuleAdded   = "added"
	RuleRemoved = "removed"
	NewAmount   = "amount"       // the new limit applies to the existing counts
	CountsReset = "counts-reset" // counters restart: in the window of the change both limits together may be admitted
	NewWay      = "way"          // the limit is the same; enforcement, durability or the degraded policy differ
)

// Changes returns how the decisions of two versions of the rules differ, in the order of the new rules, followed by the
// removed rules. Rules with the same domain and levels are versions of one rule.
func Changes(old, rules *config.Rules) []config.Diagnostic {
	var all []config.Diagnostic
	add := func(kind string, r *config.RuleSpec, format string, args ...any) {
		all = append(all, config.Diagnostic{
			Kind: kind, Rule: r.FullKey, File: r.File, Line: r.Line, Column: r.Column,
			Text: fmt.Sprintf("'%s' %s", r.FullKey, fmt.Sprintf(format, args...)),
		})
	}
	before, after := byFullKey(old), byFullKey(rules)
	for _, r := range rules.Rules() {
		was := before[r.FullKey]
		if was == nil {
			add(RuleAdded, r, "is new: %s", amount(r))
			continue
		}
		if what := resetBy(was, r); what != "" {
			add(CountsReset, r, "starts new counters because its %s changes: up to %d hits may be admitted in the window of "+
				"the change",
				what, most(was)+most(r))
		} else if amount(was) != amount(r) {
			add(NewAmount, r, "admits %s instead of %s; the new limit applies to the existing counts", amount(r), amount(was))
		}
		for _, d := range otherDifferences(was, r) {
			add(NewWay, r, "%s", d)
		}
	}
	for _, r := range old.Rules() {
		if after[r.FullKey] == nil {
			add(RuleRemoved, r, "is removed (%s): another rule limits its requests, or none does", amount(r))
		}
	}
	return all
}

func byFullKey(rules *config.Rules) map[string]*config.RuleSpec {
	m := map[string]*config.RuleSpec{}
	for _, r := range rules.Rules() {
		m[r.FullKey] = r
	}
	return m
}

// amount describes what a rule admits.
func amount(r *config.RuleSpec) string {
	switch {
	case r.Unlimited:
		return "any number of hits"
	case r.Limit.Burst > 0:
		return fmt.Sprintf("%s, %d at once", r.Amount(), r.Limit.Burst)
	default:
		return r.Amount()
	}
}

// resetBy names the setting whose change gives a rule new counters. It is empty if the counters stay.
func resetBy(was, r *config.RuleSpec) string {
	if was.Unlimited || r.Unlimited {
		return ""
	}
	movedByEntry := !slices.Equal(was.OwnerLevels(), r.OwnerLevels())
	for _, setting := range []struct {
		name    string
		changed bool
	}{
		{"unit", was.Limit.Window != r.Limit.Window && was.Unit != r.Unit},
		{"window", was.Limit.Window != r.Limit.Window},
		{"algorithm", was.Limit.Algorithm != r.Limit.Algorithm},
		{"share_threshold", !slices.EqualFunc(was.Levels, r.Levels, equalSharing)},
		{"fair", fairEntry(was) != fairEntry(r)},
		{"mechanism", (was.Extension.Mechanism == policy.Static) != (r.Extension.Mechanism == policy.Static)},
		{"shard_by", movedByEntry && !slices.Equal(was.Extension.ShardBy, r.Extension.ShardBy)},
		{"owner", movedByEntry || was.OwnerString() != r.OwnerString()},
	} {
		if setting.changed {
			return setting.name
		}
	}
	return ""
}

func equalSharing(a, b config.Level) bool { return a.Shared == b.Shared }

// otherDifferences describes the changes that leave the amount and the counters alone.
func otherDifferences(was, r *config.RuleSpec) (texts []string) {
	add := func(name string, before, now any) {
		if before != now {
			texts = append(texts, fmt.Sprintf("changes %s from %v to %v", name, before, now))
		}
	}
	add("shadow_mode", was.Shadow, r.Shadow)
	add("quota_mode", was.Quota, r.Quota)
	if r.Unlimited || was.Unlimited {
		return texts
	}
	add("durability", durability(was), durability(r))
	add("degraded", was.Extension.Degraded, r.Extension.Degraded)
	add("partition", partition(was), partition(r))
	add("mechanism", was.Extension.MechanismName(), r.Extension.MechanismName())
	add("fair", fairness(was), fairness(r))
	add("holds", holds(was), holds(r))
	return texts
}

// fairEntry returns the key of the entry by which the rule's limit is divided, or "".
func fairEntry(r *config.RuleSpec) string {
	if f := r.Extension.Fair; f != nil {
		return f.Entry
	}
	return ""
}

// fairness returns how the rule's limit is divided between tenants.
func fairness(r *config.RuleSpec) string {
	if f := r.Extension.Fair; f != nil {
		return f.String()
	}
	return "none"
}

// holds returns the settings of holds as they are written in a rules file.
func holds(r *config.RuleSpec) string {
	if text := r.Extension.HoldSettings(); text != "" {
		return "'" + text + "'"
	}
	return "none"
}

// partition returns the setting as it is written in a rules file.
func partition(r *config.RuleSpec) string {
	if p := r.Extension.Partition; p != 0 {
		return p.String()
	}
	return "the members' own"
}

// durability returns the setting as it is written in a rules file.
func durability(r *config.RuleSpec) string {
	if r.Extension.Strict {
		return "strict"
	}
	return "async"
}
