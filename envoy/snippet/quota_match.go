package snippet

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/keyward/keyward/internal/config"
)

// quotaConditions returns the predicates that exactly the requests of r meet, as YAML flow mappings: each entry has the rule's value, and none
// that another descriptor takes before. reached is false if no request can meet them, because an entry is constant.
func (g *generator) quotaConditions(r *config.RuleSpec, sources []source) (conditions []string, reached bool) {
	before := g.Rules.Before(r)
	for i, s := range sources {
		if s.kind == constant {
			if len(before[i]) > 0 && anyOf(before[i]...).MatchString(s.Name) {
				return nil, false
			}
			continue
		}
		is := func(match string) string {
			return fmt.Sprintf("single_predicate: {input: {%s}, value_match: {%s}}", s.input(), match)
		}
		if value := r.Levels[i].Value; value != "" {
			conditions = append(conditions, is(valueMatch(value)))
		} else {
			conditions = append(conditions, is(safeRegex(".+"))) // an entry without text is not sent
		}
		if len(before[i]) > 0 {
			conditions = append(conditions, "not_matcher: {"+is(valueMatch(before[i]...))+"}")
		}
	}
	return conditions, true
}

// valueMatch returns a matcher of the texts that any of the values is for.
func valueMatch(values ...string) string {
	if len(values) == 1 && !strings.Contains(values[0], "*") {
		return "exact: " + quote(values[0])
	}
	return safeRegex(anyOf(values...).String())
}

func safeRegex(expr string) string { return "safe_regex: {google_re2: {}, regex: " + quote(expr) + "}" }

// anyOf returns an expression for the whole text of any of the values, in which each * is any text. Its syntax is that of RE2, as Envoy's.
func anyOf(values ...string) *regexp.Regexp {
	all := make([]string, len(values))
	for i, v := range values {
		all[i] = strings.ReplaceAll(regexp.QuoteMeta(v), `\*`, ".*")
	}
	return regexp.MustCompile("^(?:" + strings.Join(all, "|") + ")$")
}

// descriptorID identifies what Envoy sends for a rule: its keys, and where their values come from.
func descriptorID(r *config.RuleSpec, sources []source) string {
	id := fmt.Sprintf("%q", r.Domain)
	for i, s := range sources {
		id += fmt.Sprintf(" %q %d %q %q", r.Levels[i].Key, s.kind, s.Name, s.path)
	}
	return id
}

// findQuotas sets quotaDescriptors.
func (g *generator) findQuotas() {
	g.quotaDescriptors = map[string]*config.RuleSpec{}
	for _, r := range g.Rules.Rules() {
		if !g.isQuota(r) {
			continue
		}
		if sources, err := g.levels(r); err == nil {
			g.quotaDescriptors[descriptorID(r, sources)] = r
		}
	}
}

// quotaConflicts returns the rules whose hits calls take although their descriptor has a quota: the calls would count the hits of the quota,
// too. It also returns quotas that another rule replaces: their filter does not know the other descriptors of a request.
func (g *generator) quotaConflicts() (faults []error) {
	replaced := g.Rules.Replaced()
	for _, r := range g.Rules.Rules() {
		if g.isQuota(r) && r.Name != "" && replaced[r.Name] {
			faults = append(faults, fmt.Errorf("%s: %s has mechanism: quota, and another rule replaces it for some requests: Envoy would count these, too; "+
				"use mechanism: owner", position(r), r.FullKey))
		}
		if g.isQuota(r) || r.Unlimited {
			continue
		}
		sources, err := g.levels(r)
		if err != nil {
			continue // planDomain warns
		}
		if q := g.quotaDescriptors[descriptorID(r, sources)]; q != nil {
			faults = append(faults, fmt.Errorf("%s: %s has the descriptor of %s (%s), which has mechanism: quota: calls for it would count the other's "+
				"requests, too; use one mechanism for both", position(r), r.FullKey, q.FullKey, position(q)))
		}
	}
	return faults
}

// position returns where a rule is in its files.
func position(r *config.RuleSpec) string { return fmt.Sprintf("%s:%d", r.File, r.Line) }
