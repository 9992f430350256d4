package translate

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const egGroup = "gateway.envoyproxy.io"

// egPolicy is a BackendTrafficPolicy of Envoy Gateway.
type egPolicy struct {
	*object
	targets []egTarget
	merge   string // mergeType, or empty
	limits  *egLimits
	used    bool // a route has the policy
}

// egTarget identifies a route, a rule of a route, a Gateway or a listener that has a policy.
type egTarget struct{ kind, namespace, name, section string }

// egLimits is the global rate limit of a policy.
type egLimits struct {
	rules []*egRule
	bad   bool // Envoy Gateway rejects it
}

// egRule is a rule of a policy.
type egRule struct {
	policy         string // namespace/name
	name           string // namespace/name/rule/index
	shared, shadow bool
	limit          limit
	matches        []egMatch // in the order of the descriptor, without methods
	methods        []egMatch
	settings       []string // of the rate limit in Envoy
	response       []string // settings of the second rate limit, which is applied when the stream is done, or nil
	at             field
}

// egMatch is a condition of a rule: it has a part in the descriptor and an action in Envoy.
type egMatch struct {
	kind  string // header, method, path, cidr or query
	make  func(key string) (entry, action)
	fixed func() ([]entry, []action) // for cidr
}

// envoyGateway translates the BackendTrafficPolicies.
func (t *translation) envoyGateway(objects []*object) {
	var policies []*egPolicy
	for _, o := range objects {
		if o.is(egGroup, "BackendTrafficPolicy") {
			t.policies++
			policies = append(policies, t.readEGPolicy(o))
		}
	}
	slices.SortStableFunc(policies, func(a, b *egPolicy) int { // the oldest one wins
		return cmp.Or(cmp.Compare(a.created, b.created), cmp.Compare(a.id(), b.id()))
	})
	if len(policies) == 0 {
		return
	}
	for _, r := range t.topology.routes {
		for _, l := range t.topology.listeners(r) {
			for i, rule := range r.rules {
				if rules := egEffective(policies, r, rule, l); len(rules) > 0 {
					t.egRoute(l, r, i, rules)
				}
			}
		}
	}
	for i, p := range policies {
		t.egUnused(p, policies[:i])
	}
}

func (t *translation) readEGPolicy(o *object) *egPolicy {
	spec := o.spec().open().spelled("rateLimit")
	p := &egPolicy{object: o, merge: spec.get("mergeType").oneOf("", "StrategicMerge", "JSONMerge")}
	refs := spec.get("targetRefs").items()
	if ref := spec.get("targetRef"); ref.exists() {
		if len(refs) > 0 {
			spec.get("targetRefs").say(Invalid, "list all targets in targetRefs", "Envoy Gateway rejects a policy with targetRef and targetRefs")
		}
		refs = []field{ref}
	}
	for _, f := range refs {
		m := f.open().only("group", "kind", "name", "sectionName")
		target := egTarget{m.get("kind").text(), o.namespace, m.get("name").text(), m.get("sectionName").text()}
		p.targets = append(p.targets, target)
		t.egTargetExists(f, target)
	}
	for _, f := range spec.get("targetSelectors").items() {
		p.targets = append(p.targets, t.egSelect(o, f)...)
	}
	if f := spec.get("rateLimit"); f.exists() {
		p.limits = t.readEGLimits(o, f)
	}
	return p
}

// egTargetExists adds a finding if a target is not in the files.
func (t *translation) egTargetExists(f field, target egTarget) {
	const hint = "add its file, because descriptors have the names of Gateways and routes: " +
		"kubectl get gateways,httproutes,grpcroutes,backendtrafficpolicies -A -o yaml"
	switch target.kind {
	case "Gateway":
		if t.topology.gateway(target.namespace, target.name) == nil {
			f.say(Missing, hint, "Gateway %s/%s is not in the files", target.namespace, target.name)
		}
	case "HTTPRoute", "GRPCRoute":
		if t.topology.route(target.kind, target.namespace, target.name) == nil {
			f.say(Missing, hint, "%s %s/%s is not in the files", target.kind, target.namespace, target.name)
		}
	case "ListenerSet":
		f.say(NoCounterpart, "attach the policy to a Gateway or a route", "ListenerSets are not read")
	default:
		f.say(NoCounterpart, "", "Envoy Gateway sends no descriptors for a %s", cmp.Or(target.kind, "target without kind"))
	}
}

// egSelect returns the targets of a selector by labels.
func (t *translation) egSelect(o *object, f field) (targets []egTarget) {
	m := f.open().only("group", "kind", "namespaces", "matchLabels", "matchExpressions")
	if e := m.get("matchExpressions"); e.exists() {
		e.say(NoCounterpart, "use matchLabels or targetRefs", "expressions are not evaluated, so the selector selects nothing here")
		return nil
	}
	if n := m.get("namespaces").open().get("from"); n.exists() && n.text() != "Same" {
		n.say(NoCounterpart, "translate one policy for each namespace", "only routes and Gateways in the policy's namespace are selected")
	}
	labels := m.get("matchLabels").open()
	kind := m.get("kind").text()
	selects := func(s *object) bool {
		if s.kind != kind || s.namespace != o.namespace {
			return false
		}
		for _, k := range labels.keys {
			if v, ok := s.labels[k]; !ok || v != labels.values[k].text() {
				return false
			}
		}
		return true
	}
	for _, g := range t.topology.gateways {
		if selects(g.object) {
			targets = append(targets, egTarget{kind, g.namespace, g.name, ""})
		}
	}
	for _, r := range t.topology.routes {
		if selects(r.object) {
			targets = append(targets, egTarget{kind, r.namespace, r.name, ""})
		}
	}
	if len(targets) == 0 {
		f.say(Missing, "add the files of the routes and Gateways that it selects", "nothing in the files has these labels")
	}
	return targets
}

// egEffective returns the rules of a rule of a route at a listener. The policy of the route's rule takes precedence over
// that of the route, then the listener, then the Gateway; mergeType adds the rules of the listener or Gateway.
func egEffective(policies []*egPolicy, r *route, rule routeRule, l *listener) []*egRule {
	at := func(kind, namespace, name, section string) *egPolicy {
		target := egTarget{kind, namespace, name, section}
		i := slices.IndexFunc(policies, func(p *egPolicy) bool { return slices.Contains(p.targets, target) })
		if i < 0 {
			return nil
		}
		policies[i].used = true
		return policies[i]
	}
	first := func(list ...*egPolicy) *egPolicy {
		if i := slices.IndexFunc(list, func(p *egPolicy) bool { return p != nil }); i >= 0 {
			return list[i]
		}
		return nil
	}
	var own *egPolicy
	if rule.name != "" {
		own = at(r.kind, r.namespace, r.name, rule.name)
	}
	own = first(own, at(r.kind, r.namespace, r.name, ""))
	above := first(at("Gateway", l.of.namespace, l.of.name, l.name), at("Gateway", l.of.namespace, l.of.name, ""))
	switch {
	case own == nil:
		return above.rules()
	case own.merge == "" || own == above || own.limits != nil && own.limits.bad || above.rules() == nil:
		return own.rules()
	case own.merge == "JSONMerge" && len(own.rules()) > 0:
		return own.rules()
	}
	return append(slices.Clone(own.rules()), above.rules()...)
}

// rules returns the rules of a policy. It is nil if p is nil or Envoy Gateway rejects them.
func (p *egPolicy) rules() []*egRule {
	if p == nil || p.limits == nil || p.limits.bad {
		return nil
	}
	return p.limits.rules
}

// egRoute adds the descriptors of one rule of a route at a listener.
func (t *translation) egRoute(l *listener, r *route, index int, rules []*egRule) {
	if t.pairs > maxPairs {
		return
	}
	name := fmt.Sprintf("%s/%s/%s/rule/%d/match/", strings.ToLower(r.kind), r.namespace, r.name, index)
	rule := r.rules[index]
	matches := t.egMatches(rule, r)
	var names []string
	for _, host := range l.hosts(r) {
		host = strings.ReplaceAll(host, ".", "_")
		if matches == 0 {
			names = append(names, name+"-1/"+host)
		}
		if len(names) > maxDescriptors {
			break // the loop below ends before
		}
		for i := range matches {
			names = append(names, name+strconv.Itoa(i)+"/"+host)
			if matches == rule.matches && rule.cors[i] && r.kind == "HTTPRoute" {
				names = append(names, name+strconv.Itoa(i)+"/cors-preflight/"+host)
			}
		}
	}
	listenerName := l.of.id() + "/" + l.name
	for _, n := range names {
		next := map[bool]int{} // index of the next rule, by shared
		for _, e := range rules {
			if !t.another(e.at) {
				return
			}
			d, first := t.domain(listenerName), entry{n, n}
			if e.shared {
				d, first = t.domain(e.policy), entry{e.name, e.name}
			}
			e.addTo(d, first, next[e.shared], n+" of listener "+listenerName)
			next[e.shared]++
		}
	}
}

// egMatches returns the number of matches of a rule, with those of its HTTPRouteFilters.
func (t *translation) egMatches(rule routeRule, r *route) int {
	n := rule.matches
	for _, f := range rule.filters {
		m := f.open()
		if m.get("kind").text() != "HTTPRouteFilter" {
			continue
		}
		name := m.get("name").text()
		i := slices.IndexFunc(t.objects, func(o *object) bool {
			return o.is(egGroup, "HTTPRouteFilter") && o.namespace == r.namespace && o.name == name
		})
		if i < 0 {
			f.say(Missing, "add its file", "HTTPRouteFilter %s/%s is not in the files; if it has matches, descriptors of the route have other names", r.namespace, name)
			continue
		}
		if more := len(t.objects[i].spec().open().get("matches").items()); more > 0 {
			n = max(1, n) * more
		}
	}
	return min(n, 1<<12)
}

// addTo adds the descriptor of a rule below first. index is the rule's index among those of its domain.
func (e *egRule) addTo(d *domain, first entry, index int, route string) {
	path, actions, methodAt := e.descriptor(first, index)
	variants := [][]action{actions} // one for each method
	for i, m := range e.methods {
		en, a := m.make(fmt.Sprintf("rule-%d-method", index))
		if i == 0 {
			path, variants = slices.Insert(path, methodAt, en), nil
		}
		variants = append(variants, slices.Insert(slices.Clone(actions), methodAt, a))
	}
	if !e.insert(d, path) {
		return
	}
	d.source(e.at.rule)
	for _, a := range variants {
		where := "route " + route
		d.sends(rateLimit{where, a, e.settings})
		if e.response != nil {
			d.sends(rateLimit{where, a, e.response})
		}
	}
}

// descriptor returns the entries of the rule without methods, their actions, and the position of the methods, which
// follow the headers.
func (e *egRule) descriptor(first entry, index int) (path []entry, actions []action, methodAt int) {
	path, actions = []entry{first}, []action{genericKey(first.key, first.value)}
	add := func(en entry, a action) { path, actions = append(path, en), append(actions, a) }
	count := 0
	methodAt = -1
	for _, m := range e.matches {
		if methodAt < 0 && m.kind != "header" {
			methodAt = len(path)
		}
		switch {
		case m.fixed != nil:
			entries, more := m.fixed()
			path, actions = append(path, entries...), append(actions, more...)
		case m.kind == "path":
			add(m.make(fmt.Sprintf("rule-%d-path", index)))
		default:
			add(m.make(fmt.Sprintf("rule-%d-match-%d", index, count)))
			count++
		}
	}
	if methodAt < 0 {
		methodAt = len(path)
	}
	if len(e.matches) == 0 && len(e.methods) == 0 {
		key := fmt.Sprintf("rule-%d-match--1", index)
		add(entry{key, key}, genericKey(key, key))
	}
	return path, actions, methodAt
}

// insert adds the limit at a path. Two rules with the same descriptor have only one limit, the first in Envoy Gateway. It
// returns false if rules cannot have the descriptor.
func (e *egRule) insert(d *domain, path []entry) bool {
	const hint = "give one of them another condition, such as a header that is present in every request"
	passed := false
	for i := range path[1:] {
		l := d.insert(path[:i+2], e.at)
		if l == nil {
			return false
		}
		l.shadow = l.shadow || e.shadow
		switch last := i+2 == len(path); {
		case !last:
			passed = passed || l.limit != nil
			continue
		case l.limit == &e.limit:
		case l.limit != nil:
			e.at.say(Invalid, hint, "an earlier rule has the same descriptor, and Envoy Gateway leaves this one out")
		case passed || len(l.below) > 0:
			e.at.say(Invalid, hint, "an earlier rule has the same address range: rate limit services reject what Envoy Gateway sends for the two")
			fallthrough
		default:
			l.limit = &e.limit
		}
	}
	return true
}

// egUnused adds findings about a policy with rate limits that not all of its targets have.
func (t *translation) egUnused(p *egPolicy, earlier []*egPolicy) {
	if len(p.rules()) == 0 {
		return
	}
	limits, explained := p.spec().open().get("rateLimit"), false
	for _, target := range p.targets {
		r, g := t.topology.route(target.kind, target.namespace, target.name), t.topology.gateway(target.namespace, target.name)
		i := slices.IndexFunc(earlier, func(other *egPolicy) bool { return slices.Contains(other.targets, target) })
		switch {
		case i >= 0:
			explained = true
			limits.say(Invalid, "merge the policies", "Envoy Gateway ignores the policy for %s %s, because %s is older", target.kind, target.name, earlier[i].id())
		case target.kind == "Gateway" && g == nil, target.kind != "Gateway" && r == nil:
			explained = true // another finding says so
		case r != nil:
			explained = t.parentsMissing(r) || explained
		}
	}
	if !p.used && !explained {
		limits.say(Missing, "add the files of the Gateway and of the routes that are attached to it",
			"no route in the files has the policy, so there are no descriptors to print")
	}
}

// parentsMissing adds findings about the parents of a route that are not in the files, and reports whether there are any.
func (t *translation) parentsMissing(r *route) (any bool) {
	for _, p := range r.parents {
		switch {
		case p.kind != "Gateway":
			p.ref.say(NoCounterpart, "attach the route to a Gateway", "the parent is a %s, which is not read", p.kind)
		case t.topology.gateway(p.namespace, p.name) == nil:
			p.ref.say(Missing, "add its file, because domains have the names of Gateways and listeners", "Gateway %s/%s is not in the files", p.namespace, p.name)
		default:
			continue
		}
		any = true
	}
	return any
}
