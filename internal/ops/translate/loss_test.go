package translate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/config"
)

// TestNothingIsLostSilently lists files in which a limit has no rule. Each needs a finding that is no note, on the line of
// the cause.
func TestNothingIsLostSilently(t *testing.T) {
	const proxy = "apiVersion: projectcontour.io/v1\nkind: HTTPProxy\nmetadata: {name: p}\nspec:\n  virtualhost:\n    rateLimitPolicy:\n"
	const kgateway = "apiVersion: gateway.kgateway.dev/v1alpha1\nkind: TrafficPolicy\nmetadata: {name: p}\nspec:\n"
	const btp = "apiVersion: gateway.envoyproxy.io/v1alpha1\nkind: BackendTrafficPolicy\nmetadata: {name: p}\nspec:\n"
	const solo = "apiVersion: ratelimit.solo.io/v1alpha1\nkind: RateLimitConfig\nmetadata: {name: p}\nspec:\n  raw:\n    descriptors:\n"
	const config1 = "---\napiVersion: projectcontour.io/v1alpha1\nkind: ContourConfiguration\nmetadata: {name: %s}\nspec: {rateLimitService: {domain: %[1]s, defaultGlobalRateLimitPolicy: {descriptors: [{entries: [{remoteAddress: {}}]}]}}}\n"
	for name, row := range map[string]struct {
		text string
		line int
	}{
		"a list of resources without a kind":    {"- apiVersion: x\n  kind: y\n", 1},
		"a text":                                {"kind:HTTPProxy\n", 1},
		"a resource without kind":               {"spec: {}\n", 1},
		"lists in lists":                        {strings.Repeat("{kind: List, items: [", 15) + "{kind: y}" + strings.Repeat("]}", 15), 1},
		"a list with a text":                    {"kind: List\nitems:\n- a\n", 3},
		"a policy of another group":             {"apiVersion: gateway.nginx.org/v1alpha1\nkind: RateLimitPolicy\nmetadata: {name: p}\n", 1},
		"a policy without apiVersion":           {"kind: HTTPProxy\nmetadata: {name: p}\n", 1},
		"a target without kind":                 {"apiVersion: kuadrant.io/v1\nkind: RateLimitPolicy\nmetadata: {name: p}\nspec:\n  targetRef: {name: shop}\n  limits: {a: {rates: [{limit: 5, window: 1s}]}}\n", 5},
		"a negative limit that is no number":    {"apiVersion: kuadrant.io/v1\nkind: RateLimitPolicy\nmetadata: {name: p}\nspec:\n  targetRef: {kind: HTTPRoute, name: shop}\n  limits: {a: {rates: [{limit: -5k, window: 1s}]}}\n", 6},
		"a misspelled rateLimit":                {btp + "  targetRefs: [{kind: Gateway, name: g}]\n  ratelimit: {type: Global}\n" + "---\n" + gatewayG, 6},
		"both forms of targets":                 {btp + "  targetRefs: [{kind: Gateway, name: g}]\n  targetRef: {kind: Gateway, name: g}\n" + "---\n" + gatewayG, 5},
		"a misspelled rateLimit of kgateway":    {kgateway + "  rateLimits: {}\n  ratelimit: {local: {}}\n", 5},
		"a misspelled policy of a virtual host": {proxy[:strings.Index(proxy, "    rate")] + "    ratelimitPolicy: {global: {}}\n", 6},
		"a misspelled policy of a route":        {"apiVersion: projectcontour.io/v1\nkind: HTTPProxy\nmetadata: {name: p}\nspec:\n  routes:\n  - rateLimitpolicy: {}\n", 6},
		"an entry that is null":                 {proxy + "      global: {descriptors: [{entries: [{genericKey: {value: a}}, {remoteAddress: }]}]}\n", 7},
		"a descriptor without entries":          {proxy + "      global:\n        descriptors:\n        - entries: []\n", 9},
		"no entries in kgateway":                {kgateway + "  rateLimit:\n    global:\n      extensionRef: {name: e}\n      descriptors:\n      - entries: []\n", 9},
		"an empty bucket":                       {kgateway + "  rateLimit:\n    local:\n      tokenBucket: {maxTokens: 0, tokensPerFill: 1, fillInterval: 1s}\n", 7},
		"a descriptor twice":                    {solo + "    - {key: a, rateLimit: {unit: MINUTE, requestsPerUnit: 5}}\n    - {key: a, rateLimit: {unit: DAY, requestsPerUnit: 5}}\n", 8},
		"a second configuration":                {fmt.Sprintf(config1+config1, "one", "two"), 10},
		"a resource twice":                      {fmt.Sprintf(config1+config1, "one", "one"), 7},
	} {
		g := Translate([]config.File{{Name: "f", Content: []byte(row.text)}}, Options{Envoys: 1, Domain: "d", Limits: map[string]Amount{"": {1, "day"}}})
		said := false
		for _, d := range g.Findings {
			said = said || d.Kind != Note && d.Line == row.line
		}
		if !said {
			t.Errorf("%s: no finding on line %d:\n%s\n%s", name, row.line, row.text, g.text())
		}
	}
}

// TestRepeatedDescriptorKeepsLimit requires that a descriptor without a limit removes none of an equal one before it.
func TestRepeatedDescriptorKeepsLimit(t *testing.T) {
	text := "kind: List\napiVersion: v1\nitems: [{apiVersion: ratelimit.solo.io/v1alpha1, kind: RateLimitConfig, spec: {raw: {descriptors: [" +
		"{key: a, rateLimit: {unit: MINUTE, requestsPerUnit: 5}}, {key: a, descriptors: [{key: b}]}]}}}]\n"
	for _, text := range []string{text, strings.Replace(text, "kind: List\n", "", 1)} {
		g := Translate([]config.File{{Name: "f", Content: []byte(text)}}, Options{Domain: "d"})
		if !g.Complete() || len(g.Files) != 1 || !strings.Contains(g.Files[0].YAML, "{unit: minute, requests_per_unit: 5}") {
			t.Errorf("%s", g.text())
		}
	}
}

const gatewayG = "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: g}\n"

// TestRepeatedPartsAreBounded requires that short files whose aliases multiply take little time and memory.
func TestRepeatedPartsAreBounded(t *testing.T) {
	many := func(n int, item string) string { return strings.Repeat(item, n) }
	var hosts, limits strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&hosts, "h%d.example,", i)
		fmt.Fprintf(&limits, "a%d: *a,", i)
	}
	const route = "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: r}\n"
	for name, text := range map[string]string{
		"hosts, matches and shared rules": gatewayG + "spec: {listeners: [{name: l, protocol: HTTP}]}\n" + route +
			"spec: {parentRefs: [{name: g}], hostnames: [" + hosts.String() + "], rules: [{matches: [" + many(4000, "{},") + "]}]}\n" +
			"---\napiVersion: gateway.envoyproxy.io/v1alpha1\nkind: BackendTrafficPolicy\nmetadata: {name: p}\n" +
			"spec: {targetRefs: [{kind: Gateway, name: g}], rateLimit: {global: {rules: [&a {shared: true, limit: {requests: 1, unit: Day}}," + many(1000, "*a,") + "]}}}\n",
		"limits that overlap": "apiVersion: kuadrant.io/v1\nkind: RateLimitPolicy\nmetadata: {name: p}\n" +
			"spec: {targetRef: {kind: HTTPRoute, name: r}, limits: {a: &a {rates: [{limit: 5, window: 1s}]}, " + limits.String() + "}}\n",
	} {
		began := time.Now()
		g := Translate([]config.File{{Name: "f", Content: []byte(text)}}, Options{})
		size := 0
		for _, d := range g.Findings {
			size += len(d.Text)
		}
		for _, f := range g.Files {
			size += len(f.YAML)
		}
		t.Logf("%s: %d bytes, %d findings, result %d bytes, %v", name, len(text), len(g.Findings), size, time.Since(began))
		if size > 200*len(text) || g.Complete() {
			t.Errorf("%s: %d bytes become %d, %d findings", name, len(text), size, len(g.Findings))
		}
	}
}
