package charts

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/ops/translate"
)

// TestTranslateAsEnvoyGateway compares the rules of BackendTrafficPolicies with those of Envoy Gateway, for the inputs of
// its own tests: it records what its translator makes of them, and ratelimit.go in internal/xds/translator turns the
// result into descriptors by the rules that egDescriptors repeats.
func TestTranslateAsEnvoyGateway(t *testing.T) {
	s := sources[0] // Envoy Gateway
	inputs, err := filepath.Glob(filepath.Join(module(t, s.module, s.sum), "internal/gatewayapi/testdata/*.in.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	compared, descriptors := 0, 0
	for _, in := range inputs {
		var objects []any
		for _, list := range readYAML(t, in) {
			if l, ok := list.([]any); ok {
				objects = append(objects, l...)
			}
		}
		if !slices.ContainsFunc(objects, func(o any) bool {
			return at(o, "kind") == "BackendTrafficPolicy" && at(o, "spec", "rateLimit") != nil
		}) {
			continue
		}
		want := egDescriptors(readYAML(t, strings.TrimSuffix(in, ".in.yaml")+".out.yaml"))
		text, err := yaml.Marshal(map[string]any{"kind": "List", "apiVersion": "v1", "items": objects})
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, f := range translate.Translate([]config.File{{Name: in, Content: text}}, translate.Options{}).Files {
			var rules map[string]any
			if err := yaml.Unmarshal([]byte(f.YAML), &rules); err != nil {
				t.Fatal(err)
			}
			limitsOf(got, f.Domain, rules["descriptors"])
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s:\n got %v\nwant %v", filepath.Base(in), got, want)
		}
		compared++
		descriptors += len(want)
	}
	if compared < 15 || descriptors < 15 {
		t.Errorf("only %d inputs with %d descriptors were compared", compared, descriptors)
	}
}

func readYAML(t *testing.T, file string) map[string]any {
	t.Helper()
	var v map[string]any
	b, err := os.ReadFile(file)
	if err == nil {
		err = yaml.Unmarshal(b, &v)
	}
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return v
}

// limitsOf adds the limits of descriptors, by the domain and the entries of their path.
func limitsOf(all map[string]string, path string, descriptors any) {
	list, _ := descriptors.([]any)
	for _, d := range list {
		value := at(d, "value")
		if value == nil {
			value = ""
		}
		down := fmt.Sprintf("%s (%v, %v)", path, at(d, "key"), value)
		if l := at(d, "rate_limit"); l != nil {
			all[down] = fmt.Sprintf("%v/%v shadow %v", at(l, "requests_per_unit"), at(l, "unit"), at(d, "shadow_mode") == true)
		}
		limitsOf(all, down, at(d, "descriptors"))
	}
}

// egDescriptors returns the limits that Envoy Gateway sends to the rate limit service, from the result of its translator.
func egDescriptors(result map[string]any) map[string]string {
	all := map[string]string{}
	gateways, _ := result["xdsIR"].(map[string]any)
	for _, g := range gateways {
		for _, l := range list(at(g, "http")) {
			for _, r := range list(l["routes"]) {
				next := map[bool]int{}
				for _, rule := range list(at(r, "traffic", "rateLimit", "global", "rules")) {
					shared := rule["shared"] == true
					path := egPath(rule, next[shared])
					name, _ := rule["name"].(string)
					policy, _, _ := strings.Cut(name, "/rule/")
					domain, first := l["name"], r["name"]
					if shared {
						domain, first = policy, name
					}
					next[shared]++
					key := fmt.Sprintf("%v (%v, %v)%s", domain, first, first, path)
					if _, earlier := all[key]; !earlier {
						all[key] = fmt.Sprintf("%v/%v shadow %v", at(rule, "limit", "requests"),
							strings.ToLower(fmt.Sprint(at(rule, "limit", "unit"))), rule["shadowMode"] == true)
					}
				}
			}
		}
	}
	return all
}

// egPath returns the entries of a rule below that of its route.
func egPath(rule map[string]any, index int) (path string) {
	fixed := func(format string, args ...any) {
		key := fmt.Sprintf(format, args...)
		path += fmt.Sprintf(" (%s, %s)", key, key)
	}
	match := 0
	matches := func(name string) {
		for _, m := range list(rule[name]) {
			if m["distinct"] == true {
				path += fmt.Sprintf(" (rule-%d-match-%d, )", index, match)
			} else {
				fixed("rule-%d-match-%d", index, match)
			}
			match++
		}
	}
	matches("headerMatches")
	if len(list(rule["methodMatches"])) > 0 {
		fixed("rule-%d-method", index)
	}
	if rule["pathMatch"] != nil {
		fixed("rule-%d-path", index)
	}
	if c := rule["cidrMatch"]; c != nil {
		invert := map[bool]string{true: "invert:"}[at(c, "invert") == true]
		path += fmt.Sprintf(" (masked_remote_address, %s%v)", invert, at(c, "cidr"))
		if at(c, "distinct") == true {
			path += " (remote_address, )"
		}
	}
	matches("queryParamMatches")
	if path == "" {
		fixed("rule-%d-match--1", index)
	}
	return path
}
