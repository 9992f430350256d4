package module

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"

	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/internal/ops/loadtest"
)

const costRules = `domain: app
descriptors:
- {key: api_key, rate_limit: {unit: hour, requests_per_unit: 1000000000}}
- {key: quota, rate_limit: {unit: minute, requests_per_unit: 1000000000}, metadata: {keyward: {mechanism: quota}}}
`

// localFilter returns Envoy's own local_ratelimit, with a limit that nothing exceeds.
func localFilter() string {
	return "{name: envoy.filters.http.local_ratelimit, typed_config: " + lab.TypedConfig("envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
		"stat_prefix: local, token_bucket: {max_tokens: 4000000000, tokens_per_fill: 4000000000, fill_interval: 1s}, filter_enabled: {default_value: {numerator: 100}}, filter_enforced: {default_value: {numerator: 100}}") + "}"
}

// idleFilter returns a filter that does nothing.
func idleFilter() string {
	return "{name: envoy.filters.http.header_mutation, typed_config: " + lab.TypedConfig("envoy.extensions.filters.http.header_mutation.v3.HeaderMutation", "mutations: {}") + "}"
}

// quotaFilter returns a filter that spends quotas of costRules.
func quotaFilter() string {
	input := "{name: h, typed_config: " + lab.TypedConfig("envoy.type.matcher.v3.HttpRequestHeaderMatchInput", "header_name: x-key") + "}"
	deny := "{fallback_rate_limit: {blanket_rule: DENY_ALL}}"
	settings := lab.TypedConfig("envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaBucketSettings",
		"reporting_interval: 5s, no_assignment_behavior: "+deny+", bucket_id_builder: {bucket_id_builder: {0.quota: {custom_value: "+input+"}}}")
	return "{name: envoy.filters.http.rate_limit_quota, typed_config: " + lab.TypedConfig("envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaFilterConfig",
		"domain: app, rlqs_server: {envoy_grpc: {cluster_name: keyward}}, bucket_matchers: {on_no_match: {action: {name: a, typed_config: "+settings+"}}}") + "}"
}

// TestCost measures what Envoy spends on a request: without a limit, with filters that do nothing, with its own local_ratelimit,
// with calls to a sidecar, with quotas (RLQS) of it, and with the module. Each has its turn in each round. KEYWARD_COST is the number of rounds, and
// KEYWARD_COST_ROWS a regular expression of the rows; without it, all take part.
func TestCost(t *testing.T) {
	rounds, _ := strconv.Atoi(os.Getenv("KEYWARD_COST"))
	if rounds == 0 {
		t.Skip("set KEYWARD_COST to the number of rounds")
	}
	f := startFleetWith(t, newest, 1, costRules)
	service, module := f.pods[0].sidecar.RLS, f.pods[0].site
	absent := t.TempDir() + "/s" // no sidecar serves it, so nothing has a lease
	type row struct {
		name string
		*site
	}
	sites := []row{
		{"none", start(t, newest, setup{filters: []string{}})},
		{"a filter that does nothing", start(t, newest, setup{filters: []string{idleFilter()}})},
		{"a module that does nothing", start(t, newest, setup{socket: absent, filters: []string{module.module(setup{socket: absent, limits: `[{"actions": [{"request_headers": {"header_name": "x-none", "descriptor_key": "none"}}]}]`, abi: newest.abi})}})},
		{"local_ratelimit", start(t, newest, setup{filters: []string{localFilter()}})},
		{"RLS", start(t, newest, setup{bare: true, service: service})},
		{"RLQS", start(t, newest, setup{filters: []string{quotaFilter()}, service: service})},
		{"module", module},
		{"module, filter built", start(t, newest, setup{socket: f.pods[0].socket, service: service, built: true})},
		{"module as matcher", start(t, newest.asMatcher(), setup{socket: f.pods[0].socket, service: service})},
		{"calls behind the module", start(t, newest, setup{socket: absent, service: service})},
		{"the same, filter built", start(t, newest, setup{socket: absent, service: service, built: true})},
		{"module, no rate limit filter", start(t, newest, setup{socket: f.pods[0].socket, service: service, filters: []string{module.module(setup{socket: f.pods[0].socket, limits: byKey, abi: newest.abi})}})},
	}
	rowsOf := regexp.MustCompile(os.Getenv("KEYWARD_COST_ROWS"))
	sites = slices.DeleteFunc(sites, func(s row) bool { return s.name != "none" && !rowsOf.MatchString(s.name) })
	var all []*loadtest.Contender
	for _, s := range sites {
		var calls []loadtest.LoadCall
		for i := range 4 {
			calls = append(calls, loadtest.LoadCall{Headers: []hpack.HeaderField{{Name: "x-key", Value: fmt.Sprint("key-", i)}}})
		}
		l, err := loadtest.New(t.Context(), loadtest.Options{Service: loadtest.HTTP("/"), Targets: []loadtest.Target{{Addr: s.envoy.Listener}}, Calls: calls, Conns: 4})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(l.Close)
		all = append(all, &loadtest.Contender{Name: s.name, Load: l, CPU: f.pods[0].sidecar.CPU, Proxy: s.envoy.CPU})
	}
	plan := loadtest.Plan{Phases: []loadtest.Phase{{Inflight: 1}, {Inflight: 4}}, Rounds: rounds, Seconds: 1, Warm: 1.5}
	rows, err := loadtest.Compare(context.Background(), plan, all, func(int, *loadtest.Measurement, loadtest.Figures) {})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, p := range plan.Phases {
		none := loadtest.Find(rows, "none", p)
		fmt.Fprintf(&out, "\n%d in flight, medians of %d rounds (us)  Envoy CPU  over none  sidecar CPU     p50  over none     p99    refused\n", p.Inflight, rounds)
		for _, s := range sites {
			row := loadtest.Find(rows, s.name, p)
			m := row.Median()
			fmt.Fprintf(&out, "  %-40s %9.1f %10.1f %12.1f %7.0f %10.0f %7.0f %10d\n", s.name, m.Proxy, paired(row, none, func(f *loadtest.Figures) float64 { return f.Proxy }), m.CPU,
				m.P50, paired(row, none, func(f *loadtest.Figures) float64 { return f.P50 }), m.P99, m.Over+m.Errors)
		}
	}
	for _, p := range plan.Phases {
		for _, pair := range [][2]string{{"module, filter built", "module"}, {"the same, filter built", "calls behind the module"}} {
			if !rowsOf.MatchString(pair[0]) || !rowsOf.MatchString(pair[1]) {
				continue
			}
			fmt.Fprintf(&out, "%d in flight: %s less %s: %.1f us of Envoy's CPU\n", p.Inflight, pair[0], pair[1],
				paired(loadtest.Find(rows, pair[0], p), loadtest.Find(rows, pair[1], p), func(f *loadtest.Figures) float64 { return f.Proxy }))
		}
	}
	t.Log(out.String())
	t.Log(f.metrics("keyward_module_"))
}

// paired is the median of the differences of the rounds.
func paired(a, b *loadtest.Measurement, figure func(*loadtest.Figures) float64) float64 {
	var d []float64
	for i := range min(len(a.Rounds), len(b.Rounds)) {
		d = append(d, figure(&a.Rounds[i])-figure(&b.Rounds[i]))
	}
	return loadtest.SpreadOf(d).Median
}
