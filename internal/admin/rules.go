package admin

import (
	"strings"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/config"
)

// maxRules is the largest number of rules that /v1/rules lists: more than a page can show.
const maxRules = 2000

// NewRuleTree lists rules, which is nil before the first version. totals returns nil for a rule without totals.
func NewRuleTree(versions api.RulesStatus, rules *config.Rules, totals func(*config.RuleSpec) *api.RuleTotals) api.RuleTree {
	t := api.RuleTree{RulesStatus: versions, Domains: []api.RuleDomain{}}
	if rules == nil {
		return t
	}
	at := map[string]int{}
	for i, name := range rules.Domains() {
		at[name] = i
		t.Domains = append(t.Domains, api.RuleDomain{Domain: name, Rules: []api.RuleStatus{}})
	}
	all := rules.Rules()
	if len(all) > maxRules {
		t.LeftOut, all = len(all)-maxRules, all[:maxRules]
	}
	for _, r := range all {
		d := &t.Domains[at[r.Domain]]
		d.Rules = append(d.Rules, newRule(r, totals(r)))
	}
	return t
}

func newRule(r *config.RuleSpec, totals *api.RuleTotals) api.RuleStatus {
	x := &r.Extension
	out := api.RuleStatus{
		Path: []string{}, Key: r.FullKey, Name: r.Name, Limit: r.Limit.Limit, Unit: unitName(r), Window: r.Limit.Window.String(),
		Algorithm: x.Algorithm.String(), Burst: x.Burst, Mechanism: x.Mechanism.String(), Degraded: x.Degraded.String(), Partition: x.Partition.String(), Durability: "async",
		Shadow: r.Shadow, Quota: r.Quota, Unlimited: r.Unlimited, File: r.File, Line: r.Line, RuleTotals: totals,
	}
	if x.Fair != nil {
		out.Fair = x.Fair.String()
	}
	out.Holds = x.HoldSettings()
	if d := x.Durability(); d != "async" {
		out.Durability = d
	}
	for _, l := range r.Levels {
		text := l.Key
		if l.Value != "" {
			text += "=" + l.Value
		}
		out.Path = append(out.Path, text)
	}
	return out
}

// unitName returns the unit as in a rule file, or "" for a rule without a limit.
func unitName(r *config.RuleSpec) string {
	if r.Unit == config.UnitUnknown {
		return ""
	}
	return strings.ToLower(r.Unit.String())
}
