package rulecheck

import (
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
)

// OutageCost is the cost of one rule while no member can reach the owner of a key for a given time.
type OutageCost struct {
	Seconds  float64      `json:"seconds"`
	Windows  uint64       `json:"windows"`  // windows of the rule that the outage takes, rounded up
	Policies []PolicyCost `json:"policies"` // of every degraded policy; one of them is the rule's own
}

// PolicyCost is the cost of an outage with one degraded policy, for one key.
type PolicyCost struct {
	Policy       string `json:"policy"`
	Current      bool   `json:"current"`               // the rule has this policy
	Over         uint64 `json:"over"`                  // hits above the limit in the complete outage, at most
	OverFormula  string `json:"over_is"`               // in the symbols of RuleBounds
	Partial      uint64 `json:"over_partial"`          // added to Over if the outage does not begin with a window
	Under        uint64 `json:"under"`                 // hits within the limit that may be refused in each window, at most
	UnderFormula string `json:"under_is"`              // in the symbols of RuleBounds
	UnderAfter   string `json:"under_after,omitempty"` // from when on; empty if Under is 0

	perWindow term   // hits above the limit in each window
	once      []term // hits above the limit, whatever the length of the outage
}

// outageOf returns the cost of an outage of the given length. The rule is limited, and c has at least two members.
func outageOf(r *config.RuleSpec, c Conditions) *OutageCost {
	o := &OutageCost{Seconds: c.Outage.Seconds(), Windows: uint64((c.Outage-1)/r.Limit.Window) + 1}
	for _, d := range []policy.Degraded{policy.FailOpen, policy.LocalShare, policy.FailClosed} {
		with := *r
		with.Extension.Degraded = d
		p := policyCost(&with, uint64(c.Members))
		p.Current = d == r.Extension.Degraded
		p.sum(r.Limit, c.Outage, o.Windows)
		o.Policies = append(o.Policies, p)
	}
	return o
}

// policyCost returns the cost of r's degraded policy for each window, without sums.
func policyCost(r *config.RuleSpec, n uint64) PolicyCost {
	var b RuleBounds
	b.quantities(r, n)
	p := PolicyCost{Policy: r.Extension.Degraded.String(), UnderAfter: "at once"}
	least, all := b.Share, "L"
	if b.Depth > 0 {
		all = "(b + L)"
	}
	switch capped := r.Extension.LocalCap > 0; {
	case r.Extension.Degraded == policy.FailClosed:
		p.once = []term{{"Phi", b.Phi}}
		p.Under, p.UnderFormula, p.UnderAfter = most(r), all, "once what was last known to be left is spent"
	case r.Extension.Degraded == policy.LocalShare:
		p.perWindow = term{"Phi", shares(b.Limit, n)}
		p.once = []term{{"Phi of b", b.Phi - p.perWindow.n}}
	case capped:
		p.perWindow = term{"N x local_cap", n * uint64(r.Extension.LocalCap)}
		p.once = []term{{"N x local_cap", b.Open - p.perWindow.n}}
		least = min(least, b.Open/n)
	case b.Limit > 0 && b.Limit < n:
		p.perWindow = term{"N", n}
		p.once = []term{{"max(b, N)", b.Open - min(b.Open, n)}}
	default:
		p.perWindow = term{"L", b.Limit}
		p.once = []term{{"b", b.Open - b.Limit}}
	}
	p.once = append(p.once, term{"E", b.Drift})
	if r.Extension.Degraded != policy.FailClosed {
		p.Under, p.UnderFormula = most(r)-min(most(r), least), all+" - share"
		if least < b.Share {
			p.UnderFormula = all + " - open/N"
		}
	}
	if p.Under == 0 {
		p.UnderFormula, p.UnderAfter = "0", ""
	}
	return p
}

// sum sets the sums over an outage that takes the given number of windows. A bucket has no windows: it gains a window's
// hits in the time of a window.
func (p *PolicyCost) sum(r limit.Rule, outage time.Duration, windows uint64) {
	all := term{"0", 0}
	switch flow := p.perWindow; {
	case flow.n == 0:
	case r.Algorithm.Bucket():
		all = term{fmt.Sprintf("%s x %s/%s", flow.symbol, outage, r.Window), mulDiv(flow.n, uint64(outage), uint64(r.Window))}
	default:
		all = term{fmt.Sprintf("%s x %d", flow.symbol, windows), mulDiv(flow.n, windows, 1)}
		p.Partial = flow.n
	}
	terms := append([]term{all}, slices.DeleteFunc(p.once, func(t term) bool { return t.n == 0 })...)
	total := sum("", terms...)
	p.Over, p.OverFormula = total.Over, total.OverFormula
}

// mulDiv returns x * num / den, rounded up, or the largest number if that is more.
func mulDiv(x, num, den uint64) uint64 {
	hi, lo := bits.Mul64(x, num)
	if hi >= den {
		return 1<<64 - 1
	}
	q, rest := bits.Div64(hi, lo, den)
	if rest > 0 {
		q = limit.SaturatingAdd(q, 1)
	}
	return q
}
