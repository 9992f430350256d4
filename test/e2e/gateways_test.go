package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/keyward/keyward/envoy/snippet"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/lab"
)

// object is a mapping in YAML.
type object = map[string]any

// TestGatewayOwnerDirect puts what keyward envoy-config --for prints into a real Envoy's configuration, in the places where a gateway's control
// plane would put it, and holds that Envoy asks each key's owner. The gateways themselves do not run.
func TestGatewayOwnerDirect(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": longRules}, Expect: 3, Args: []string{"--retry-after"}}) // as the chart's presets
	members := names(3)
	start(t, l, members...)
	xds := startXDS(t, l, members)
	o := snippet.Options{
		From: map[string]string{"api_key": "header:x-api-key"}, XDS: xds.Addr, FailureModeDeny: true, Timeout: 5 * time.Second, Connect: 2 * time.Second, SDS: t.TempDir(), // see startXDS
		TLSCert: l.CertFile("envoy", ".crt"), TLSKey: l.CertFile("envoy", ".key"), TLSCA: l.CertFile("ca", ".crt"),
		XDSNames: []string{"spiffe://keyward.demo/xds"}, ServerNames: []string{"spiffe://keyward.demo/sidecar"},
	}
	writeSecrets(t, o)
	upstream := startUpstream(t).addr
	for gateway, place := range map[snippet.Gateway]func(*testing.T, snippet.Options) (clusters []any, filter object){
		"istio": istioPatches, "envoy-gateway": envoyGatewayPatches,
	} {
		for version, path := range map[string]string{"1.40.0": envoyBinary(t), "1.36.4": os.Getenv("ENVOY_1_36")} {
			if path == "" {
				continue
			}
			t.Run(string(gateway)+", Envoy "+version, func(t *testing.T) {
				clusters, filter := place(t, o)
				name := string(gateway) + "-" + version
				e := addEnvoy(t, l, lab.EnvoyOptions{Path: path, Name: name, Config: gatewayBootstrap(t, upstream, clusters, filter)}, "keyward", 3)
				phase(t, l, e, "keyward", members, distinctKeys(name, 1500))
				denied(t, e.Listener, name+"-denied")
			})
		}
	}
}

// writeSecrets writes the files that the chart's ConfigMap has.
func writeSecrets(t *testing.T, o snippet.Options) {
	t.Helper()
	for part, file := range map[snippet.Part]string{"sds-client": "keyward_client.yaml", "sds-ca": "keyward_ca.yaml"} {
		o.Part = part
		text, _, err := snippet.Generate(o)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(o.SDS, file), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// gatewayResource is an object of Kubernetes.
type gatewayResource struct {
	Spec object
	Data map[string]string // of a ConfigMap
}

// generated are the objects for a gateway.
func generated(t *testing.T, gateway snippet.Gateway, o snippet.Options) (all []gatewayResource) {
	t.Helper()
	o.Gateway = gateway
	text, _, err := snippet.Generate(o)
	if err != nil {
		t.Fatal(err)
	}
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		var d gatewayResource
		if err := yaml.Unmarshal([]byte(doc), &d); err != nil {
			t.Fatal(err)
		}
		all = append(all, d)
	}
	return all
}

func appRules(t *testing.T) *config.Rules {
	t.Helper()
	rules, err := config.Load([]config.File{{Name: "app.yaml", Content: []byte(longRules)}}, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// istioPatches are the values of the EnvoyFilters, and the clusters of the file for the bootstrap.
func istioPatches(t *testing.T, o snippet.Options) (clusters []any, filter object) {
	o.Rules = appRules(t)
	for _, d := range generated(t, "istio", o) {
		if text := d.Data["custom_bootstrap.json"]; text != "" {
			var boot object
			if err := yaml.Unmarshal([]byte(text), &boot); err != nil {
				t.Fatal(err)
			}
			clusters = append(clusters, boot["static_resources"].(object)["clusters"].([]any)...)
			continue
		}
		for _, p := range d.Spec["configPatches"].([]any) {
			value := p.(object)["patch"].(object)["value"].(object)
			switch p.(object)["applyTo"] {
			case "CLUSTER":
				clusters = append(clusters, value)
			case "HTTP_FILTER":
				filter = value
			}
		}
	}
	return clusters, filter
}

// envoyGatewayPatches are those of the EnvoyProxy and the EnvoyPatchPolicy, in a filter as Envoy Gateway makes it.
func envoyGatewayPatches(t *testing.T, o snippet.Options) (clusters []any, filter object) {
	specs := generated(t, "envoy-gateway", o)
	value := func(patch any, path ...string) any {
		for _, p := range path {
			patch = patch.(object)[p]
		}
		return patch
	}
	patches := specs[1].Spec["jsonPatches"].([]any)
	clusters = append(clusters, value(specs[0].Spec["bootstrap"].(object)["jsonPatches"].([]any)[0], "value"), value(patches[0], "operation", "value"))
	return clusters, object{"name": "envoy.filters.http.ratelimit", "typed_config": object{
		"@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit", "domain": "app", "failure_mode_deny": true,
		"timeout":            value(patches[2], "operation", "value"),
		"rate_limits":        []any{object{"actions": []any{object{"request_headers": object{"header_name": "x-api-key", "descriptor_key": "api_key"}}}}},
		"rate_limit_service": object{"transport_api_version": "V3", "grpc_service": value(patches[1], "operation", "value")},
	}}
}

// gatewayBootstrap is a gateway's Envoy with one route.
func gatewayBootstrap(t *testing.T, upstream string, clusters []any, filter object) string {
	t.Helper()
	text, _, err := snippet.Generate(snippet.Options{Shape: snippet.Plain, Rules: appRules(t), From: map[string]string{"api_key": "header:x-api-key"}, Upstream: upstream, Listen: "127.0.0.1:1", Admin: "127.0.0.1:2"})
	if err != nil {
		t.Fatal(err)
	}
	var boot object
	if err := yaml.Unmarshal(text, &boot); err != nil {
		t.Fatal(err)
	}
	resources := boot["static_resources"].(object)
	resources["clusters"] = append(resources["clusters"].([]any)[:1], clusters...)
	chain := resources["listeners"].([]any)[0].(object)["filter_chains"].([]any)[0].(object)
	hcm := chain["filters"].([]any)[0].(object)["typed_config"].(object)
	hcm["http_filters"] = []any{filter, hcm["http_filters"].([]any)[1]}
	boot["admin"] = object{"address": object{"socket_address": object{"address": "@ADMINHOST@", "port_value": 99991}}}
	resources["listeners"].([]any)[0].(object)["address"] = object{"socket_address": object{"address": "@HOST@", "port_value": 99992}}
	var b bytes.Buffer
	if err := yaml.NewEncoder(&b).Encode(boot); err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer("port_value: 99991", "port_value: @ADMINPORT@", "port_value: 99992", "port_value: @PORT@").Replace(b.String())
}
