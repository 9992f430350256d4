package snippet

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bootstrap "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/common/matching/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/matcher/action/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/dynamic_modules/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/local_ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rate_limit_quota/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/common_inputs/network/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/http/dynamic_modules/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/input_matchers/dynamic_modules/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	yamlv3 "go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/keyward/keyward/envoy/xds"
	"github.com/keyward/keyward/internal/config"
)

var update = flag.Bool("update", false, "write the golden files")

func load(t testing.TB, yaml ...string) *config.Rules {
	t.Helper()
	var files []config.File
	for i, text := range yaml {
		files = append(files, config.File{Name: string(rune('a'+i)) + ".yaml", Content: []byte(text)})
	}
	r, err := config.Load(files, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

const (
	simple = `domain: app
descriptors:
- key: api_key
  rate_limit: {unit: hour, requests_per_unit: 100}
`
	rich = `domain: shop
descriptors:
- key: api_key
  rate_limit: {unit: hour, requests_per_unit: 100}
  descriptors:
  - key: path
    value: /login*
    rate_limit: {unit: minute, requests_per_unit: 5}
- key: session
  rate_limit: {unit: hour, requests_per_unit: 100}
- key: remote_address
  rate_limit: {unit: second, requests_per_unit: 20}
- key: generic_key
  value: all
  rate_limit: {unit: second, requests_per_unit: 10000}
`
	other = `domain: "it's: other"
descriptors:
- key: remote_address
  rate_limit: {unit: second, requests_per_unit: 20}
`
	tokens = `domain: llm
descriptors:
- key: tenant
  rate_limit: {unit: hour, requests_per_unit: 1000000}
  metadata: {keyward: {reserve: 4096}}
- key: tenant
  value: large
  rate_limit: {unit: hour, requests_per_unit: 5000000}
  metadata: {keyward: {reserve: 8192}}
- key: streams
  rate_limit: {unit: minute, requests_per_unit: 16}
  metadata: {keyward: {algorithm: in_flight, window: 10m}}
- key: remote_address
  rate_limit: {unit: second, requests_per_unit: 20}
`
	quotas = `domain: api
descriptors:
- key: api_key
  rate_limit: {unit: minute, requests_per_unit: 6000}
  metadata: {keyward: {mechanism: quota, degraded: fail_closed}}
- key: remote_address
  rate_limit: {unit: second, requests_per_unit: 20}
`
	hotQuotas = `domain: api
descriptors:
- key: api_key
  rate_limit: {unit: minute, requests_per_unit: 6000}
  metadata: {keyward: {hot_step: quota, degraded: fail_closed}}
- key: api_key
  value: small
  rate_limit: {unit: minute, requests_per_unit: 60}
- key: remote_address
  rate_limit: {unit: second, requests_per_unit: 20}
`
	manyQuotas = `domain: api
descriptors:
- key: api_key
  descriptors:
  - key: tenant
    rate_limit: {unit: minute, requests_per_unit: 6000}
    metadata: {keyward: {mechanism: quota, envoys: 30}}
  - key: tenant
    value: large
    rate_limit: {unit: minute, requests_per_unit: 60000}
    metadata: {keyward: {mechanism: quota, first: allow}}
- key: remote_address
  rate_limit: {unit: hour, requests_per_unit: 2000}
  metadata: {keyward: {mechanism: quota, envoys: 4}}
- key: generic_key
  value: "all's"
  rate_limit: {unit: hour, requests_per_unit: 100000}
  metadata: {keyward: {mechanism: quota, degraded: fail_open}}
`
	ownEnvoy = `static_resources:
  listeners:
  - filter_chains:
    - filters:
      - typed_config:
          route_config:
            virtual_hosts:
            - routes:
              - route:
                  cluster: app
                  rate_limits:
                  - actions:
                    - request_headers: {header_name: X-Api-Key, descriptor_key: api_key, skip_if_absent: true}
                    - request_headers: {header_name: ":path", descriptor_key: path}
                  - actions:
                    - genericKey: {descriptorValue: all}
              rateLimits:
              - actions:
                - remote_address: {}
                - header_value_match: {descriptor_value: bot, headers: [{name: user-agent, string_match: {contains: bot}}]}
---
other: document
`
)

// files are the paths of certificates for Envoy.
func withTLS(o Options) Options {
	o.TLSCert, o.TLSKey, o.TLSCA = "/etc/keyward/tls/tls.crt", "/etc/keyward/tls/tls.key", "/etc/keyward/tls/ca.crt"
	return o
}

// withTenant adds the sources of the rules tokens.
func withTenant(from map[string]string) map[string]string {
	all := maps.Clone(from)
	all["tenant"], all["streams"] = "header:x-tenant", "header:x-tenant"
	return all
}

// goldens are all shapes and parts, in plaintext and with mTLS.
func goldens(t testing.TB) map[string]Options {
	key := map[string]string{"api_key": "header:x-api-key"}
	all := map[string]string{"api_key": "header:x-api-key", "session": "header:x-session", "path": "header::path"}
	a, b, ip := load(t, simple), load(t, rich, other), load(t, other)
	tenant := map[string]string{"tenant": "header:x-tenant", "streams": "header:x-tenant", "api_key": "header:x-api-key"}
	members := []StaticMember{{"pod-a", "10.0.0.1:8082"}, {"pod-b", "[2001:db8::2]:8082"}}
	return map[string]Options{
		"owner-direct":          {Rules: a, From: key, XDS: "127.0.0.1:18000"},
		"owner-direct-tls":      withTLS(Options{Rules: a, From: key, XDS: "keyward-xds.prod.svc:18000", FailureModeDeny: true, EnvoyVersion: "1.40.0", XDSNames: []string{"keyward-xds.prod.svc", "spiffe://example.org/xds"}, Upstream: "app:8080", ADS: "sotw"}),
		"owner-direct-sds":      withTLS(Options{Rules: a, From: key, XDS: "127.0.0.1:18000", SDS: "/etc/keyward/sds", ServerNames: []string{"spiffe://example.org/keyward"}, Capacity: 100}),
		"owner-direct-rich":     {Rules: b, From: all, XDS: "127.0.0.1:18000"},
		"owner-direct-own":      {Rules: b, Envoy: []byte(ownEnvoy), From: map[string]string{"session": "query:session"}, XDS: "127.0.0.1:18000"},
		"owner-direct-members":  withTLS(Options{Rules: a, From: key, Members: members, ServerNames: []string{"spiffe://example.org/keyward"}}),
		"rlqs":                  {Shape: RLQS, Rules: load(t, quotas), From: tenant},
		"rlqs-hot":              {Shape: RLQS, Rules: load(t, hotQuotas), From: tenant, HotRoutes: true, XDS: "127.0.0.1:18000"},
		"rlqs-several":          {Shape: RLQS, Rules: load(t, manyQuotas), From: tenant, Part: partFilter},
		"module":                {Shape: Module, Rules: a, From: key, EnvoyVersion: "1.40.0"},
		"module-filter":         {Shape: Module, Rules: a, From: key, EnvoyVersion: "1.40.0", ModuleAs: ModuleFilter},
		"module-several":        {Shape: Module, Rules: load(t, rich, tokens), From: withTenant(all), Part: partFilter, EnvoyVersion: "1.38"},
		"routes":                {Shape: Routes, Rules: a, From: key, XDS: "127.0.0.1:18000"},
		"routes-tls":            withTLS(Options{Shape: Routes, RouteHeader: "x-user", XDS: "127.0.0.1:18000"}),
		"routes-address":        {Shape: Routes, Rules: ip, XDS: "127.0.0.1:18000"},
		"routes-members":        {Shape: Routes, Rules: a, From: map[string]string{"api_key": "query:key"}, Members: members},
		"owner-direct-hot":      withTLS(Options{Rules: load(t, rich, simple), From: all, XDS: "127.0.0.1:18000", HotRoutes: true}),
		"owner-direct-caps":     {Rules: b, From: all, XDS: "127.0.0.1:18000", Caps: true, CapKeys: 500},
		"routes-caps":           {Shape: Routes, Rules: a, From: key, XDS: "127.0.0.1:18000", Caps: true},
		"owner-direct-ecds":     withTLS(Options{Rules: b, From: all, XDS: "127.0.0.1:18000", HotECDS: true}),
		"owner-direct-address":  {Rules: ip, XDS: "127.0.0.1:18000", HotECDS: true, Caps: true},
		"plain-ecds":            {Shape: Plain, Rules: a, From: key, XDS: "127.0.0.1:18000", HotECDS: true},
		"routes-ecds":           {Shape: Routes, Rules: a, From: key, XDS: "127.0.0.1:18000", HotECDS: true},
		"part-filter-ecds":      {Part: partFilter, Rules: a, From: key, HotECDS: true},
		"part-filter-ecds-own":  {Part: partFilter, Rules: b, Envoy: []byte(ownEnvoy), HotECDS: true},
		"part-filter-caps":      {Part: partFilter, Rules: load(t, rich), Envoy: []byte(ownEnvoy), Caps: true},
		"routes-hot":            {Shape: Routes, RouteHeader: "x-user", XDS: "127.0.0.1:18000", HotRoutes: true},
		"plain-hot":             {Shape: Plain, Rules: a, From: key, Routed: true, HotRoutes: true},
		"part-filter-hot":       {Part: partFilter, Rules: load(t, rich), Envoy: []byte(ownEnvoy), HotRoutes: true},
		"plain":                 {Shape: Plain, Rules: a, From: key},
		"plain-delay":           {Shape: Plain, Rules: a, From: key, Delay: true},
		"owner-direct-delay":    {Rules: a, From: key, XDS: "127.0.0.1:18000", Delay: true, HotRoutes: true},
		"part-filter-delay":     {Part: partFilter, Rules: a, From: key, Delay: true},
		"plain-tls":             withTLS(Options{Shape: Plain, Rules: b, From: all, Sidecar: "ratelimit.prod.svc:8081", SidecarTLS: true, EnvoyVersion: "1.40"}),
		"part-filter":           {Part: partFilter, Rules: a, From: key},
		"part-filter-own":       {Part: partFilter, Rules: b, Envoy: []byte(ownEnvoy)},
		"part-filter-routes":    {Part: partFilter, Shape: Routes, Rules: a, From: key},
		"part-cluster-sds":      withTLS(Options{Part: partCluster, XDS: "127.0.0.1:18000", SDS: "/etc/keyward/sds"}),
		"part-cluster-routes":   {Part: partCluster, Shape: Routes, RouteHeader: "x-user", XDS: "127.0.0.1:18000"},
		"part-sds-client":       withTLS(Options{Part: partSDSClient, SDS: "/etc/keyward/sds"}),
		"part-sds-ca":           withTLS(Options{Part: partSDSCA, SDS: "/etc/keyward/sds"}),
		"owner-direct-holds":    {Rules: load(t, tokens), From: tenant, XDS: "127.0.0.1:18000", Reserve: "openai"},
		"plain-holds":           {Shape: Plain, Rules: load(t, tokens), From: tenant, Reserve: "metadata:my.tokens"},
		"part-filter-holds":     {Part: partFilter, Rules: load(t, tokens, simple), From: tenant, Caps: true},
		"part-cluster-of-plain": {Part: partCluster, Shape: Plain},
	}
}

// toJSON converts YAML to what protojson accepts.
func toJSON(t testing.TB, text []byte) []byte {
	t.Helper()
	var v any
	if err := yamlv3.Unmarshal(text, &v); err != nil {
		t.Fatalf("not YAML: %v\n%s", err, text)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// parse decodes a part as Envoy's message; unknown fields are errors.
func parse(t testing.TB, part Part, shape Shape, text []byte) proto.Message {
	t.Helper()
	b := toJSON(t, text)
	var m proto.Message
	switch {
	case part == partFilter && shape == Routes:
		m, b = &route.VirtualHost{}, wrap("routes", b)
	case part == partFilter:
		m, b = &hcm.HttpConnectionManager{}, wrap("http_filters", b)
	case part == partCluster:
		m, b = &bootstrap.Bootstrap_StaticResources{}, wrap("clusters", b)
	case part == partSDSClient || part == partSDSCA:
		m = &discovery.DiscoveryResponse{}
	default:
		m = &bootstrap.Bootstrap{}
	}
	if err := protojson.Unmarshal(b, m); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return m
}

func wrap(field string, list []byte) []byte {
	return append(append([]byte(`{"`+field+`":`), list...), '}')
}

func TestGolden(t *testing.T) {
	for name, o := range goldens(t) {
		text, warnings, err := Generate(o)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		m := parse(t, o.Part, o.Shape, text)
		if err := validateAll(m); err != nil && o.Part != partFilter { // which is only a piece of a message
			t.Errorf("%s: %v", name, err)
		}
		for n, line := range bytes.Split(text, []byte("\n")) {
			if len(bytes.TrimRight(line, " ")) != len(line) {
				t.Errorf("%s:%d ends in blanks", name, n+1)
			}
		}
		got := text
		for _, w := range warnings {
			got = append(got, "# warning: "+w+"\n"...)
		}
		file := filepath.Join("testdata", name+".yaml")
		if *update {
			if err := os.WriteFile(file, got, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s differs from its golden file (-update writes it):\n%s", file, got)
		}
	}
}

// validateAll checks a message and everything packed into it.
func validateAll(m proto.Message) error {
	if v, ok := m.(interface{ ValidateAll() error }); ok {
		if err := v.ValidateAll(); err != nil {
			return err
		}
	}
	var fault error
	each := func(v protoreflect.Value) bool {
		inner := v.Message().Interface()
		if a, ok := inner.(*anypb.Any); ok {
			if inner, fault = a.UnmarshalNew(); fault != nil {
				return false
			}
		}
		fault = validateAll(inner)
		return fault == nil
	}
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				if !each(v.List().Get(i)) {
					break
				}
			}
		case f.IsMap():
			if f.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool { return each(v) })
			}
		default:
			each(v)
		}
		return fault == nil
	})
	return fault
}

// TestClustersAreThoseOfXDS: a printed cluster equals the one from xDS, except for the source of members and secrets.
func TestClustersAreThoseOfXDS(t *testing.T) {
	names := []string{"spiffe://example.org/keyward", "keyward.prod.svc"}
	for what, c := range map[string]struct {
		o    Options
		want *cluster.Cluster
	}{
		"owners in the clear": {Options{}, (&xds.ServedState{}).OwnerDirect()},
		"owners":              {withTLS(Options{SDS: "/sds", ServerNames: names}), (&xds.ServedState{TLS: true, ServerNames: names}).OwnerDirect()},
		"owners, any name":    {withTLS(Options{Capacity: 100, Connect: 1e9}), (&xds.ServedState{TLS: true, Capacity: 100, Connect: 1e9}).OwnerDirect()},
		"pods":                {withTLS(Options{Shape: Routes, Capacity: 8192}), (&xds.ServedState{Capacity: 8192}).Routed()},
	} {
		c.o.Part, c.o.XDS = partCluster, "127.0.0.1:1"
		text, _, err := Generate(c.o)
		if err != nil {
			t.Fatal(err)
		}
		got := parse(t, partCluster, c.o.Shape, text).(*bootstrap.Bootstrap_StaticResources).GetClusters()
		if len(got) != 1 {
			t.Fatalf("%s: %d clusters", what, len(got))
		}
		c.want.EdsClusterConfig.ServiceName = ""
		dropSecretSources(t, got[0])
		unpack := protojson.MarshalOptions{Multiline: true}
		if g, w := canonicalJSON(t, unpack, got[0]), canonicalJSON(t, unpack, c.want); g != w {
			t.Errorf("%s:\n%s\nxDS says:\n%s", what, g, w)
		}
	}
}

func dropSecretSources(t testing.TB, c *cluster.Cluster) {
	t.Helper()
	if c.GetTransportSocket() == nil {
		return
	}
	var u tlsv3.UpstreamTlsContext
	if err := c.GetTransportSocket().GetTypedConfig().UnmarshalTo(&u); err != nil {
		t.Fatal(err)
	}
	u.CommonTlsContext.TlsCertificateSdsSecretConfigs[0].SdsConfig = nil
	u.CommonTlsContext.GetCombinedValidationContext().ValidationContextSdsSecretConfig.SdsConfig = nil
	if err := c.GetTransportSocket().GetTypedConfig().MarshalFrom(&u); err != nil {
		t.Fatal(err)
	}
}

func canonicalJSON(t testing.TB, o protojson.MarshalOptions, m proto.Message) string {
	t.Helper()
	b, err := o.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	b, err = json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestVersions: the output for an older Envoy contains nothing that it does not support, since it would reject all of
// it.
func TestVersions(t *testing.T) {
	o := Options{Rules: load(t, simple), From: map[string]string{"api_key": "header:x-api-key"}, XDS: "127.0.0.1:1"}
	for version, want := range map[string]bool{"": false, "1.36.4": false, "1.39.9": false, "1.40.0": true, "v1.41.0-dev": true, "1.40": true} {
		o.EnvoyVersion = version
		text, _, err := Generate(o)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(string(text), "enable_retry_after_header"); got != want {
			t.Errorf("envoy %s: Retry-After %v, want %v", version, got, want)
		}
	}
}
