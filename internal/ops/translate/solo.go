package translate

import (
	"cmp"
	"math"
	"strings"
)

const soloGroup = "ratelimit.solo.io"

// solo translates the RateLimitConfigs of Gloo Gateway and its successors, which have the rules of their rate limit
// service. kgateway has none.
func (t *translation) solo(objects []*object) {
	for _, o := range objects {
		if !o.is(soloGroup, "RateLimitConfig") {
			continue
		}
		t.policies++
		raw := o.spec().open().only("raw").get("raw")
		raw.required()
		m := raw.open().only("descriptors", "setDescriptors", "rateLimits")
		for _, s := range m.get("setDescriptors").items() {
			s.say(NoCounterpart, "write it as nested descriptors, one for each order in which the entries are sent",
				"a set matches entries in any order, a rule only in its own")
		}
		for _, l := range m.get("rateLimits").items() {
			l.say(Note, "", "the gateway's Envoy makes descriptors by it; the rules need the same keys")
		}
		d := t.domain(cmp.Or(t.options.Domain, o.id()))
		if t.options.Domain == "" {
			o.spec().say(Missing, "pass --domain", "the gateway's filter has the domain; the rules have the domain %s", o.id())
		}
		t.soloDescriptors(d, nil, m.get("descriptors"))
	}
}

// soloDescriptors adds a list of descriptors below a path.
func (t *translation) soloDescriptors(d *domain, path []entry, f field) {
	if t.reader.fields >= maxFields {
		return // another finding says so
	}
	for _, item := range f.items() {
		m := item.open().only("key", "value", "rateLimit", "descriptors", "weight", "alwaysApply")
		if !m.get("key").required() {
			continue
		}
		down := append(path[:len(path):len(path)], entry{m.get("key").text(), m.get("value").text()})
		for _, key := range []string{"weight", "alwaysApply"} {
			if w := m.get(key); w.exists() {
				w.say(NoCounterpart, "name the rule that gives way, and list the name under replaces of the other one",
					"the rules of all descriptors of a request apply")
			}
		}
		if l := d.insert(down, item); l != nil {
			if next := soloLimit(m.get("rateLimit")); l.limit == nil {
				l.limit = next
			} else if next != nil {
				m.get("rateLimit").say(Invalid, "remove one of the two", "an earlier descriptor with the same entries has a limit, which is that of the rule")
			}
			d.source(item.rule)
			t.soloDescriptors(d, down, m.get("descriptors"))
		}
	}
}

// soloLimit reads a limit. It returns nil if there is none, or an invalid one.
func soloLimit(f field) *limit {
	if !f.exists() {
		return nil
	}
	m := f.open().only("unit", "requestsPerUnit")
	if !m.get("unit").required() || !m.get("requestsPerUnit").required() {
		return nil
	}
	n, ok := m.get("requestsPerUnit").number(math.MaxUint32)
	unit := m.get("unit").oneOf("", "SECOND", "MINUTE", "HOUR", "DAY")
	if !ok || unit == "" {
		return nil
	}
	return &limit{requests: n, unit: strings.ToLower(unit)}
}
