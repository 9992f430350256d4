package charts

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// sources are the projects whose custom resources the chart, the tool and docs/gateways use. The definitions come from
// the projects' Go modules and are not copied here. The sum is that of a go.sum.
var sources = []struct{ module, sum, files string }{
	{"github.com/envoyproxy/gateway@v1.9.1", "h1:vAVp6/AlBXJ1aOhp1mxL7fNEzVEfjADUguUhm2wzxQY=", "charts/gateway-crds-helm/templates/generated/*.yaml"},
	{"github.com/envoyproxy/ai-gateway@v1.0.0", "h1:cTdSnQmtQQ2Ea5T/LLK50pIthG2SJAOxU9XPXZbtDkU=", "manifests/charts/ai-gateway-crds-helm/templates/*.yaml"},
	{"github.com/projectcontour/contour@v1.33.8", "h1:QoOfwqWws+CVRFpsRC2+f1DmB5IdurtyUtepIsiWfE0=", "examples/contour/01-crds.yaml"},
	{"github.com/kgateway-dev/kgateway/v2@v2.4.0", "h1:WvHHXxIcpmbZuvAo5PtdasEtaEQlSyV4E3kMGmUwInU=", "install/helm/kgateway-crds/templates/*.yaml"},
	{"istio.io/api@v1.31.1", "h1:5Yb5ihcz4YQsCkciusK7DnFpBMwRB6EFWeUKH1Atuyk=", "kubernetes/customresourcedefinitions.gen.yaml"},
	{"github.com/cert-manager/cert-manager@v1.21.2", "h1:UWgoYM+KLNtRlqmoWOKjKBOBUPVHeepQ6/ac3ERJW68=", "deploy/crds/*.yaml"},
	{"github.com/prometheus-operator/prometheus-operator@v0.85.0", "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=", "example/prometheus-operator-crd/*.yaml"},
	{"sigs.k8s.io/gateway-api@v1.6.3", "h1:lKpJa5bGlraC/QeACvCpsHLdmO6y0iKfzVl6gzaFEYc=", "config/crd/standard/*.yaml"},
}

// module downloads a module, unless the cache has it, and returns its directory.
func module(t *testing.T, version, sum string) string {
	t.Helper()
	out, err := exec.Command("go", "mod", "download", "-json", version).Output()
	var m struct{ Dir, Sum, Error string }
	if jsonErr := json.Unmarshal(out, &m); err != nil || jsonErr != nil || m.Error != "" {
		t.Fatalf("download %s: %v %v %s", version, err, jsonErr, m.Error)
	}
	if m.Sum != sum {
		t.Fatalf("%s has the sum %s, not %s", version, m.Sum, sum)
	}
	return m.Dir
}

// schemas maps apiVersion and kind to the schema of the definition.
type schemas map[string]map[string]any

// loaded caches the schemas.
var loaded schemas

func loadSchemas(t *testing.T) schemas {
	t.Helper()
	if loaded != nil {
		return loaded
	}
	all := schemas{}
	eachDefinition(t, func(_ int, f string, b []byte) { all.add(t, f, b) })
	loaded = all
	return all
}

// eachDefinition reads the files of all sources, with the index of the source.
func eachDefinition(t *testing.T, see func(source int, file string, content []byte)) {
	t.Helper()
	for i, s := range sources {
		files, err := filepath.Glob(filepath.Join(module(t, s.module, s.sum), s.files))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no %s", s.module, s.files)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			see(i, f, b)
		}
	}
}

// templated matches the Helm conditions around a definition, which are not part of its schema.
var templated = regexp.MustCompile(`(?m)^\s*\{\{.*\}\}\s*$`)

func (all schemas) add(t *testing.T, file string, text []byte) {
	t.Helper()
	for _, d := range documents(t, file, templated.ReplaceAll(text, nil)) {
		if d["kind"] != "CustomResourceDefinition" {
			continue
		}
		group, kind := at(d, "spec", "group"), at(d, "spec", "names", "kind")
		versions, _ := at(d, "spec", "versions").([]any)
		for _, v := range versions {
			schema, _ := at(v, "schema", "openAPIV3Schema").(map[string]any)
			all[fmt.Sprintf("%v/%v %v", group, at(v, "name"), kind)] = schema
		}
	}
}

// at follows a path of keys. It returns nil if a key is missing.
func at(v any, path ...string) any {
	for _, p := range path {
		m, _ := v.(map[string]any)
		v = m[p]
	}
	return v
}

// documents parses the objects of a file.
func documents(t *testing.T, file string, text []byte) (all []map[string]any) {
	t.Helper()
	dec := yaml.NewDecoder(strings.NewReader(string(text)))
	for {
		var d map[string]any
		if err := dec.Decode(&d); err != nil {
			if err.Error() == "EOF" {
				return all
			}
			t.Fatalf("%s: %v", file, err)
		}
		if len(d) > 0 {
			all = append(all, d)
		}
	}
}

// check returns what the definition does not allow in a custom resource. Unknown fields are errors, because an API
// server drops them silently. It does not evaluate CEL rules; the API server of test/kube does.
func (all schemas) check(d map[string]any) []string {
	name := fmt.Sprintf("%v %v", d["apiVersion"], d["kind"])
	schema := all[name]
	if schema == nil {
		return []string{name + ": no definition"}
	}
	rest := maps.Clone(d)
	delete(rest, "apiVersion")
	delete(rest, "kind")
	delete(rest, "metadata") // checked by the API server
	if at(schema, "properties", "metadata") != nil {
		rest["metadata"] = map[string]any{}
	}
	return conform(schema, rest, fmt.Sprintf("%v/%v", d["kind"], at(d, "metadata", "name")), true)
}

// conform checks a value against a structural schema. With strict, unknown fields are errors.
func conform(schema map[string]any, v any, path string, strict bool) (faults []string) {
	fail := func(format string, args ...any) { faults = append(faults, path+": "+fmt.Sprintf(format, args...)) }
	for _, s := range list(schema["allOf"]) {
		faults = append(faults, conform(s, v, path, false)...)
	}
	for _, word := range []string{"anyOf", "oneOf"} {
		if any := list(schema[word]); len(any) > 0 {
			n := 0
			for _, s := range any {
				if len(conform(s, v, path, false)) == 0 {
					n++
				}
			}
			if n == 0 || word == "oneOf" && n > 1 {
				fail("fits %d of %s", n, word)
			}
		}
	}
	if not, ok := schema["not"].(map[string]any); ok && len(conform(not, v, path, false)) == 0 {
		fail("has a forbidden value")
	}
	if schema["x-kubernetes-int-or-string"] == true {
		if typeOf(v) != "integer" && typeOf(v) != "string" {
			fail("want an integer or a string")
		}
		return faults
	}
	if want, ok := schema["type"].(string); ok && want != typeOf(v) && (want != "number" || typeOf(v) != "integer") && (v != nil || schema["nullable"] != true) {
		fail("is of type %s, want %s", typeOf(v), want)
		return faults
	}
	if enum, ok := schema["enum"].([]any); ok && !slices.Contains(enum, v) {
		fail("%v is none of %v", v, enum)
	}
	switch x := v.(type) {
	case string:
		if p, ok := schema["pattern"].(string); ok && !regexp.MustCompile(p).MatchString(x) {
			fail("%q does not match %s", x, p)
		}
		faults = append(faults, within(schema, "Length", len(x), path)...)
	case int:
		if x < number(schema["minimum"], math.MinInt) || x > number(schema["maximum"], math.MaxInt) {
			fail("%d is out of bounds", x)
		}
	case []any:
		faults = append(faults, within(schema, "Items", len(x), path)...)
		if items, ok := schema["items"].(map[string]any); ok {
			for i, e := range x {
				faults = append(faults, conform(items, e, fmt.Sprintf("%s[%d]", path, i), strict)...)
			}
		}
	case map[string]any:
		faults = append(faults, conformFields(schema, x, path, strict)...)
	}
	return faults
}

func conformFields(schema, v map[string]any, path string, strict bool) (faults []string) {
	properties, _ := schema["properties"].(map[string]any)
	required, _ := schema["required"].([]any)
	for _, r := range required {
		name := r.(string)
		if _, ok := v[name]; !ok && at(properties, name, "default") == nil {
			faults = append(faults, path+": "+name+" is missing")
		}
	}
	open, others := schema["x-kubernetes-preserve-unknown-fields"] == true, schema["additionalProperties"]
	for name, x := range v {
		if s, ok := properties[name].(map[string]any); ok {
			faults = append(faults, conform(s, x, path+"."+name, strict)...)
		} else if s, ok := others.(map[string]any); ok {
			faults = append(faults, conform(s, x, path+"."+name, strict)...)
		} else if strict && !open && others != true {
			faults = append(faults, path+": unknown field "+name)
		}
	}
	return faults
}

// within checks n against minWhat and maxWhat.
func within(schema map[string]any, what string, n int, path string) []string {
	if n < number(schema["min"+what], 0) || n > number(schema["max"+what], math.MaxInt) {
		return []string{fmt.Sprintf("%s: %s is %d", path, what, n)}
	}
	return nil
}

func number(v any, otherwise int) int {
	switch x := v.(type) {
	case int:
		return x
	case float64:
		return int(x)
	}
	return otherwise
}

func list(v any) (all []map[string]any) {
	l, _ := v.([]any)
	for _, e := range l {
		if m, ok := e.(map[string]any); ok {
			all = append(all, m)
		}
	}
	return all
}

func typeOf(v any) string {
	switch v.(type) {
	case string:
		return "string"
	case bool:
		return "boolean"
	case int, int64, uint64:
		return "integer"
	case float64:
		return "number"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	}
	return "null"
}
