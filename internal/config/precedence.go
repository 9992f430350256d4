package config

import (
	"slices"
	"strings"
)

// Before returns, for each level of rule, the values of the key that belong to other descriptors: with one of them, [Rules.Match] takes the
// other descriptor, which may have no limit, and never reaches rule. Each * in a value is any text, also none. Wildcards that cover
// a part of the key are left out.
func (r *Rules) Before(rule *RuleSpec) [][]string {
	before := make([][]string, len(rule.path))
	at := &r.domains[rule.Domain].node
	for i, n := range rule.path {
		before[i] = at.before(n)
		at = n
	}
	return before
}

// before returns the values that take precedence over n among the children of its parent: an exact text over a wildcard, an earlier
// wildcard over a later one, and both over the key alone.
func (parent *node) before(n *node) (values []string) {
	if n.level.Value != "" && n.pattern == nil {
		return nil
	}
	own := slices.Index(parent.list, n)
	for i, other := range parent.list {
		value, found := strings.CutPrefix(other.glued, n.level.Key+"_")
		switch {
		case other == n || !found || value == "":
		case n.pattern == nil,
			other.pattern == nil && n.pattern.match([]byte(other.glued)),
			other.pattern != nil && i < own:
			values = append(values, value)
		}
	}
	return values
}
