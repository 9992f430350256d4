package admin

import (
	"strings"

	"github.com/keyward/keyward/internal/config"
)

// maxRules is how many rules /v1/rules lists: what a page can show.
const maxRules = 2000

// RuleTree is what /v1/rules shows: the versions, and the rules in force with what was asked of them here.
type RuleTree struct {
	RulesStatus
	Requests uint64 `json:"requests"` // of Envoys, answered by this member since it started

	Domains []RuleDomain `json:"domains"`
	LeftOut int          `json:"left_out,omitempty"` // rules beyond the first 2000
}

// RuleDomain is the rules of one domain, in the order of the files.
type RuleDomain struct {
	Domain string       `json:"domain"`
	Rules  []RuleStatus `json:"rules"`
}

// RuleStatus is one rule in force.
type RuleStatus struct {
	Path       []string `json:"path"`           // the descriptor, outermost first: key=value, or key for every value
	Key        string   `json:"key"`            // name in statistics and in /rlconfig
	Name       string   `json:"name,omitempty"` // what other rules name to replace it
	Limit      uint32   `json:"limit"`
	Unit       string   `json:"unit"`   // as written, in lower case
	Window     string   `json:"window"` // what counts
	Algorithm  string   `json:"algorithm"`
	Burst      uint32   `json:"burst,omitempty"`
	Mechanism  string   `json:"mechanism"`
	Degraded   string   `json:"degraded"`
	Durability string   `json:"durability"`
	Shadow     bool     `json:"shadow"`
	Quota      bool     `json:"quota"`
	Unlimited  bool     `json:"unlimited"`
	File       string   `json:"file"`
	Line       int      `json:"line,omitempty"`
	// What Envoys have asked this member since it started, whoever counts it; nil where statistics are kept by key.
	*RuleTotals
}

// RuleTotals are the hits of one rule, as in envoyproxy/ratelimit's statistics.
type RuleTotals struct {
	TotalHits uint64 `json:"total_hits"`
	OverLimit uint64 `json:"over_limit"`
	NearLimit uint64 `json:"near_limit"`
	Shadowed  uint64 `json:"shadow_mode"`
}

// NewRuleTree lists the rules, nil when there are none yet. totals may say nothing of a rule.
func NewRuleTree(versions RulesStatus, rules *config.Rules, totals func(*config.RuleSpec) *RuleTotals) RuleTree {
	t := RuleTree{RulesStatus: versions, Domains: []RuleDomain{}}
	if rules == nil {
		return t
	}
	at := map[string]int{}
	for i, name := range rules.Domains() {
		at[name] = i
		t.Domains = append(t.Domains, RuleDomain{Domain: name, Rules: []RuleStatus{}})
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

func newRule(r *config.RuleSpec, totals *RuleTotals) RuleStatus {
	x := &r.Extension
	out := RuleStatus{
		Path: []string{}, Key: r.FullKey, Name: r.Name, Limit: r.Limit.Limit, Unit: unitName(r), Window: r.Limit.Window.String(),
		Algorithm: x.Algorithm.String(), Burst: x.Burst, Mechanism: x.Mechanism.String(), Degraded: x.Degraded.String(), Durability: "async",
		Shadow: r.Shadow, Quota: r.Quota, Unlimited: r.Unlimited, File: r.File, Line: r.Line, RuleTotals: totals,
	}
	if x.Strict {
		out.Durability = "strict"
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

// unitName is the unit as a file writes it; empty where nothing is limited.
func unitName(r *config.RuleSpec) string {
	if r.Unit == config.UnitUnknown {
		return ""
	}
	return strings.ToLower(r.Unit.String())
}
