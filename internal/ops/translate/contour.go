package translate

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/keyward/keyward/internal/config"
)

const contourGroup = "projectcontour.io"

// contour translates the rate limit policies of HTTPProxies and of Contour's configuration.
func (t *translation) contour(objects []*object) {
	service, found := t.contourService(objects)
	var proxies []*object
	for _, o := range objects {
		if o.is(contourGroup, "HTTPProxy") {
			proxies = append(proxies, o)
		}
	}
	limited := found
	for _, o := range proxies {
		limited = contourLimited(o) || limited
	}
	if !limited {
		return
	}
	d := t.contourDomain(service)
	byDefault := service.get("defaultGlobalRateLimitPolicy")
	defaults := t.contourGlobal(byDefault)
	for _, o := range proxies {
		t.policies++
		spec := o.spec().open()
		own, disabled := t.contourPolicy(d, "virtual host "+o.id(), o.id(), spec.get("virtualhost").open().get("rateLimitPolicy"))
		if !own && !disabled && spec.get("virtualhost").exists() {
			for _, one := range defaults {
				t.describe(d, "virtual host "+o.id(), one)
			}
		}
		for i, r := range spec.get("routes").items() {
			t.contourPolicy(d, fmt.Sprintf("route %d of %s", i, o.id()), fmt.Sprintf("%s/%d", o.id(), i), r.open().get("rateLimitPolicy"))
		}
	}
	if len(proxies) == 0 {
		for _, one := range defaults {
			t.describe(d, "every virtual host", one)
		}
	}
	if t.options.Domain == "" && service.get("domain").text() == "" && !d.empty() {
		at := service.of
		if !at.exists() {
			at = proxies[0].spec() // without a service, the rules are those of proxies
		}
		at.say(Missing, "add the ContourConfiguration, or pass --domain", "the domain is that of rateLimitService.domain in Contour's configuration, which the files do not contain; the rules have the domain contour")
	}
}

// contourLimited reports whether an HTTPProxy has a rate limit policy.
func contourLimited(o *object) bool {
	const policy = "rateLimitPolicy"
	spec := o.spec().open()
	limited := spec.get("virtualhost").open().spelled(policy).get(policy).exists()
	for _, r := range spec.get("routes").items() {
		limited = r.open().spelled(policy).get(policy).exists() || limited
	}
	return limited
}

// contourService returns rateLimitService of Contour's configuration.
func (t *translation) contourService(objects []*object) (service mapping, found bool) {
	var f field
	for _, o := range objects {
		switch {
		case o.is(contourGroup, "ContourConfiguration"):
			f = o.spec().open().get("rateLimitService")
		case o.is(contourGroup, "ContourDeployment"):
			f = o.spec().open().get("runtimeSettings").open().get("rateLimitService")
		case o.kind == "ConfigMap":
			f = t.contourFile(o)
		default:
			continue
		}
		switch {
		case !f.exists():
		case found:
			t.policies++
			f.say(NoCounterpart, "translate the files of each Contour alone", "the rules are for the first configuration, that of %s", service.of.rule)
		default:
			t.policies++
			service, found = f.open().only("extensionService", "domain", "failOpen", "enableXRateLimitHeaders",
				"enableResourceExhaustedCode", "defaultGlobalRateLimitPolicy"), true
		}
	}
	if !found {
		service = field{from: &t.reader}.open()
	}
	return service, found
}

// contourFile returns rateLimitService of the configuration file in a ConfigMap.
func (t *translation) contourFile(o *object) field {
	f := o.open().get("data").open().get("contour.yaml")
	if !f.exists() {
		return field{}
	}
	inner := t.reader.readObjects(config.File{Name: f.file, Content: []byte(f.text())})
	if len(inner) == 0 {
		return field{}
	}
	service := inner[0].open().get("rateLimitService")
	if service.exists() { // its lines are those of the text: report the position of the text
		service.line, service.path, service.rule = f.line, "data[\"contour.yaml\"].rateLimitService", o.rule
		service.shift = f.node.Line
	}
	return service
}

// contourDomain returns the domain of Contour's configuration, with the settings of its filter.
func (t *translation) contourDomain(service mapping) *domain {
	d := t.domain(cmp.Or(t.options.Domain, service.get("domain").text(), "contour"))
	if service.of.exists() {
		d.filterSettings("failure_mode_deny: "+strconv.FormatBool(!service.get("failOpen").flag()),
			"x-ratelimit headers: "+strconv.FormatBool(service.get("enableXRateLimitHeaders").flag()),
			"rate_limited_as_resource_exhausted: "+strconv.FormatBool(service.get("enableResourceExhaustedCode").flag()))
	}
	return d
}

// contourPolicy adds the descriptors of a rateLimitPolicy. own reports whether it has some, disabled whether it switches
// the default policy off.
func (t *translation) contourPolicy(d *domain, where, name string, f field) (own, disabled bool) {
	m := f.open().only("local", "global")
	if local := m.get("local"); local.exists() {
		t.contourLocal(d, where, name, local)
	}
	global := m.get("global")
	all := t.contourGlobal(global)
	for _, one := range all {
		t.describe(d, where, one)
	}
	return len(all) > 0, global.open().get("disabled").flag()
}

// contourGlobal reads the descriptors of a global rate limit policy.
func (t *translation) contourGlobal(f field) (all []*described) {
	m := f.open().only("disabled", "descriptors")
	if m.get("disabled").flag() {
		if d := m.get("descriptors"); d.exists() {
			d.say(Note, "", "Contour ignores the descriptors of a policy that is disabled")
		}
		return nil
	}
	for _, item := range m.get("descriptors").items() {
		one := &described{at: item}
		entries := item.open().only("entries").get("entries")
		entries.required()
		ok := true
		for _, e := range entries.items() {
			ok = contourEntry(one, e) && ok
		}
		if ok {
			all = append(all, one)
		}
	}
	return all
}

// contourEntry adds an entry to a descriptor. It returns false if Contour rejects it.
func contourEntry(to *described, f field) bool {
	m := f.open().only("genericKey", "requestHeader", "requestHeaderValueMatch", "remoteAddress")
	if m.present() != 1 {
		f.say(Invalid, "", "want exactly one of genericKey, requestHeader, requestHeaderValueMatch and remoteAddress")
		return false
	}
	if g := m.get("genericKey"); g.exists() {
		fields := g.open().only("key", "value")
		key, value := fields.get("key").text(), fields.get("value").text()
		to.add(cmp.Or(key, "generic_key"), value, genericKey(key, value))
		return fields.get("value").required()
	}
	if h := m.get("requestHeader"); h.exists() {
		fields := h.open().only("headerName", "descriptorKey")
		name, key := fields.get("headerName"), fields.get("descriptorKey")
		to.add(key.text(), "", requestHeaders(name.text(), key.text()))
		return name.required() && key.required()
	}
	if h := m.get("requestHeaderValueMatch"); h.exists() {
		return contourHeaderMatch(to, h)
	}
	if a := m.get("remoteAddress"); a.exists() {
		a.open().only()
		to.add("remote_address", "", action{name: "remote_address"})
	}
	return len(to.path) > 0
}

func contourHeaderMatch(to *described, f field) bool {
	m := f.open().only("headers", "expectMatch", "value")
	var conditions []string
	for _, h := range m.get("headers").items() {
		conditions = append(conditions, contourCondition(h))
	}
	expect := !m.get("expectMatch").exists() || m.get("expectMatch").flag()
	value := m.get("value")
	to.add("header_match", value.text(), matched("header_value_match", "headers", "", value.text(), expect, conditions...))
	return value.required()
}

// contourCondition renders a condition of a header as a HeaderMatcher of Envoy. Of several conditions, Contour uses the
// first in this order.
func contourCondition(f field) string {
	m := f.open().only("name", "present", "notpresent", "contains", "notcontains", "ignoreCase", "exact", "notexact",
		"regex", "treatMissingAsEmpty")
	ignore := ""
	if m.get("ignoreCase").flag() {
		ignore = ", ignore_case: true"
	}
	text := func(key string) string { return strconv.Quote(m.get(key).text()) }
	condition, invert := "", false
	switch {
	case m.get("present").flag():
		condition = "present_match: true"
	case m.get("notpresent").flag():
		condition, invert = "present_match: true", true
	case m.get("contains").text() != "":
		condition = "string_match: {contains: " + text("contains") + ignore + "}"
	case m.get("notcontains").text() != "":
		condition, invert = "string_match: {contains: "+text("notcontains")+ignore+"}", true
	case m.get("exact").text() != "":
		condition = "string_match: {exact: " + text("exact") + ignore + "}"
	case m.get("notexact").text() != "":
		condition, invert = "string_match: {exact: "+text("notexact")+ignore+"}", true
	case m.get("regex").text() != "":
		condition = "string_match: {safe_regex: {regex: " + text("regex") + "}}"
	default:
		f.say(Invalid, "", "the condition is empty")
	}
	if invert {
		condition += ", invert_match: true"
		if m.get("treatMissingAsEmpty").flag() {
			condition += ", treat_missing_header_as_empty: true"
		}
	}
	return fmt.Sprintf("{name: %s, %s}", scalar(m.get("name").text()), condition)
}
