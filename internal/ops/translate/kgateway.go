package translate

import (
	"cmp"
	"slices"
	"strconv"
)

const kgatewayGroup = "gateway.kgateway.dev"

// kgateway translates the rate limits of TrafficPolicies.
func (t *translation) kgateway(objects []*object) {
	for _, o := range objects {
		if !o.is(kgatewayGroup, "TrafficPolicy") {
			continue
		}
		t.policies++
		m := o.spec().open().spelled("rateLimit").get("rateLimit").open().only("local", "global")
		d := t.domain(cmp.Or(t.options.Domain, "kgateway"))
		if global := m.get("global"); global.exists() {
			d = t.kgatewayGlobal(o, global)
		}
		if local := m.get("local"); local.exists() {
			t.kgatewayLocal(d, o, local)
		}
	}
}

// kgatewayGlobal translates a global policy, and returns its domain.
func (t *translation) kgatewayGlobal(o *object, f field) *domain {
	m := f.open().only("descriptors", "extensionRef")
	d := t.kgatewayDomain(o, m.get("extensionRef"))
	items := m.get("descriptors")
	items.required()
	for _, item := range items.items() {
		one := &described{at: item}
		entries := item.open().only("entries").get("entries")
		entries.required()
		ok := true
		for _, e := range entries.items() {
			ok = kgatewayEntry(one, e) && ok
		}
		if ok {
			t.describe(d, "the targets of TrafficPolicy "+o.id(), one)
		}
	}
	return d
}

// kgatewayDomain returns the domain of the GatewayExtension that a policy refers to, with the settings of its filter.
func (t *translation) kgatewayDomain(o *object, f field) *domain {
	ref := f.open().only("name", "namespace")
	f.required()
	name, namespace := ref.get("name").text(), cmp.Or(ref.get("namespace").text(), o.namespace)
	i := slices.IndexFunc(t.objects, func(e *object) bool {
		return e.is(kgatewayGroup, "GatewayExtension") && e.name == name && e.namespace == namespace
	})
	if i < 0 {
		fallback := cmp.Or(t.options.Domain, "kgateway")
		if t.options.Domain == "" {
			f.say(Missing, "add its file, or pass --domain", "GatewayExtension %s/%s, which has the domain, is not in the files; the rules have the domain %s", namespace, name, fallback)
		}
		return t.domain(fallback)
	}
	limits := t.objects[i].spec().open().get("rateLimit")
	limits.required()
	m := limits.open().only("grpcService", "domain", "failOpen", "timeout", "xRateLimitHeaders")
	m.get("domain").required()
	d := t.domain(cmp.Or(t.options.Domain, m.get("domain").text(), "kgateway"))
	if d.filter == nil {
		open := !m.get("failOpen").exists() || m.get("failOpen").flag()
		d.filterSettings("failure_mode_deny: "+strconv.FormatBool(!open), "timeout: "+cmp.Or(m.get("timeout").text(), "the default"),
			"x-ratelimit headers: "+cmp.Or(m.get("xRateLimitHeaders").text(), "Off"))
	}
	return d
}

// kgatewayEntry adds an entry to a descriptor. It returns false if kgateway rejects it.
func kgatewayEntry(to *described, f field) bool {
	m := f.open().only("type", "generic", "header")
	kind := m.get("type")
	if !kind.required() {
		return false
	}
	generic, header := m.get("generic"), m.get("header")
	what := kind.oneOf("", "Generic", "Header", "RemoteAddress", "Path")
	for name, other := range map[string]field{"Generic": generic, "Header": header} {
		if other.exists() && what != name {
			other.say(Invalid, "", "an entry of type %s does not have it", what)
			return false
		}
	}
	switch what {
	case "Generic":
		fields := generic.open().only("key", "value")
		key, value := fields.get("key"), fields.get("value")
		to.add(key.text(), value.text(), genericKey(key.text(), value.text()))
		return generic.required() && key.required() && value.required()
	case "Header":
		to.add(header.text(), "", requestHeaders(header.text(), header.text()))
		return header.required()
	case "RemoteAddress":
		to.add("remote_address", "", action{name: "remote_address"})
	case "Path":
		to.add("path", "", requestHeaders(":path", "path"))
	}
	return what != ""
}
