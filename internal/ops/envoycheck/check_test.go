package envoycheck

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/keyward/keyward/internal/config"
)

const quotaRules = `domain: api
descriptors:
- key: api_key
  rate_limit: {unit: minute, requests_per_unit: 60000}
  metadata: {keyward: {mechanism: quota}}
- key: user
  rate_limit: {unit: minute, requests_per_unit: 60}
- key: a
  descriptors:
  - key: b
    rate_limit: {unit: minute, requests_per_unit: 60}
    metadata: {keyward: {mechanism: quota}}
- key: b
  descriptors:
  - key: a
    rate_limit: {unit: minute, requests_per_unit: 60}
    metadata: {keyward: {mechanism: quota}}
`

func rules(t *testing.T) *config.Rules {
	t.Helper()
	r, err := config.Load([]config.File{{Name: "rules.yaml", Content: []byte(quotaRules)}}, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// bucket is a part of a file with the settings of a bucket.
func bucket(settings string) string {
	return `"@type": type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaBucketSettings
bucket_id_builder: {bucket_id_builder: {"0.api_key": {string_value: x}}}
` + settings
}

// filter is a quota filter's configuration with a bucket.
func filter(fields, match, settings string) string {
	return `"@type": type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaFilterConfig
domain: api
` + fields + `
bucket_matchers:
  matcher_list:
    matchers:
    - predicate: {}
      on_match:
        ` + match + `
        action:
          name: bucket
          typed_config:
            ` + strings.ReplaceAll(bucket(settings), "\n", "\n            ")
}

const fine = "no_assignment_behavior: {fallback_rate_limit: {blanket_rule: DENY_ALL}}"

// TestFaults checks each fault with its kind and line.
func TestFaults(t *testing.T) {
	const lasting = "expired_assignment_behavior: {expired_assignment_behavior_timeout: 315360000s, fallback_rate_limit: {blanket_rule: ALLOW_ALL}}"
	for name, c := range map[string]struct {
		text string
		want []string // kind:line of faults, then of warnings with a minus sign
	}{
		"fine":                        {bucket(fine), nil},
		"token bucket first":          {bucket("no_assignment_behavior:\n  fallback_rate_limit:\n    token_bucket: {max_tokens: 5}"), []string{"envoy-crash:5"}},
		"in camel case":               {bucket("noAssignmentBehavior:\n  fallbackRateLimit:\n    tokenBucket: {maxTokens: 5}"), []string{"envoy-crash:5"}},
		"requests per unit first":     {bucket("no_assignment_behavior: {fallback_rate_limit: {requests_per_time_unit: {}}}"), []string{"envoy-crash:3"}},
		"nothing without assignment":  {bucket(""), []string{"envoy-unbounded:1"}},
		"admits without assignment":   {bucket("no_assignment_behavior: {fallback_rate_limit: {blanket_rule: ALLOW_ALL}}"), []string{"envoy-unbounded:1"}},
		"the same as a number":        {bucket("no_assignment_behavior: {fallback_rate_limit: {blanket_rule: 0}}"), []string{"envoy-unbounded:1"}},
		"admits, and a policy":        {bucket("no_assignment_behavior: {fallback_rate_limit: {blanket_rule: ALLOW_ALL}}\n" + lasting), nil},
		"admits, and a policy for 0s": {bucket(strings.ReplaceAll(lasting, "315360000s", "0s")), []string{"envoy-unbounded:1"}},
		"policy without a timeout":    {bucket(fine + "\nexpired_assignment_behavior: {fallback_rate_limit: {blanket_rule: DENY_ALL}}"), []string{"-envoy-ignored:4"}},
		"reuse":                       {bucket(fine + "\nexpired_assignment_behavior:\n  reuse_last_assignment: {}"), []string{"envoy-ignored:5"}},
		"expired to a rate": {bucket(fine + "\nexpired_assignment_behavior:\n  expired_assignment_behavior_timeout: 9s\n  fallback_rate_limit: {requests_per_time_unit: {}}"),
			[]string{"envoy-ignored:6"}},
		"keep matching":        {filter("", "keep_matching: true", fine), []string{"envoy-crash:9"}},
		"keeps no matching":    {filter("", "keep_matching: false", fine), nil},
		"elsewhere":            {"route: {match: {on_match: {keep_matching: true}}}", nil},
		"fractions":            {filter("filter_enabled: {}\nfilter_enforced: {}", "", fine), []string{"envoy-ignored:3", "envoy-ignored:4"}},
		"override":             {`typed_per_filter_config: {x: {"@type": type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaOverride}}`, []string{"envoy-rejected:1"}},
		"disabled: false":      {`typed_per_filter_config: {envoy.filters.http.rate_limit_quota: {"@type": type.googleapis.com/envoy.config.route.v3.FilterConfig, disabled: false}}`, []string{"envoy-rejected:1"}},
		"enabled":              {`typed_per_filter_config: {envoy.filters.http.rate_limit_quota: {"@type": type.googleapis.com/envoy.config.route.v3.FilterConfig, config: {}}}`, nil},
		"typed struct":         {"typed_config:\n  \"@type\": type.googleapis.com/xds.type.v3.TypedStruct\n  type_url: type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaFilterConfig\n  value:\n    filter_enabled: {}", []string{"envoy-ignored:5"}},
		"config map":           {"data:\n  envoy.yaml: |\n    " + strings.ReplaceAll(filter("filter_enabled: {}", "", fine), "\n", "\n    "), []string{"envoy-ignored:5"}},
		"second document":      {"a: 1\n---\n" + filter("filter_enabled: {}", "", fine), []string{"envoy-ignored:5"}},
		"not YAML":             {"a: [", []string{"envoy-yaml:0"}},
		"no rule":              {strings.ReplaceAll(filter("", "", fine), "api_key", "other"), []string{"-envoy-no-rule:14"}},
		"rule with calls":      {strings.ReplaceAll(filter("", "", fine), "api_key", "user"), []string{"-envoy-no-rule:14"}},
		"bare key":             {strings.ReplaceAll(filter("", "", fine), "0.api_key", "api_key"), nil},
		"bare keys, two paths": {strings.ReplaceAll(filter("", "", fine), `"0.api_key": {string_value: x}`, "a: {}, b: {}"), []string{"-envoy-no-rule:14"}},
		"keys with positions":  {strings.ReplaceAll(filter("", "", fine), `"0.api_key": {string_value: x}`, "0.a: {}, 1.b: {}"), nil},
		"costs":                {"rate_limits:\n- actions: [{request_headers: {header_name: x, descriptor_key: api_key}}]\n  hits_addend: {number: 5}", []string{"envoy-costs:3"}},
		"costs of another":     {"rate_limits:\n- actions: [{request_headers: {header_name: x, descriptor_key: user}}]\n  hits_addend: {number: 5}", nil},
		"aliases":              {"x: &x {keep_matching: true}\n" + strings.ReplaceAll(filter("", "@", fine), "@", "<<: 1"), nil},
	} {
		got := kinds(Check([]config.File{{Name: "envoy.yaml", Content: []byte(c.text)}}, rules(t)))
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q\n%s", name, got, c.want, c.text)
		}
	}
}

func kinds(f Findings) (all []string) {
	for _, d := range f.Faults {
		all = append(all, fmt.Sprintf("%s:%d", d.Kind, d.Line))
	}
	for _, d := range f.Warnings {
		all = append(all, fmt.Sprintf("-%s:%d", d.Kind, d.Line))
	}
	return all
}

// TestChains checks filters that count the same requests.
func TestChains(t *testing.T) {
	indent := func(text string) string { return strings.ReplaceAll(text, "\n", "\n    ") }
	quota := "- name: quota\n  typed_config:\n    " + indent(filter("", "", fine)) + "\n"
	calls := "- name: calls\n  typed_config:\n    \"@type\": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit\n    domain: api\n"
	route := "route_config: {virtual_hosts: [{routes: [{route: {rate_limits: [{actions: [{request_headers: {header_name: x, descriptor_key: KEY}}]}]}}]}]}\n"
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"one":             {"http_filters:\n" + quota, nil},
		"two":             {"http_filters:\n" + quota + quota, []string{"-" + SeveralRules}},
		"and calls":       {strings.ReplaceAll(route, "KEY", "user") + "http_filters:\n" + quota + calls, []string{"-" + SeveralRules}},
		"the same rule":   {strings.ReplaceAll(route, "KEY", "api_key") + "http_filters:\n" + quota + calls, []string{CountedTwice, "-" + SeveralRules}},
		"another domain":  {strings.ReplaceAll(route, "KEY", "api_key") + "http_filters:\n" + quota + strings.ReplaceAll(calls, "domain: api", "domain: b"), []string{"-" + SeveralRules}},
		"disabled":        {strings.ReplaceAll(route, "KEY", "api_key") + "http_filters:\n" + strings.Replace(quota, "  typed", "  disabled: true\n  typed", 1) + calls, nil},
		"no quota filter": {strings.ReplaceAll(route, "KEY", "api_key") + "http_filters:\n" + calls, nil},
	} {
		var got []string
		for _, k := range kinds(Check([]config.File{{Name: "envoy.yaml", Content: []byte(c.text)}}, rules(t))) {
			got = append(got, k[:strings.LastIndex(k, ":")])
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q\n%s", name, got, c.want, c.text)
		}
	}
}

// TestGenerated requires that what keyward envoy-config prints has no faults, and that the files of docs/upstream, which
// end Envoy, have.
func TestGenerated(t *testing.T) {
	for pattern, faulty := range map[string]bool{"../../../envoy/snippet/testdata/*.yaml": false, "../../../docs/upstream/rlqs-*.envoy.yaml": true} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) < 2 {
			t.Fatalf("%s: %q, %v", pattern, files, err)
		}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			f := Check([]config.File{{Name: file, Content: content}}, nil)
			if (len(f.Faults) > 0) != faulty {
				t.Errorf("%s: %+v", file, f.Faults)
			}
		}
	}
}

func FuzzCheck(f *testing.F) {
	f.Add(filter("filter_enabled: {}", "keep_matching: true", fine))
	f.Add("a: &a [*a]")
	f.Add("http_filters: &a [{typed_config: *a}]\nroute_config: *a\nx: {\"@type\": a.RateLimitQuotaFilterConfig, bucket_matchers: &b [*b, *b]}")
	f.Add("http_filters: 1\nrate_limits: [1, {actions: [[], {x: 1}]}]")
	f.Fuzz(func(_ *testing.T, text string) { Check([]config.File{{Name: "a", Content: []byte(text)}}, nil) })
}
