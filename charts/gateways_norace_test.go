//go:build !race

package charts

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/keyward/keyward/internal/ops/inject"
)

// TestCustomResources validates the custom resources of every rendering against the projects' definitions.
func TestCustomResources(t *testing.T) {
	all := loadSchemas(t)
	seen := map[string]bool{}
	for name := range renderings {
		for _, d := range documents(t, name, read(t, filepath.Join("testdata", name+".yaml"))) {
			seen[fmt.Sprint(d["kind"])] = true
			if group, _, ok := strings.Cut(fmt.Sprint(d["apiVersion"]), "/"); ok && strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io") {
				for _, f := range all.check(d) {
					t.Errorf("%s: %s", name, f)
				}
			}
		}
	}
	for _, kind := range []string{"ExtensionService", "GatewayExtension", "Certificate", "Issuer", "PodMonitor", "ServiceMonitor"} {
		if !seen[kind] {
			t.Errorf("no rendering has a %s", kind)
		}
	}
	holdEnvoyGateway(t, all)
	rule := map[string]any{"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "spec": documents(t, "", read(t, "keyward/files/alerts.yml"))[0]}
	for _, f := range all.check(rule) {
		t.Error(f)
	}
}

// holdEnvoyGateway validates the values for Envoy Gateway's chart. Its configuration file has no definition, but its
// deployment has the same type as the Envoy deployment of an EnvoyProxy.
func holdEnvoyGateway(t *testing.T, all schemas) {
	t.Helper()
	for _, d := range documents(t, "", read(t, "testdata/preset-envoy-gateway.yaml")) {
		text, ok := at(d, "data", "values.yaml").(string)
		if !ok {
			continue
		}
		values := documents(t, "", []byte(text))[0]
		deployment, _ := at(values, "config", "envoyGateway", "provider", "kubernetes", "rateLimitDeployment").(map[string]any)
		proxy := map[string]any{
			"apiVersion": "gateway.envoyproxy.io/v1alpha1", "kind": "EnvoyProxy",
			"spec": map[string]any{"provider": map[string]any{"type": "Kubernetes", "kubernetes": map[string]any{"envoyDeployment": deployment}}},
		}
		if len(deployment) == 0 {
			t.Error("no rateLimitDeployment")
		}
		for _, f := range all.check(proxy) {
			t.Error(f)
		}
		return
	}
	t.Error("no values for Envoy Gateway")
}

// TestGatewayConfigs validates the output of keyward envoy-config --for against the gateways' definitions.
func TestGatewayConfigs(t *testing.T) {
	all := loadSchemas(t)
	files, _ := filepath.Glob("../envoy/snippet/testdata/for-*.yaml")
	if len(files) < 5 {
		t.Fatalf("%d files", len(files))
	}
	for _, f := range files {
		for _, d := range documents(t, f, read(t, f)) {
			if d["kind"] == "ConfigMap" { // not a custom resource; package snippet holds its content against Envoy's types
				continue
			}
			for _, fault := range all.check(d) {
				t.Errorf("%s: %s", f, fault)
			}
		}
	}
}

// TestInjectedEnvoyProxy validates an EnvoyProxy with the sidecar and the dynamic module against Envoy Gateway's definition.
func TestInjectedEnvoyProxy(t *testing.T) {
	all := loadSchemas(t)
	out, _, err := inject.Inject([]byte("{apiVersion: gateway.envoyproxy.io/v1alpha1, kind: EnvoyProxy, metadata: {name: eg, namespace: default}}"), inject.Options{
		Image: "ghcr.io/keyward/keyward:v0.1.0", TLS: true, Module: "1.39", ModuleImage: "ghcr.io/keyward/keyward-module:v0.1.0",
	})
	if err != nil {
		t.Fatal(err)
	}
	d := documents(t, "", out)[0]
	if len(list(at(d, "spec", "provider", "kubernetes", "envoyDeployment", "initContainers"))) != 2 {
		t.Errorf("the init containers are not those of the sidecar and the module:\n%s", out)
	}
	for _, fault := range all.check(d) {
		t.Error(fault)
	}
}

// TestPatchFinds requires that the filter patched for Envoy Gateway exists in a listener of Envoy Gateway's own tests.
func TestPatchFinds(t *testing.T) {
	dir := module(t, sources[0].module, sources[0].sum)
	var listeners any
	if err := yaml.Unmarshal(read(t, filepath.Join(dir, "internal/xds/translator/testdata/out/xds-ir/ratelimit.listeners.yaml")), &listeners); err != nil {
		t.Fatal(err)
	}
	var found []any
	var walk func(v any)
	walk = func(v any) {
		switch x := v.(type) {
		case []any:
			for _, e := range x {
				walk(e)
			}
		case map[string]any:
			for _, filter := range list(x["httpFilters"]) {
				if filter["name"] == "envoy.filters.http.ratelimit" {
					found = append(found, at(filter, "typedConfig", "rateLimitService", "grpcService"))
				}
			}
			for _, e := range x {
				walk(e)
			}
		}
	}
	walk(listeners)
	if len(found) == 0 || found[0] == nil {
		t.Fatalf("found %v", found)
	}
	for _, d := range documents(t, "", read(t, "../envoy/snippet/testdata/for-envoy-gateway.yaml")) {
		if d["kind"] != "EnvoyPatchPolicy" {
			continue
		}
		const path = "..http_filters[?(@.name=~'^envoy.filters.http.ratelimit(/|$)')].typed_config.rate_limit_service.grpc_service"
		if p := list(at(d, "spec", "jsonPatches"))[1]; at(p, "operation", "jsonPath") != path {
			t.Errorf("patches %v", at(p, "operation", "jsonPath"))
		}
	}
}

// TestConform requires that violations of a definition are found.
func TestConform(t *testing.T) {
	all := loadSchemas(t)
	extension := func(change func(spec map[string]any)) map[string]any {
		d := documents(t, "", []byte(`{apiVersion: projectcontour.io/v1alpha1, kind: ExtensionService, spec: {protocol: h2c, services: [{name: a, port: 8081}]}}`))[0]
		change(d["spec"].(map[string]any))
		return d
	}
	if f := all.check(extension(func(map[string]any) {})); len(f) > 0 {
		t.Error(f)
	}
	for what, change := range map[string]func(map[string]any){
		"unknown":  func(s map[string]any) { s["protokoll"] = "h2c" },
		"enum":     func(s map[string]any) { s["protocol"] = "http3" },
		"type":     func(s map[string]any) { s["services"] = "a" },
		"missing":  func(s map[string]any) { delete(s, "services") },
		"minItems": func(s map[string]any) { s["services"] = []any{} },
		"nested":   func(s map[string]any) { s["services"] = []any{map[string]any{"name": "a", "port": 0}} },
	} {
		if f := all.check(extension(change)); len(f) == 0 {
			t.Errorf("%s: found no fault", what)
		}
	}
}

// block matches a YAML example in a document.
var block = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// TestGatewayDocuments validates the objects in docs/gateways against the projects' definitions.
func TestGatewayDocuments(t *testing.T) {
	files, _ := filepath.Glob("../docs/gateways/*.md")
	all, n := loadSchemas(t), 0
	for _, f := range files {
		for _, m := range block.FindAllSubmatch(read(t, f), -1) {
			for _, d := range documents(t, f, m[1]) {
				group, _, ok := strings.Cut(fmt.Sprint(d["apiVersion"]), "/")
				if !ok || d["kind"] == "EnvoyGateway" || !strings.Contains(group, ".") {
					continue
				}
				n++
				for _, fault := range all.check(d) {
					t.Errorf("%s: %s", f, fault)
				}
			}
		}
	}
	for _, preset := range []string{"envoy", "envoy-gateway", "envoy-ai-gateway", "istio", "contour", "kgateway"} {
		if !slices.Contains(files, "../docs/gateways/"+preset+".md") {
			t.Errorf("no page about the preset %s", preset)
		}
	}
	if n < 5 {
		t.Errorf("%d custom resources in the pages", n)
	}
}
