package snippet

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bootstrap "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	yamlv3 "go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// ownPatch is a user's EnvoyFilter whose virtual host has rate_limits.
const ownPatch = `apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: limits, namespace: istio-ingress}
spec:
  configPatches:
  - applyTo: VIRTUAL_HOST
    match: {context: GATEWAY, routeConfiguration: {vhost: {name: "shop.example.com:80"}}}
    patch:
      operation: MERGE
      value:
        rate_limits:
        - actions:
          - {request_headers: {header_name: x-api-key, descriptor_key: api_key}}
`

// forGateways are the golden files of Generate for gateways. Tests in charts/ compare them with the gateways' own
// schemas.
func forGateways(t testing.TB) map[string]struct {
	gateway Gateway
	kube    Kube
	o       Options
} {
	all := map[string]string{"api_key": "header:x-api-key", "session": "header:session", "path": "header::path"}
	key := map[string]string{"api_key": "header:x-api-key"}
	type row = struct {
		gateway Gateway
		kube    Kube
		o       Options
	}
	return map[string]row{
		"for-istio":                {gatewayIstio, Kube{GatewayNamespace: "istio-ingress"}, Options{Rules: load(t, rich, other), From: all, FailureModeDeny: true}},
		"for-istio-plaintext":      {gatewayIstio, Kube{Plaintext: true, Selector: "istio=edge", Release: "limits", Namespace: "edge"}, Options{Rules: load(t, simple), From: key}},
		"for-istio-plain":          {gatewayIstio, Kube{}, Options{Shape: Plain, Rules: load(t, simple), From: key, EnvoyVersion: "1.40"}},
		"for-istio-own":            {gatewayIstio, Kube{}, Options{Rules: load(t, simple), Envoy: []byte(ownPatch)}},
		"for-istio-hot":            {gatewayIstio, Kube{}, Options{Rules: load(t, simple), From: key, HotECDS: true}},
		"for-istio-caps":           {gatewayIstio, Kube{}, Options{Shape: Plain, Rules: load(t, simple), From: key, Caps: true}},
		"for-envoy-gateway-hot":    {gatewayEnvoyGateway, Kube{Namespace: "envoy-gateway-system", Gateway: "eg", Listener: "default/eg/http"}, Options{From: map[string]string{"user": "header:x-user-id"}, HotECDS: true}},
		"for-envoy-gateway":        {gatewayEnvoyGateway, Kube{Namespace: "envoy-gateway-system", Gateway: "eg", Listener: "default/eg/http"}, Options{From: map[string]string{"user": "header:x-user-id"}}},
		"for-istio-rlqs":           {gatewayIstio, Kube{GatewayNamespace: "istio-ingress"}, Options{Shape: RLQS, Rules: load(t, quotas, other), From: all, EnvoyVersion: "1.40"}},
		"for-envoy-gateway-rlqs":   {gatewayEnvoyGateway, Kube{Gateway: "eg", GatewayNamespace: "default"}, Options{Shape: RLQS, Rules: load(t, quotas, other), From: all, EnvoyVersion: "1.40"}},
		"for-istio-module":         {gatewayIstio, Kube{GatewayNamespace: "istio-ingress"}, Options{Shape: Module, Rules: load(t, simple, other), From: all, EnvoyVersion: "1.40"}},
		"for-envoy-gateway-module": {gatewayEnvoyGateway, Kube{Namespace: "envoy-gateway-system", Gateway: "eg", GatewayNamespace: "default"}, Options{Shape: Module, Rules: load(t, simple, other), From: all, EnvoyVersion: "1.39"}},
		"for-contour":              {gatewayContour, Kube{Namespace: "projectcontour"}, Options{Rules: load(t, rich, other), From: all}},
		"for-kgateway":             {gatewayKGateway, Kube{Namespace: "kgateway-system", Gateway: "http"}, Options{Rules: load(t, rich, other), From: all}},
	}
}

func TestGatewayGolden(t *testing.T) {
	for name, c := range forGateways(t) {
		c.o.Gateway, c.o.Kube = c.gateway, c.kube
		text, warnings, err := Generate(c.o)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, w := range warnings {
			text = append(text, "# warning: "+w+"\n"...)
		}
		file := filepath.Join("testdata", name+".yaml")
		if *update {
			if err := os.WriteFile(file, text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(text, want) {
			t.Errorf("%s differs from its golden file (-update writes it):\n%s", file, text)
		}
		for n, line := range bytes.Split(text, []byte("\n")) {
			if len(bytes.TrimRight(line, " ")) != len(line) {
				t.Errorf("%s:%d ends in blanks", name, n+1)
			}
		}
		for _, d := range objects(t, text) {
			holdPatches(t, name, d)
		}
		if c.gateway == gatewayEnvoyGateway && bytes.Contains(text, []byte("enable_retry_after_header")) {
			t.Errorf("%s has a field of Envoy 1.40, which Envoy Gateway 1.9 refuses", name)
		}
	}
}

func objects(t *testing.T, text []byte) (all []map[string]any) {
	t.Helper()
	dec := yamlv3.NewDecoder(bytes.NewReader(text))
	for {
		var d map[string]any
		if err := dec.Decode(&d); err != nil {
			if err.Error() == "EOF" {
				return all
			}
			t.Fatalf("%v\n%s", err, text)
		}
		all = append(all, d)
	}
}

// holdPatches checks that Envoy's types accept what an object adds to Envoy's configuration.
func holdPatches(t *testing.T, name string, d map[string]any) {
	t.Helper()
	spec, _ := d["spec"].(map[string]any)
	hold := func(v any, m proto.Message) {
		t.Helper()
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := protojson.Unmarshal(b, m); err != nil {
			t.Errorf("%s: %v\n%s", name, err, b)
		} else if err := validateAll(m); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if d["kind"] == "ConfigMap" {
		var boot any
		if err := yamlv3.Unmarshal([]byte(d["data"].(map[string]any)["custom_bootstrap.json"].(string)), &boot); err != nil {
			t.Fatal(err)
		}
		hold(boot, &bootstrap.Bootstrap{})
	}
	patches, _ := spec["configPatches"].([]any)
	for _, p := range patches {
		p := p.(map[string]any)
		value := p["patch"].(map[string]any)["value"]
		switch p["applyTo"] {
		case "CLUSTER":
			hold(value, &cluster.Cluster{})
		case "HTTP_FILTER":
			hold(value, &hcm.HttpFilter{})
		case "VIRTUAL_HOST":
			value.(map[string]any)["name"], value.(map[string]any)["domains"] = "a", []any{"*"}
			hold(value, &route.VirtualHost{})
		default:
			t.Errorf("%s: a patch of %v", name, p["applyTo"])
		}
	}
	if b, ok := spec["bootstrap"].(map[string]any); ok {
		hold(b["jsonPatches"].([]any)[0].(map[string]any)["value"], &cluster.Cluster{})
	}
	if patches, _ := spec["jsonPatches"].([]any); len(patches) > 0 {
		hold(patches[0].(map[string]any)["operation"].(map[string]any)["value"], &cluster.Cluster{})
		for _, p := range patches[1:] {
			if value, ok := p.(map[string]any)["operation"].(map[string]any)["value"].(map[string]any); ok && value["name"] != nil {
				hold(value, &hcm.HttpFilter{})
			}
		}
	}
}

// TestGatewayFaults checks that unsupported options are errors.
func TestGatewayFaults(t *testing.T) {
	rules, key := load(t, simple), map[string]string{"api_key": "header:x-api-key"}
	for want, c := range map[string]struct {
		gateway Gateway
		kube    Kube
		o       Options
	}{
		"want envoy, istio":                           {"nginx", Kube{}, Options{Rules: rules, From: key}},
		"members forward":                             {gatewayContour, Kube{}, Options{Shape: OwnerDirect, Rules: rules, From: key}},
		"an Envoy of your own":                        {gatewayIstio, Kube{}, Options{Shape: Routes, Rules: rules, From: key}},
		"needs no resources":                          {gatewayEnvoyGateway, Kube{}, Options{Shape: Plain, From: key}},
		"one --from":                                  {gatewayEnvoyGateway, Kube{}, Options{}},
		"want KEY=VALUE":                              {gatewayIstio, Kube{Selector: "edge"}, Options{Rules: rules, From: key}},
		"must use this name, not api_key":             {gatewayKGateway, Kube{}, Options{Rules: rules, From: key}},
		"no rule is left":                             {gatewayContour, Kube{}, Options{Rules: rules, From: map[string]string{"api_key": "query:key"}}},
		"contour has no resource that adds a filter":  {gatewayContour, Kube{}, Options{Shape: RLQS, Rules: load(t, quotas), From: key}},
		"kgateway has no resource that adds a filter": {gatewayKGateway, Kube{}, Options{Shape: Module, Rules: rules, From: key}},
		"shape rlqs needs the rules":                  {gatewayEnvoyGateway, Kube{}, Options{Shape: RLQS, From: key}},
		"hot routes: the routes of these":             {gatewayIstio, Kube{}, Options{Shape: RLQS, Rules: load(t, hotQuotas), From: key, HotRoutes: true}},
		"contour has no resource":                     {gatewayContour, Kube{}, Options{Rules: rules, From: key, HotECDS: true}},
		"kgateway has no resource":                    {gatewayKGateway, Kube{}, Options{Rules: rules, From: map[string]string{"api_key": "header:api_key"}, Caps: true}},
		"envoy-gateway has no resource":               {gatewayEnvoyGateway, Kube{}, Options{From: key, Caps: true}},
		"no calls are left":                           {gatewayIstio, Kube{}, Options{Rules: rules}},
	} {
		c.o.Gateway, c.o.Kube = c.gateway, c.kube
		text, _, err := Generate(c.o)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v\n%s", want, err, text)
		}
	}
}
