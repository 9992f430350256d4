package snippet

import (
	"fmt"
	"strings"
	"testing"
)

// TestQuotaFaults checks that shape rlqs names everything that it cannot express.
func TestQuotaFaults(t *testing.T) {
	from := map[string]string{"api_key": "header:x-api-key", "tenant": "metadata:jwt:tenant"}
	for name, c := range map[string]struct {
		o    Options
		want string
	}{
		"no rules":  {Options{}, "needs the rules"},
		"no quota":  {Options{Rules: load(t, simple), From: from}, "no rule has metadata.keyward: {mechanism: quota}"},
		"no source": {Options{Rules: load(t, quotas)}, "the source of api_key is unknown, so api.api_key is never applied"},
		"metadata":  {Options{Rules: load(t, manyQuotas), From: from}, "a bucket of api.api_key.tenant cannot have tenant"},
		"calls": {Options{Rules: load(t, mixedQuotas+"- {key: api_key, value: silver, rate_limit: {unit: minute, requests_per_unit: 60}}\n"), From: from},
			"a.yaml:10: api.api_key_silver has the descriptor of api.api_key (a.yaml:9), which has mechanism: quota"},
		"another's value": {Options{Rules: load(t, mixedQuotas[:strings.Index(mixedQuotas, "- {key: api_key, value: free")]+
			"- {key: tenant, value: free}\n- {key: tenant, rate_limit: {unit: minute, requests_per_unit: 60}, metadata: {keyward: {mechanism: quota}}}\n"),
			From: map[string]string{"api_key": "header:x-api-key", "tenant": "value:free"}},
			"domain api: api.tenant: Envoy always sends the value of another rule"},
		"replaced": {Options{Rules: load(t, mixedQuotas+"- {key: o, rate_limit: {unit: minute, requests_per_unit: 60, replaces: [{name: gold}]}}\n"), From: from},
			"a.yaml:3: api.api_key_gold has mechanism: quota, and another rule replaces it for some requests"},
		"routed":     {Options{Rules: load(t, quotas), From: from, Routed: true}, "shape rlqs has no --hot-filters"},
		"hot routes": {Options{Rules: load(t, hotQuotas), From: from, HotRoutes: true}, "need the address of an xDS server"},
		"hot alone":  {Options{Rules: load(t, hotQuotas), From: from}, "{hot_step: quota} with --hot-routes"},
	} {
		c.o.Shape = RLQS
		if _, _, err := Generate(c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, not %q", name, err, c.want)
		}
	}
}

// TestQuotasAreCountedOnce checks that the hits of a rule are taken by a quota filter or by calls, not by both.
func TestQuotasAreCountedOnce(t *testing.T) {
	from := map[string]string{"api_key": "header:x-api-key"}
	for shape, want := range map[Shape][2]int{RLQS: {1, 0}, Plain: {0, 1}} {
		text, warnings, err := Generate(Options{Shape: shape, Rules: load(t, quotas), From: from})
		if err != nil {
			t.Fatal(err)
		}
		filters := strings.Count(string(text), "RateLimitQuotaFilterConfig\n")
		calls := strings.Count(string(text), "descriptor_key: api_key")
		if got := [2]int{filters, calls}; got != want {
			t.Errorf("%s: %v filters and calls, not %v", shape, got, want)
		}
		if warned := strings.Contains(strings.Join(warnings, "\n"), "work in progress"); warned != (shape == RLQS) {
			t.Errorf("%s: %q", shape, warnings)
		}
	}
}

// TestHotQuotas checks that each descriptor is in one filter for calls, and that the route of a hot key can replace it.
func TestHotQuotas(t *testing.T) {
	text, warnings, err := Generate(Options{
		Shape: RLQS, Rules: load(t, hotQuotas), From: map[string]string{"api_key": "header:x-api-key"}, HotRoutes: true, XDS: "127.0.0.1:18000",
	})
	if err != nil {
		t.Fatal(err)
	}
	for part, want := range map[string]int{
		"descriptor_key: api_key": 1, "{remote_address: {}}": 1, "name: keyward-quota/api/api_key\n": 1, "name: keyward-calls/api/api_key\n": 1,
		"disabled: true": 1, "lds_config:": 1, "route_config_name: keyward-direct": 1, "cds_config:": 0,
	} {
		if n := strings.Count(string(text), part); n != want {
			t.Errorf("%d times %s, want %d", n, part, want)
		}
	}
	if strings.Contains(strings.Join(warnings, "\n"), "never switch") {
		t.Errorf("%q", warnings)
	}
	_, warnings, err = Generate(Options{
		Shape: RLQS, Rules: load(t, hotQuotas), From: map[string]string{"api_key": "header:x-user"}, HotRoutes: true, XDS: "127.0.0.1:18000",
	})
	if err != nil || !strings.Contains(strings.Join(warnings, "\n"), "never switch") {
		t.Errorf("another header: %q, %v", warnings, err)
	}
}

// mixedQuotas has rules of one descriptor that Envoy must tell apart by the value.
const mixedQuotas = `domain: api
descriptors:
- {key: api_key, value: gold, rate_limit: {name: gold, unit: minute, requests_per_unit: 600}, metadata: {keyward: {mechanism: quota, degraded: fail_closed}}}
- {key: api_key, value: free, rate_limit: {unlimited: true}}
- {key: api_key, value: exempt}
- {key: api_key, value: "trial-*", shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 6}, metadata: {keyward: {mechanism: quota}}}
- {key: api_key, value: "tr*", rate_limit: {unit: minute, requests_per_unit: 60}, metadata: {keyward: {mechanism: quota, first: allow, degraded: fail_open}}}
- {key: api_key, value: trial-0, rate_limit: {unlimited: true}, metadata: {keyward: {mechanism: quota}}}
- {key: api_key, rate_limit: {unit: minute, requests_per_unit: 60}, metadata: {keyward: {mechanism: quota, envoys: 4}}}
`

// TestQuotaValues checks that each rule of a descriptor has a bucket of its own, for exactly the values that the server finds it by.
func TestQuotaValues(t *testing.T) {
	text, _, err := Generate(Options{Shape: RLQS, Rules: load(t, mixedQuotas), From: map[string]string{"api_key": "header:x-api-key"}})
	if err != nil {
		t.Fatal(err)
	}
	const header = `input: {name: header, typed_config: {"@type": type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput, header_name: x-api-key}}`
	is := func(match string) string {
		return "single_predicate: {" + header + ", value_match: {" + match + "}}"
	}
	regex := func(expr string) string { return "safe_regex: {google_re2: {}, regex: " + quote(expr) + "}" }
	for rule, want := range map[string][]string{
		"api.api_key_gold":    {is("exact: gold"), "ALLOW_ALL 0", "DENY_ALL 2"},
		"api.api_key_trial-*": {is(regex("^(?:trial-.*)$")), "not_matcher: {" + is("exact: trial-0") + "}", "ALLOW_ALL 2"},
		"api.api_key_tr*":     {is(regex("^(?:tr.*)$")), "not_matcher: {" + is(regex("^(?:trial-.*|trial-0)$")) + "}", "ALLOW_ALL 2"},
		"api.api_key_trial-0": {is("exact: trial-0"), "ALLOW_ALL 2"},
		"api.api_key": {is(regex(".+")), "not_matcher: {" + is(regex("^(?:gold|free|exempt|trial-.*|tr.*|trial-0)$")) + "}", "DENY_ALL 1",
			"max_tokens: 30"},
	} {
		_, part, found := strings.Cut(string(text), "- predicate: # "+rule+"\n")
		part, _, _ = strings.Cut(part, "- predicate:")
		for _, w := range want {
			what, n, counted := strings.Cut(w, "_ALL ")
			if counted && fmt.Sprint(strings.Count(part, what+"_ALL")) != n || !counted && !strings.Contains(part, w) {
				t.Errorf("%s (%v): %s is not in\n%s", rule, found, w, part)
			}
		}
	}
	if strings.Contains(string(text), "descriptor_key: api_key") {
		t.Error("calls count the same requests")
	}
}
