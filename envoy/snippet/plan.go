package snippet

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/keyward/keyward/internal/config"
)

// domain is one rate limit filter: a filter of Envoy calls with one domain.
type domain struct {
	Name        string
	Filter      string // name of the filter; empty: by the domain
	Header      string // with Filter: that routes of hot keys must match
	Descriptors []descriptor
	Key         expr
	Notes       []string // comments on the line of the header
	Caps        []capRow // of Options.Caps
	Module      string   // configuration of the dynamic module; empty: the domain has none
	Matcher     bool     // the module is a matcher of the rate limit filter
}

// descriptor is an element of rate_limits.
type descriptor struct {
	Actions []string // YAML flow mappings without braces
	Entries []entry  // the same, for gateways with their own schema
	Rules   []string // rules that it is for
	Capped  bool     // a row of the domain's caps is for it
	Holds   holds
}

// entry is an entry of a descriptor: its key and the source of its value.
type entry struct {
	Key string
	source
}

// plan builds the domains from the rules.
func (g *generator) plan() (faults []error) {
	if !g.OwnRules() {
		return append(g.planOwn(), g.planECDS()...)
	}
	if g.Rules != nil {
		g.findQuotas()
		for _, name := range g.Rules.Domains() {
			if d := g.planDomain(name); len(d.Descriptors) > 0 {
				g.Domains = append(g.Domains, d)
			}
			g.Domains = append(g.Domains, g.planHotQuotas(name)...)
		}
	}
	if g.Shape == Routes {
		g.planRoutes()
		return slices.Concat(g.planHot(), g.planECDS(), g.planCaps())
	}
	if faults := g.planQuotas(); len(faults) > 0 {
		return faults
	}
	if len(g.Domains)+len(g.Quotas) == 0 && g.Part != partCluster && !g.secrets() {
		for _, w := range g.warnings {
			faults = append(faults, errors.New(w))
		}
		return append(faults, errors.New("no calls are left: there are no rules, or none whose values Envoy can find"))
	}
	return slices.Concat(g.planHot(), g.planECDS(), g.planCaps(), g.planHolds(), g.planModule())
}

// planDomain turns the levels of each rule into the entries of a descriptor.
func (g *generator) planDomain(name string) domain {
	d := domain{Name: name}
	var owners []ruleOwner
	for _, r := range g.Rules.Rules() {
		if r.Domain != name || g.isQuota(r) {
			continue
		}
		sources, err := g.levels(r)
		if err != nil {
			g.warn("%v", err)
			continue
		}
		if g.sharesHotQuota(r, sources) {
			continue // see planHotQuotas
		}
		if r.Unlimited && g.quotaDescriptors[descriptorID(r, sources)] != nil {
			continue // a call would count the hits of the quota
		}
		d.add(r, sources)
		if !r.Unlimited {
			owners = append(owners, ruleOwner{r, ownerOf(r, sources)})
		}
	}
	if g.SaysKey() {
		g.choose(&d, owners)
	}
	return d
}

// levels returns the source of each entry of the rule.
func (g *generator) levels(r *config.RuleSpec) ([]source, error) {
	sources := make([]source, len(r.Levels))
	for i, l := range r.Levels {
		s := g.sourceOf(l)
		if s.kind == unknownSource && len(g.from[l.Key]) > 0 {
			return nil, fmt.Errorf("domain %s: your Envoy never sends %s=%s, so %s is never applied", r.Domain,
				l.Key, l.Value, r.FullKey)
		}
		if s.kind == unknownSource && !l.Variable {
			s = source{kind: constant, Name: l.Value}
			if l.Key != "generic_key" {
				g.warn("domain %s: every call has %s=%s, because the source of %s is unknown: --from %s=header:NAME", r.Domain,
					l.Key, l.Value, l.Key, l.Key)
			}
		}
		if s.kind == unknownSource {
			return nil, fmt.Errorf("domain %s: the source of %s is unknown, so %s is never applied: --from %s=header:NAME",
				r.Domain, l.Key, r.FullKey, l.Key)
		}
		sources[i] = s
	}
	return sources, nil
}

// sourceOf returns the source of a level's value. For a fixed value it prefers the constant with that value: several
// actions may share a key.
func (g *generator) sourceOf(l config.Level) source {
	all := g.from[l.Key]
	if len(all) == 0 {
		return fixedSource(l.Key)
	}
	for _, s := range all {
		if !l.Variable && s.kind == constant && s.Name == l.Value {
			return s
		}
	}
	for _, s := range all {
		if l.Variable || s.kind != constant || len(g.Envoy) == 0 {
			return s
		}
	}
	return source{}
}

func (d *domain) add(r *config.RuleSpec, sources []source) {
	var x descriptor
	for i, s := range sources {
		x.Actions = append(x.Actions, s.action(r.Levels[i].Key))
		x.Entries = append(x.Entries, entry{r.Levels[i].Key, s})
	}
	for i := range d.Descriptors {
		if slices.Equal(d.Descriptors[i].Actions, x.Actions) {
			d.Descriptors[i].Rules = append(d.Descriptors[i].Rules, r.FullKey)
			d.Descriptors[i].Holds.merge(holdsOf(r))
			return
		}
	}
	x.Rules, x.Holds = []string{r.FullKey}, holdsOf(r)
	d.Descriptors = append(d.Descriptors, x)
}

// ruleOwner is a rule with the format of its owner string.
type ruleOwner struct {
	rule *config.RuleSpec
	expr expr
}

// ownerOf returns the format of a rule's owner string: the values of its owner levels joined by |, or the rule
// itself.
func ownerOf(r *config.RuleSpec, sources []source) expr {
	at := r.OwnerLevels()
	if len(at) == 0 {
		text := r.Domain
		for _, l := range r.Levels {
			text += "|" + l.Key + "=" + l.Value
		}
		return expr{Format: literal(text), What: "the rule itself"}
	}
	parts := make([]expr, len(at))
	for n, i := range at {
		parts[n] = sources[i].expr(r.Levels[i].Key)
		if r.Levels[i].Shared {
			parts[n] = expr{Format: literal(r.Levels[i].Value), What: r.Levels[i].Key} // all values count as one
		}
	}
	if len(parts) == 1 {
		return parts[0]
	}
	var formats, keys []string
	varies := false
	for _, p := range parts {
		varies = varies || p.Varies
		if p.Format == "" {
			return expr{What: p.What}
		}
		formats, keys = append(formats, p.Format), append(keys, p.What)
	}
	return expr{Format: strings.Join(formats, "|"), What: strings.Join(keys, "|"), Varies: varies}
}

// choose chooses the owner that receives the calls of a domain: one call has all descriptors of a domain. Requests
// for keys of other owners are forwarded, so the choice only affects latency.
func (g *generator) choose(d *domain, owners []ruleOwner) {
	d.Key = g.pick(owners)
	if d.Key.Format == "" {
		if len(owners) > 0 {
			g.warn("domain %s: Envoy cannot compute the owner of any rule, so calls go to any member, which forwards", d.Name)
		}
		return
	}
	var second *expr
	for i := range owners {
		o := &owners[i]
		switch {
		case o.expr.Format == d.Key.Format:
		case d.Key.Header != "" && o.expr.Header != "" && (second == nil || second.Header == o.expr.Header):
			second = &o.expr
			g.warn("domain %s: a call with both %s and %s goes to the owner of %s; %s is then forwarded", d.Name,
				d.Key.Header, o.expr.Header, d.Key.Header, o.rule.FullKey)
		default:
			g.warn("domain %s: calls go to the owner of %s; %s is placed by %s, so it is forwarded%s", d.Name,
				d.Key.What, o.rule.FullKey, o.expr.What, o.hint(d))
		}
	}
	if second != nil {
		d.Key.Format = "%REQ(" + d.Key.Header + "?" + second.Header + ")%"
	}
}

// hint returns how a rule with fixed values could share the owner of the others.
func (o *ruleOwner) hint(d *domain) string {
	if len(o.rule.OwnerLevels()) > 0 || d.Key.What == "" {
		return ""
	}
	for _, l := range o.rule.Levels {
		if l.Key == d.Key.What {
			return fmt.Sprintf(" (unless its metadata says keyward: {shard_by: %s})", l.Key)
		}
	}
	return ""
}

// pick prefers the key that was asked for, then owners that differ between calls, then the order of the files.
func (g *generator) pick(owners []ruleOwner) expr {
	for _, o := range owners {
		if g.Key != "" && o.expr.What == g.Key && o.expr.Format != "" {
			return o.expr
		}
	}
	if g.Key != "" {
		g.warn("no rule is placed by %s", g.Key)
	}
	for _, o := range owners {
		if o.expr.Varies && o.expr.Format != "" {
			return o.expr
		}
	}
	for _, o := range owners {
		if o.expr.Format != "" {
			return o.expr
		}
	}
	return expr{}
}

// planRoutes chooses what the routes of the edge hash. A request goes to one pod, so one domain decides.
func (g *generator) planRoutes() {
	if g.RouteHeader != "" {
		g.RouteOwner = source{kind: header, Name: strings.ToLower(g.RouteHeader)}.expr("")
		return
	}
	for _, d := range g.Domains {
		if s := d.Key.Source; s.kind == header || s.kind == query || s.kind == remoteAddress {
			g.RouteOwner = d.Key
			break
		}
	}
	if g.RouteOwner.Format == "" {
		g.RouteOwner = source{kind: header, Name: defaultRouteHeader}.expr("")
		g.warn("the rules do not determine which header places a request; using %s", defaultRouteHeader)
	}
}

// defaultRouteHeader is also the default of the xDS server.
const defaultRouteHeader = "x-api-key"
