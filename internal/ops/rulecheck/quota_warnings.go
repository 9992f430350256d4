package rulecheck

import (
	"strings"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/policy"
)

// quotaPart is the least part of a limit for each Envoy at which grants waste little: an Envoy that is idle keeps 10 hits.
const quotaPart = 100

// quotaRate is the least rate of hits per second for each Envoy at which reports are cheaper than calls.
const quotaRate = 40

// quota warns about limits that are too small or too slow for so many Envoys, about requests before the first grant, and
// about Envoys whose sidecar is away.
func (w *linter) quota(r *config.RuleSpec) {
	q := r.Extension.Quota
	if q == nil {
		return
	}
	if q.OnlyHot && (r.Shadow || r.SharesCounter || len(r.Levels) != 1) {
		w.advise(r, "never-switches", q.Instead(), "'%s' has hot_step: quota, and stays with calls when its keys are hot: it is in shadow mode, its values share a counter, "+
			"or its descriptor has several entries", r.FullKey)
	}
	if n := q.Envoys; n > 0 && uint64(r.Limit.Limit) < quotaPart*uint64(n) {
		w.advise(r, "small-quota", q.Instead(), "'%s' grants a limit of %d to %d Envoys: below %d for each Envoy, a part of the limit "+
			"stays unspent at those with few requests", r.FullKey, r.Limit.Limit, n, quotaPart)
	}
	if n := q.Envoys; n > 0 && uint64(r.Limit.Limit) >= quotaPart*uint64(n) && float64(r.Limit.Limit)/r.Limit.Window.Seconds() < quotaRate*float64(n) {
		w.advise(r, "slow-quota", q.Instead(), "'%s' allows %d Envoys together fewer than %d hits per second each: Envoys report and are "+
			"assigned parts every 5s, which costs as much as calls", r.FullKey, n, quotaRate)
	}
	switch x := &r.Extension; {
	case x.Degraded == policy.FailOpen && x.LocalCap > 0:
		w.add(r, "quota-outage", "'%s' has local_cap %d: it bounds calls only; while their sidecar is away, Envoys that spend the limit admit everything",
			r.FullKey, x.LocalCap)
	case x.Degraded == policy.LocalShare && q.Envoys == 0 && !r.Shadow:
		w.advise(r, "quota-outage", "set envoys, or degraded: fail_closed", "'%s' has degraded: local_share without envoys: while their sidecar is away, Envoys "+
			"that spend the limit refuse everything", r.FullKey)
	}
	if q.First == config.FirstAllow {
		w.add(r, "first-allow", "'%s' has first: allow: requests that reach an Envoy before its first grant are admitted, and charged "+
			"afterwards, also above the limit", r.FullKey)
	}
}

// quotaNeighbors warns about rules with mechanism: quota or hot_step: quota that others replace, and about those whose descriptor has rules
// with another mechanism: Envoy sends one descriptor for all of its values, so the calls for one value count the hits of the others, too.
func (w *linter) quotaNeighbors(rules *config.Rules) {
	replaced, quotas := rules.Replaced(), map[string]*config.RuleSpec{}
	for _, r := range rules.Rules() {
		if r.Extension.Quota.Always() {
			quotas[sentAs(r)] = r
		}
		if q := r.Extension.Quota; q != nil && r.Name != "" && replaced[r.Name] {
			w.advise(r, "quota-replaced", q.Instead(), "'%s' is replaced for some requests: an Envoy that spends its limit does not know that, and would count them",
				r.FullKey)
		}
	}
	for _, r := range rules.Rules() {
		if q := quotas[sentAs(r)]; q != nil && !r.Extension.Quota.Always() && !r.Unlimited {
			w.advise(r, "quota-and-calls", "use one mechanism for both", "'%s' has the descriptor of '%s' (%s:%d), which has mechanism: quota: calls for it would count the requests of "+
				"both, so envoy-config refuses the rules", r.FullKey, q.FullKey, q.File, q.Line)
		}
	}
}

// sentAs identifies the descriptor that Envoy sends for a rule: its keys, and the values that are part of Envoy's configuration.
func sentAs(r *config.RuleSpec) string {
	var b strings.Builder
	b.WriteString(r.Domain)
	for _, l := range r.Levels {
		b.WriteString("\x00" + l.Key)
		if l.Key == "generic_key" {
			b.WriteString("\x00" + l.Value)
		}
	}
	return b.String()
}
