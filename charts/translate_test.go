package charts

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/ops/translate"
)

// kuadrantModule has the definitions of Kuadrant's policies.
const kuadrantModule, kuadrantSum = "github.com/kuadrant/kuadrant-operator@v1.5.2", "h1:uSTWe5qzyZl2bEZVf4tzQVaJgOgsiCt5UVOUJQTopFY="

// policyParts are the parts of policies that keyward translate reads completely.
var policyParts = []struct{ resource, path string }{
	{"gateway.envoyproxy.io/v1alpha1 BackendTrafficPolicy", "spec.rateLimit"},
	{"projectcontour.io/v1 HTTPProxy", "spec.virtualhost.rateLimitPolicy"},
	{"projectcontour.io/v1 HTTPProxy", "spec.routes.rateLimitPolicy"},
	{"projectcontour.io/v1alpha1 ContourConfiguration", "spec.rateLimitService"},
	{"projectcontour.io/v1alpha1 ContourDeployment", "spec.runtimeSettings.rateLimitService"},
	{"gateway.kgateway.dev/v1alpha1 TrafficPolicy", "spec.rateLimit"},
	{"gateway.kgateway.dev/v1alpha1 GatewayExtension", "spec.rateLimit"},
	{"kuadrant.io/v1 RateLimitPolicy", "spec"},
	{"kuadrant.io/v1alpha1 TokenRateLimitPolicy", "spec"},
}

// TestTranslateKnowsAllFields requires that keyward translate knows every field in the rate limits of the gateways'
// definitions: a new release with more of them must not lose one silently.
func TestTranslateKnowsAllFields(t *testing.T) {
	all := schemas{}
	for name, schema := range loadSchemas(t) {
		all[name] = schema
	}
	files, err := filepath.Glob(filepath.Join(module(t, kuadrantModule, kuadrantSum), "config/crd/bases/kuadrant.io_*ratelimitpolicies.yaml"))
	if err != nil || len(files) != 2 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.add(t, f, b)
	}
	for _, p := range policyParts {
		schema, wrap := part(all[p.resource], strings.Split(p.path, "."))
		if schema == nil {
			t.Errorf("%s has no %s", p.resource, p.path)
			continue
		}
		values := samples(schema)
		unknown := 0
		for _, v := range values {
			for _, f := range translated(t, p.resource, wrap(v)) {
				t.Errorf("%s: %s", p.resource, f)
			}
			if m, ok := v.(map[string]any); ok {
				m["frobnicate"] = 1
				unknown += len(translated(t, p.resource, wrap(m)))
			}
		}
		if len(values) < 5 || unknown == 0 {
			t.Errorf("%s: %d fields, and %d reports of a field that does not exist", p.resource, len(values), unknown)
		}
	}
}

// part returns the schema at a path, and a function that puts a value there.
func part(schema map[string]any, path []string) (map[string]any, func(any) any) {
	if schema == nil || len(path) == 0 {
		return schema, func(v any) any { return v }
	}
	if items, ok := schema["items"].(map[string]any); ok {
		inner, wrap := part(items, path)
		return inner, func(v any) any { return []any{wrap(v)} }
	}
	below, _ := at(schema, "properties", path[0]).(map[string]any)
	inner, wrap := part(below, path[1:])
	return inner, func(v any) any { return map[string]any{path[0]: wrap(v)} }
}

// samples returns a value for each field of a schema, which has no other field.
func samples(schema map[string]any) (all []any) {
	if properties, ok := schema["properties"].(map[string]any); ok && len(properties) > 0 {
		for name, p := range properties {
			inner, _ := p.(map[string]any)
			for _, v := range samples(inner) {
				all = append(all, map[string]any{name: v})
			}
		}
		return all
	}
	if more, ok := schema["additionalProperties"].(map[string]any); ok {
		for _, v := range samples(more) {
			all = append(all, map[string]any{"one": v})
		}
		return all
	}
	if items, ok := schema["items"].(map[string]any); ok {
		for _, v := range samples(items) {
			all = append(all, []any{v})
		}
		return all
	}
	if enum, ok := schema["enum"].([]any); ok && len(enum) > 0 {
		return []any{enum[0]}
	}
	values := map[string]any{"integer": 1, "boolean": true, "object": map[string]any{}, "string": "a"}
	return []any{values[fmt.Sprint(schema["type"])]}
}

// translated returns the findings about unknown fields of a resource.
func translated(t *testing.T, resource string, body any) (unknown []string) {
	t.Helper()
	version, kind, _ := strings.Cut(resource, " ")
	o := map[string]any{"apiVersion": version, "kind": kind, "metadata": map[string]any{"name": "a"}}
	for k, v := range body.(map[string]any) {
		o[k] = v
	}
	text, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	if kind == "GatewayExtension" { // read for a policy that refers to it
		text = append(text, "---\napiVersion: gateway.kgateway.dev/v1alpha1\nkind: TrafficPolicy\nmetadata: {name: p}\nspec: {rateLimit: {global: {extensionRef: {name: a}}}}\n"...)
	}
	for _, f := range translate.Translate([]config.File{{Name: "a.yaml", Content: text}}, translate.Options{}).Findings {
		if strings.Contains(f.Text, "unknown field") {
			unknown = append(unknown, f.Text)
		}
	}
	return unknown
}
