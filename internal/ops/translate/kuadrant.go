package translate

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
)

const kuadrantGroup = "kuadrant.io"

// kuadrantPolicy is a RateLimitPolicy or a TokenRateLimitPolicy of Kuadrant.
type kuadrantPolicy struct {
	*object
	token         bool
	kind          string // of the target
	target        string // its name
	section       string
	override      bool // the limits of the policy replace those of more specific policies
	merge         bool // by limit, not as a set
	set           kuadrantSet
	used          bool
	specification field
}

// kuadrantSet is the limits of a policy, or of several that are merged.
type kuadrantSet struct {
	when   []string // predicates of all limits
	limits map[string]*kuadrantLimit
}

// kuadrantLimit is a limit of a policy.
type kuadrantLimit struct {
	policy   *kuadrantPolicy
	name, id string // id: the key of its entry
	limit    *limit // nil: none
	counters []string
	when     []string // its predicates, without those of the policy
	at       field
}

// kuadrant translates the policies of Kuadrant.
func (t *translation) kuadrant(objects []*object) {
	var all []*kuadrantPolicy
	for _, o := range objects {
		token := o.is(kuadrantGroup, "TokenRateLimitPolicy")
		if !token && !o.is(kuadrantGroup, "RateLimitPolicy") {
			continue
		}
		t.policies++
		if want := map[bool]string{false: "v1", true: "v1alpha1"}[token]; o.version != want {
			o.open().get("apiVersion").say(NoCounterpart, "convert it to "+kuadrantGroup+"/"+want, "version %s is not read", cmp.Or(o.version, "(none)"))
			continue
		}
		all = append(all, t.readKuadrant(o, token))
	}
	slices.SortStableFunc(all, func(a, b *kuadrantPolicy) int {
		return cmp.Or(cmp.Compare(a.created, b.created), cmp.Compare(a.id(), b.id()))
	})
	for _, token := range []bool{false, true} {
		for _, r := range t.topology.routes {
			t.kuadrantRoute(all, r, token)
		}
	}
	for _, p := range all {
		t.kuadrantWithoutRoute(p)
	}
}

func (t *translation) readKuadrant(o *object, token bool) *kuadrantPolicy {
	p := &kuadrantPolicy{object: o, token: token, specification: o.spec()}
	m := p.specification.open().only("targetRef", "defaults", "overrides", "when", "limits")
	target := m.get("targetRef")
	ref := target.open().only("group", "kind", "name", "sectionName")
	if target.required() {
		ref.get("kind").required()
	}
	p.kind, p.target, p.section = ref.get("kind").oneOf("", "Gateway", "HTTPRoute", "GRPCRoute"), ref.get("name").text(), ref.get("sectionName").text()
	proper, sets := m, 0
	for _, name := range []string{"defaults", "overrides"} {
		if f := m.get(name); f.exists() {
			sets++
			proper = f.open().only("strategy", "when", "limits")
			p.override, p.merge = name == "overrides", proper.get("strategy").oneOf("atomic", "merge") == "merge"
		}
	}
	if sets == 2 || sets == 1 && (m.get("limits").exists() || m.get("when").exists()) {
		p.specification.say(Invalid, "", "defaults, overrides, and limits without either exclude each other")
	}
	p.set.when = predicates(proper.get("when"))
	limits := proper.get("limits")
	limits.required()
	fields := limits.open()
	p.set.limits = map[string]*kuadrantLimit{}
	for _, name := range fields.keys {
		p.set.limits[name] = t.readKuadrantLimit(p, name, fields.values[name])
	}
	return p
}

// predicates reads a list of predicates. Kuadrant's filter evaluates them; they have no part in the rules.
func predicates(f field) (all []string) {
	for _, item := range f.items() {
		m := item.open().only("predicate")
		if m.get("predicate").required() {
			all = append(all, m.get("predicate").text())
		}
	}
	return all
}

func (t *translation) readKuadrantLimit(p *kuadrantPolicy, name string, f field) *kuadrantLimit {
	m := f.open().only("when", "counters", "rates")
	l := &kuadrantLimit{policy: p, name: name, at: f, id: kuadrantID(p, name), when: predicates(m.get("when"))}
	for _, c := range m.get("counters").items() {
		expression := c.open().only("expression").get("expression")
		if expression.required() {
			l.counters = append(l.counters, expression.text())
		}
	}
	rates := m.get("rates").items()
	if len(rates) == 0 {
		f.say(Note, "", "it has no rates, so it limits nothing")
	}
	for i, r := range rates {
		if i > 0 {
			r.say(NoCounterpart, "move it to a limit of its own, whose predicates exclude this one, or send a second descriptor with Envoy's rate limit filter",
				"a descriptor has one limit, which is that of rates[0]")
			continue
		}
		l.limit = t.kuadrantRate(p, r)
	}
	return l
}

// kuadrantID returns the key by which Kuadrant's filter names a limit.
func kuadrantID(p *kuadrantPolicy, name string) string {
	var b strings.Builder
	b.WriteString(map[bool]string{false: "limit.", true: "tokenlimit."}[p.token])
	for _, c := range name {
		if !unicode.IsLetter(c) && !unicode.IsDigit(c) && c != '_' {
			c = '_'
		}
		b.WriteRune(c)
	}
	sum := sha256.Sum256([]byte(p.id() + "/" + name))
	return b.String() + "__" + hex.EncodeToString(sum[:4])
}

// kuadrantRoute adds the rules of a route: those of the effective policies of its rules.
func (t *translation) kuadrantRoute(all []*kuadrantPolicy, r *route, token bool) {
	at := func(kind, namespace, name, section string) (found []*kuadrantPolicy) {
		for _, p := range all {
			if p.token == token && p.kind == kind && p.namespace == namespace && p.target == name && p.section == section {
				found = append(found, p)
			}
		}
		return found
	}
	listeners := t.topology.listeners(r)
	if len(listeners) == 0 { // its policies alone
		listeners = []*listener{nil}
	}
	for _, l := range listeners {
		var above []*kuadrantPolicy // the least specific first
		if l != nil {
			above = slices.Concat(at("Gateway", l.of.namespace, l.of.name, ""), at("Gateway", l.of.namespace, l.of.name, l.name))
		}
		for i := range max(1, len(r.rules)) {
			path := slices.Concat(above, at(r.kind, r.namespace, r.name, ""))
			if i < len(r.rules) {
				path = append(path, at(r.kind, r.namespace, r.name, cmp.Or(r.rules[i].name, fmt.Sprintf("rule-%d", i+1)))...)
			}
			t.kuadrantRules(r.id(), kuadrantEffective(path))
		}
	}
}

// kuadrantEffective merges policies, the least specific first, into the limits that apply, by name.
func kuadrantEffective(path []*kuadrantPolicy) (e kuadrantSet) {
	for _, p := range slices.Backward(path) {
		switch {
		case p.override && p.merge:
			e = merged(e, p.set)
		case p.override:
			e = p.set
		case p.merge:
			e = merged(p.set, e)
		case len(e.limits) == 0:
			e = p.set
		}
	}
	return e
}

// merged returns the limits of both, where those of over take precedence.
func merged(under, over kuadrantSet) kuadrantSet {
	all := kuadrantSet{when: over.when, limits: map[string]*kuadrantLimit{}}
	if len(all.when) == 0 {
		all.when = under.when
	}
	maps.Copy(all.limits, under.limits)
	maps.Copy(all.limits, over.limits)
	return all
}

// kuadrantRules adds the limits of a route to its domain.
func (t *translation) kuadrantRules(route string, set kuadrantSet) {
	var list []*kuadrantLimit
	for _, name := range slices.Sorted(maps.Keys(set.limits)) {
		list = append(list, set.limits[name])
	}
	d := t.domain(route)
	for i, l := range list {
		l.policy.used = true
		if l.limit == nil {
			continue
		}
		path := []entry{{l.id, "1"}}
		for _, c := range l.counters {
			path = append(path, entry{key: c})
		}
		at := d.insert(path, l.at)
		if at == nil {
			continue
		}
		at.limit = l.limit
		d.source(l.policy.rule)
		l.describe(d, set.when)
		if !l.policy.token {
			t.kuadrantOverlaps(l, list[:i])
		}
	}
}

// describe adds a comment with the entries of the filter and when it sends them.
func (l *kuadrantLimit) describe(d *domain, when []string) {
	entries := append([]string{l.id + " = \"1\""}, l.counters...)
	line := fmt.Sprintf("Kuadrant's filter sends (%s)", strings.Join(entries, "), ("))
	if when = append(slices.Clone(when), l.when...); len(when) > 0 {
		line += " if " + strings.Join(when, " && ")
	}
	if l.policy.token {
		line += "; with 0 hits before the request, and with its usage.total_tokens after the response"
	}
	if d.all.options.Actions && !slices.Contains(d.filter, line) {
		d.filter = append(d.filter, line)
	}
}

// maxOthers is the number of limits that one finding names.
const maxOthers = 10

// kuadrantOverlaps adds a finding if a request may be subject to l and to an earlier limit: Kuadrant's filter sends the
// entries of both in one descriptor.
func (t *translation) kuadrantOverlaps(l *kuadrantLimit, earlier []*kuadrantLimit) {
	var others []string
	for _, e := range earlier {
		if len(others) == maxOthers {
			others = append(others, "...")
			break
		}
		if !t.another(l.at) {
			break
		}
		if e.limit != nil && !e.policy.token && !disjoint(e.when, l.when) {
			others = append(others, e.name)
		}
	}
	if len(others) == 0 {
		return
	}
	l.at.say(NoCounterpart, "make the predicates exclude each other (by request.method == 'GET', for example), or send a descriptor for each limit with Envoy's rate limit filter",
		"Kuadrant's filter sends the entries of all limits that apply to a request in one descriptor, so one to which also %s applies matches no rule", strings.Join(others, ", "))
}

// kuadrantWithoutRoute adds the limits of a policy whose route is not in the files, and a finding about one that no route
// in the files has.
func (t *translation) kuadrantWithoutRoute(p *kuadrantPolicy) {
	switch {
	case p.used || p.kind == "":
	case p.kind != "Gateway" && t.topology.route(p.kind, p.namespace, p.target) == nil:
		p.specification.open().get("targetRef").say(Note, "add its file, and that of its Gateway",
			"%s %s/%s is not in the files: policies of its Gateway are not taken into account", p.kind, p.namespace, p.target)
		t.kuadrantRules(p.namespace+"/"+p.target, p.set)
	case p.kind == "Gateway":
		p.specification.open().get("targetRef").say(Missing, "add the files of the Gateway and its routes, whose names are the domains",
			"no route in the files is attached to Gateway %s/%s, or more specific policies replace this one", p.namespace, p.target)
	default:
		p.specification.open().get("targetRef").say(Note, "", "other policies, or its sectionName, leave it without effect")
	}
}
