package translate

import (
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// readEGLimits reads spec.rateLimit of a BackendTrafficPolicy.
func (t *translation) readEGLimits(o *object, f field) *egLimits {
	m := f.open().only("type", "global", "local")
	kind := m.get("type").oneOf("", "Global", "Local")
	limits := &egLimits{}
	global, local := m.get("global"), m.get("local")
	for name, other := range map[string]field{"Local": global, "Global": local} {
		if other.exists() && kind == name {
			other.say(Note, "", "Envoy Gateway ignores it, because type is %s", kind)
		}
	}
	if kind == "Global" && !global.exists() {
		global.say(Invalid, "", "type is Global, so it is required")
		limits.bad = true
	}
	if global.exists() && kind != "Local" {
		for i, r := range global.open().only("rules").get("rules").items() {
			rule, ok := t.readEGRule(o, i, r)
			limits.rules = append(limits.rules, rule)
			limits.bad = limits.bad || !ok
		}
		if limits.bad {
			global.say(Invalid, "correct the findings about its rules", "Envoy Gateway rejects the policy and answers its routes with status 500")
		}
	}
	if local.exists() && kind != "Global" {
		t.egLocal(o, local, limits)
	}
	return limits
}

// egLocal reads the local limits, which Envoy Gateway enforces without a rate limit service. With Options.Envoys they are
// further rules of the global limit.
func (t *translation) egLocal(o *object, f field, limits *egLimits) {
	rules := f.open().only("rules").get("rules").items()
	if len(rules) == 0 {
		f.say(Note, "", "it has no rules")
	}
	for _, r := range rules {
		if !t.local(r, "rateLimit.global") {
			continue
		}
		rule, ok := t.readEGRule(o, len(limits.rules), r)
		if !ok {
			r.say(Invalid, "correct it", "Envoy Gateway rejects the policy and answers its routes with status 500")
		}
		if m := r.open(); m.get("shadowMode").flag() || m.get("cost").open().get("response").exists() || m.get("limit").open().get("fromMetadata").exists() {
			r.say(Invalid, "move the rule to rateLimit.global", "a local limit has no shadowMode, cost.response or limit.fromMetadata")
		}
		rule.limit.requests = t.together(r, rule.limit.requests)
		limits.rules = append(limits.rules, rule)
		limits.bad = limits.bad || !ok
	}
}

// readEGRule reads a rule. ok is false if Envoy Gateway rejects it.
func (t *translation) readEGRule(o *object, index int, f field) (rule *egRule, ok bool) {
	m := f.open().only("clientSelectors", "limit", "cost", "shared", "shadowMode", "xRateLimitHeaders")
	rule = &egRule{policy: o.id(), name: fmt.Sprintf("%s/rule/%d", o.id(), index), at: f,
		shared: m.get("shared").flag(), shadow: m.get("shadowMode").flag()}
	ok = rule.readLimit(m.get("limit"))
	switch x := m.get("xRateLimitHeaders").oneOf("", "Off", "DraftVersion03"); x {
	case "Off":
		rule.settings = append(rule.settings, `x_ratelimit_option: "OFF"`)
	case "DraftVersion03":
		rule.settings = append(rule.settings, "x_ratelimit_option: DRAFT_VERSION_03")
	}
	cost := m.get("cost").open().only("request", "response")
	common := slices.Clone(rule.settings)
	if c := cost.get("request"); c.exists() {
		rule.settings = append(rule.settings, egCost(c))
	}
	if c := cost.get("response"); c.exists() {
		rule.response = append(common, egCost(c), "apply_on_stream_done: true")
		if n := cost.get("request").open().get("number"); n.exists() && n.text() == "0" {
			rule.limit.reserve(t.options.Reserve, true, f)
		}
	}
	s := egSelectors{rule: rule}
	for _, c := range m.get("clientSelectors").items() {
		ok = s.read(c) && ok
	}
	s.order()
	return rule, ok
}

// readLimit reads limit of a rule.
func (r *egRule) readLimit(f field) bool {
	m := f.open().only("requests", "unit", "fromMetadata")
	ok := f.required() && m.get("requests").required() && m.get("unit").required()
	if !ok {
		return false
	}
	requests, number := m.get("requests").number(math.MaxUint32)
	unit := m.get("unit").oneOf("", "Second", "Minute", "Hour", "Day", "Week", "Month", "Year")
	r.limit = limit{requests: requests, unit: strings.ToLower(unit)}
	if from := m.get("fromMetadata"); from.exists() {
		md := from.open().only("namespace", "key")
		if md.get("namespace").required() && md.get("key").required() {
			r.settings = append(r.settings, fmt.Sprintf("limit: {dynamic_metadata: {metadata_key: {key: %s, path: [{key: %s}]}}}",
				scalar(md.get("namespace").text()), scalar(md.get("key").text())))
		}
	}
	return number && unit != ""
}

// egCost returns the hits_addend of a cost.
func egCost(f field) string {
	m := f.open().only("from", "number", "metadata")
	m.get("from").required()
	m.get("from").oneOf("", "Number", "Metadata")
	number, metadata := m.get("number"), m.get("metadata")
	switch {
	case number.exists() && metadata.exists():
		f.say(Invalid, "", "number and metadata exclude each other")
	case metadata.exists():
		md := metadata.open().only("namespace", "key")
		format := fmt.Sprintf("%%DYNAMIC_METADATA(%s:%s)%%", md.get("namespace").text(), md.get("key").text())
		return "hits_addend: {format: " + scalar(format) + "}"
	case !number.exists():
		f.say(Invalid, "", "want number or metadata")
	}
	n, _ := number.number(math.MaxUint64)
	return fmt.Sprintf("hits_addend: {number: %d}", n)
}

// egSelectors collects the conditions of all selectors of a rule, which must all hold.
type egSelectors struct {
	rule                   *egRule
	headers, query, others []egMatch
	path, cidr             field // the last ones
}

func (s *egSelectors) read(f field) bool {
	m := f.open().only("headers", "methods", "path", "sourceCIDR", "queryParams")
	headers, methods, query := m.get("headers").items(), m.get("methods").items(), m.get("queryParams").items()
	path, cidr := m.get("path"), m.get("sourceCIDR")
	if len(headers)+len(methods)+len(query) == 0 && !path.exists() && !cidr.exists() {
		f.say(Invalid, "", "want at least one of headers, methods, path, sourceCIDR and queryParams")
		return false
	}
	ok := true
	for _, h := range headers {
		ok = s.named(&s.headers, "header", h) && ok
	}
	for _, h := range methods {
		ok = s.method(h) && ok
	}
	for _, q := range query {
		ok = s.named(&s.query, "query", q) && ok
	}
	replaced := func(old *field, fresh field) {
		if old.exists() {
			old.say(Invalid, "put the conditions into two rules", "Envoy Gateway ignores it: a later selector of the rule has one, too")
		}
		*old = fresh
	}
	if path.exists() {
		replaced(&s.path, path)
	}
	if cidr.exists() {
		replaced(&s.cidr, cidr)
	}
	return s.pathAndCIDR(path, cidr) && ok
}

// named reads the condition of a header or a query parameter.
func (s *egSelectors) named(list *[]egMatch, kind string, f field) bool {
	m := f.open().only("type", "name", "value", "invert")
	name, value, invert := m.get("name").text(), m.get("value"), m.get("invert").flag()
	if !m.get("name").required() {
		return false
	}
	what := m.get("type").oneOf("Exact", "RegularExpression", "Distinct")
	switch {
	case what == "":
		return false
	case what == "Distinct" && (value.exists() || invert):
		f.say(Invalid, "remove value and invert", "a Distinct match has a limit for each value")
		return false
	case what == "Distinct":
		*list = append(*list, egDistinct(kind, name))
		return true
	case !value.exists() || kind == "query" && value.text() == "":
		m.get("value").say(Invalid, "", "required by type %s", what)
		return false
	case what == "RegularExpression" && !validRegex(value):
		return false
	}
	condition := fmt.Sprintf("{name: %s, string_match: {%s}}", scalar(name), stringMatch(what, value.text()))
	*list = append(*list, egFixed(kind, condition, !invert))
	return true
}

func validRegex(f field) bool {
	if _, err := regexp.Compile(f.text()); err != nil {
		f.say(Invalid, "", "not a regular expression: %v", err)
		return false
	}
	return true
}

func stringMatch(what, value string) string {
	switch what {
	case "RegularExpression":
		return "safe_regex: {regex: " + strconv.Quote(value) + "}"
	case "Prefix":
		return "prefix: " + strconv.Quote(value)
	}
	return "exact: " + strconv.Quote(value)
}

// egDistinct is a condition whose value makes the counter.
func egDistinct(kind, name string) egMatch {
	return egMatch{kind: kind, make: func(key string) (entry, action) {
		if kind == "query" {
			return entry{key: key}, action{"query_parameters", []pair{{"query_parameter_name", scalar(name)}, {"descriptor_key", scalar(key)}}}
		}
		return entry{key: key}, requestHeaders(name, key)
	}}
}

// egFixed is a condition that holds or does not.
func egFixed(kind, condition string, expect bool) egMatch {
	name, list := "header_value_match", "headers"
	if kind == "query" {
		name, list = "query_parameter_value_match", "query_parameters"
	}
	return egMatch{kind: kind, make: func(key string) (entry, action) {
		return entry{key, key}, matched(name, list, key, key, expect, condition)
	}}
}

func (s *egSelectors) method(f field) bool {
	m := f.open().only("value", "invert")
	value, invert := m.get("value"), m.get("invert").flag()
	if !value.required() {
		return false
	}
	condition := fmt.Sprintf("{name: \":method\", string_match: {%s}}", stringMatch("Exact", value.text()))
	s.rule.methods = append(s.rule.methods, egFixed("method", condition, !invert))
	return true
}

// pathAndCIDR reads the condition of a path and that of an address. The last ones of a rule apply.
func (s *egSelectors) pathAndCIDR(path, cidr field) bool {
	ok := true
	if path.exists() {
		s.others = slices.DeleteFunc(s.others, func(m egMatch) bool { return m.kind == "path" })
		match, valid := egPath(path)
		s.others, ok = append(s.others, match), valid
	}
	if cidr.exists() {
		s.others = slices.DeleteFunc(s.others, func(m egMatch) bool { return m.kind == "cidr" })
		match, valid := egCIDR(cidr)
		s.others, ok = append(s.others, match), valid && ok
	}
	return ok
}

func egPath(f field) (egMatch, bool) {
	m := f.open().only("type", "value", "invert")
	what, value, invert := m.get("type").oneOf("PathPrefix", "Exact", "RegularExpression"), m.get("value"), m.get("invert").flag()
	text := "/"
	if value.exists() {
		text = value.text()
	}
	var condition string
	switch what {
	case "":
		return egMatch{kind: "path"}, false
	case "RegularExpression":
		if value.exists() && !validRegex(value) {
			return egMatch{kind: "path"}, false
		}
		condition = stringMatch(what, text)
	case "PathPrefix":
		condition = stringMatch("Prefix", text)
		if text != "/" { // Envoy's prefix does not end at a slash
			condition = stringMatch("RegularExpression", "^"+regexp.QuoteMeta(strings.TrimSuffix(text, "/"))+`(/.*|\?.*|#.*|;.*|$)`)
		}
	default:
		condition = stringMatch(what, text)
	}
	return egFixed("path", fmt.Sprintf("{name: \":path\", string_match: {%s}}", condition), !invert), true
}

// egCIDR is the condition of an address: the range, and with Distinct the address in it.
func egCIDR(f field) (egMatch, bool) {
	m := f.open().only("type", "value", "invert")
	what, value, invert := m.get("type").oneOf("Exact", "Distinct"), m.get("value"), m.get("invert").flag()
	if what == "" || !value.required() {
		return egMatch{kind: "cidr"}, false
	}
	prefix, err := netip.ParsePrefix(value.text())
	if err != nil {
		value.say(Invalid, "", "want a range such as 10.0.0.0/8, not %s", quoted(value.text()))
		return egMatch{kind: "cidr"}, false
	}
	prefix = prefix.Masked()
	text, ranges := prefix.String(), fmt.Sprintf("{ranges: [{address_prefix: %q, prefix_len: %d}]", prefix.Addr(), prefix.Bits())
	if invert {
		text, ranges = "invert:"+text, ranges+", invert_match: true"
	}
	ranges += "}"
	match := func(key, value string) action {
		return action{"remote_address_match", []pair{{"descriptor_key", key}, {"descriptor_value", strconv.Quote(value)}, {"address_matcher", ranges}}}
	}
	return egMatch{kind: "cidr", fixed: func() ([]entry, []action) {
		entries, actions := []entry{{"masked_remote_address", text}}, []action{match("masked_remote_address", text)}
		if what == "Distinct" {
			entries = append(entries, entry{key: "remote_address"})
			actions = append(actions, match("remote_address", "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%"))
		}
		return entries, actions
	}}, true
}

// order sorts the conditions as Envoy Gateway does: headers, path, address, query parameters. Methods follow the headers.
func (s *egSelectors) order() {
	all := s.headers
	for _, kind := range []string{"path", "cidr"} {
		for _, m := range s.others {
			if m.kind == kind && (m.make != nil || m.fixed != nil) {
				all = append(all, m)
			}
		}
	}
	s.rule.matches = append(all, s.query...)
}
