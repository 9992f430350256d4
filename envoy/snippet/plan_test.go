package snippet

import (
	"fmt"
	"strings"
	"testing"

	bootstrap "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/keyward/keyward/envoy/internal/names"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/ring"
)

// filters returns the rate limit filters of a bootstrap.
func filters(t testing.TB, text []byte) []*ratelimit.RateLimit {
	t.Helper()
	b := parse(t, partBootstrap, OwnerDirect, text).(*bootstrap.Bootstrap)
	var manager hcm.HttpConnectionManager
	if err := b.GetStaticResources().GetListeners()[0].GetFilterChains()[0].GetFilters()[0].GetTypedConfig().UnmarshalTo(&manager); err != nil {
		t.Fatal(err)
	}
	var all []*ratelimit.RateLimit
	for _, f := range manager.GetHttpFilters() {
		var rl ratelimit.RateLimit
		if f.GetTypedConfig().UnmarshalTo(&rl) == nil {
			all = append(all, &rl)
		}
	}
	return all
}

// request is a client's request, by the places where Envoy can read values.
type request map[string]string // "header x", "query x", "remote_address"

// entries returns the descriptor that Envoy builds from actions, or nil if a value is missing.
func (q request) entries(actions []*route.RateLimit_Action) []config.Entry {
	var out []config.Entry
	for _, a := range actions {
		var e config.Entry
		var ok bool
		switch a := a.GetActionSpecifier().(type) {
		case *route.RateLimit_Action_RequestHeaders_:
			e.Key = a.RequestHeaders.GetDescriptorKey()
			e.Value, ok = q["header "+a.RequestHeaders.GetHeaderName()]
		case *route.RateLimit_Action_QueryParameters_:
			e.Key = a.QueryParameters.GetDescriptorKey()
			e.Value, ok = q["query "+a.QueryParameters.GetQueryParameterName()]
		case *route.RateLimit_Action_RemoteAddress_:
			e.Key = "remote_address"
			e.Value, ok = q["remote_address"]
		case *route.RateLimit_Action_GenericKey_:
			e.Key, e.Value, ok = a.GenericKey.GetDescriptorKey(), a.GenericKey.GetDescriptorValue(), true
			if e.Key == "" {
				e.Key = "generic_key"
			}
		}
		if !ok {
			return nil
		}
		out = append(out, e)
	}
	return out
}

// format evaluates a header's value as Envoy does, for the formats that the generator writes.
func (q request) format(text string) string {
	var out strings.Builder
	for text != "" {
		literal, rest, found := strings.Cut(text, "%")
		out.WriteString(literal)
		if !found {
			break
		}
		command, after, _ := strings.Cut(rest, "%")
		text = after
		name, args, _ := strings.Cut(strings.TrimSuffix(command, ")"), "(")
		switch name {
		case "":
			out.WriteByte('%')
		case "REQ":
			first, second, _ := strings.Cut(args, "?")
			if v, ok := q["header "+first]; ok {
				out.WriteString(v)
			} else {
				out.WriteString(q["header "+second])
			}
		case "QUERY_PARAM":
			out.WriteString(q["query "+args])
		case "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT":
			out.WriteString(q["remote_address"])
		default:
			panic("unknown command " + command)
		}
	}
	return out.String()
}

// TestEnvoyAsksTheOwner: for every call of a generated filter, the generated header hashes to the owner
// that the rules name, unless the generator has warned of it.
func TestEnvoyAsksTheOwner(t *testing.T) {
	from := map[string]string{"api_key": "header:x-api-key", "tenant": "header:x-tenant", "user": "query:user", "path": "header::path"}
	limit := "rate_limit: {unit: hour, requests_per_unit: 100}"
	cases := []struct {
		name, rules, key string
		forwarded        []string // rules that another member is asked about, and warned of
		header           string
	}{
		{"one key", "- key: api_key\n  " + limit, "", nil, "%REQ(x-api-key)%"},
		{"query", "- key: user\n  " + limit, "", nil, "%QUERY_PARAM(user)%"},
		{"address", "- key: remote_address\n  " + limit, "", nil, "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%"},
		{"nested", "- key: api_key\n  " + limit + "\n  descriptors:\n  - key: path\n    " + limit, "", nil, "%REQ(x-api-key)%"},
		{"variable within fixed", "- key: generic_key\n  value: v1\n  descriptors:\n  - key: api_key\n    " + limit, "", nil, "%REQ(x-api-key)%"},
		{"nothing varies", "- key: generic_key\n  value: 100%\n  " + limit, "", nil, "app|generic_key=100%%"},
		{"wildcard", "- key: path\n  value: /a*\n  " + limit, "", nil, "%REQ(:path)%"},
		{"shared wildcard", "- key: path\n  value: /a*\n  share_threshold: true\n  " + limit, "", nil, "/a*"},
		{"shard_by", "- key: api_key\n  descriptors:\n  - key: tenant\n    metadata: {keyward: {shard_by: tenant}}\n    " + limit, "", nil, "%REQ(x-tenant)%"},
		{"two of them", "- key: api_key\n  descriptors:\n  - key: tenant\n    metadata: {keyward: {shard_by: [tenant, api_key]}}\n    " + limit, "", nil, "%REQ(x-tenant)%|%REQ(x-api-key)%"},
		{"a fixed one with shard_by", "- key: api_key\n  " + limit + "\n- key: api_key\n  value: vip\n  metadata: {keyward: {shard_by: api_key}}\n  " + limit, "", nil, "%REQ(x-api-key)%"},
		{"a fixed one", "- key: api_key\n  " + limit + "\n- key: api_key\n  value: vip\n  " + limit, "", []string{"app.api_key_vip"}, "%REQ(x-api-key)%"},
		{"two headers", "- key: api_key\n  " + limit + "\n- key: tenant\n  " + limit, "", []string{"app.tenant"}, "%REQ(x-api-key?x-tenant)%"},
		{"two headers, the second asked for", "- key: api_key\n  " + limit + "\n- key: tenant\n  " + limit, "tenant", []string{"app.api_key"}, "%REQ(x-tenant?x-api-key)%"},
		{"three headers", "- key: api_key\n  " + limit + "\n- key: tenant\n  " + limit + "\n- key: path\n  " + limit, "", []string{"app.tenant", "app.path"}, "%REQ(x-api-key?x-tenant)%"},
		{"header and address", "- key: api_key\n  " + limit + "\n- key: remote_address\n  " + limit, "", []string{"app.remote_address"}, "%REQ(x-api-key)%"},
		{"what varies goes first", "- key: generic_key\n  value: all\n  " + limit + "\n- key: api_key\n  " + limit, "", []string{"app.generic_key_all"}, "%REQ(x-api-key)%"},
		{"also before what is shared", "- key: path\n  value: /a*\n  share_threshold: true\n  " + limit + "\n- key: api_key\n  " + limit, "", []string{"app.path_/a*"}, "%REQ(x-api-key)%"},
		{"no owner for an unlimited one", "- key: tenant\n  rate_limit: {unlimited: true}\n- key: api_key\n  " + limit, "", nil, "%REQ(x-api-key)%"},
	}
	values := []string{"alice", "vip", "", "/a/b", "/c", "100%", "\u00fc", "a|b"}
	for _, c := range cases {
		rules := load(t, "domain: app\ndescriptors:\n"+c.rules)
		text, warnings, err := Generate(Options{Rules: rules, From: from, Key: c.key, XDS: "127.0.0.1:1"})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		f := filters(t, text)
		if len(f) != 1 {
			t.Fatalf("%s: %d filters", c.name, len(f))
		}
		meta := f[0].GetRateLimitService().GetGrpcService().GetInitialMetadata()
		if len(meta) != 1 || meta[0].GetKey() != names.KeyHeader || meta[0].GetValue() != c.header {
			t.Errorf("%s: metadata %v, want %s", c.name, meta, c.header)
			continue
		}
		for _, w := range c.forwarded {
			if !strings.Contains(strings.Join(warnings, "\n")+"\n", w+" is ") {
				t.Errorf("%s: no warning of %s in %q", c.name, w, warnings)
			}
		}
		if len(c.forwarded) == 0 && len(warnings) > 0 {
			t.Errorf("%s: warnings %q", c.name, warnings)
		}
		asked := 0
		for i := range 1 << 12 {
			// Each place contains one of the values, or nothing.
			q, n := request{}, i
			for _, place := range []string{"header x-api-key", "header x-tenant", "query user", "header :path"} {
				if v := n % 8; v < len(values) && (n/8+v)%5 > 0 {
					q[place] = values[v]
				}
				n /= 8
			}
			q["remote_address"] = fmt.Sprintf("10.0.0.%d", i%7)
			header := q.format(c.header)
			for _, rl := range f[0].GetRateLimits() {
				entries := q.entries(rl.GetActions())
				var m config.Match
				if rules.Match("app", entries, nil, &m); m.Kind != config.Limited {
					continue
				}
				asked++
				named := false
				for _, w := range c.forwarded {
					named = named || w == m.Rule.FullKey
				}
				// Without a value no header is sent: the call goes to any member.
				if ring.Hash(header) != m.Owner && !named && header != "" {
					t.Fatalf("%s: %v asks %q about %v, whose owner is another: %s", c.name, q, header, entries, rules.AppendOwnerString(nil, "app", entries, &m))
				}
			}
		}
		if asked == 0 {
			t.Errorf("%s: nothing was asked", c.name)
		}
	}
}

func TestWarnings(t *testing.T) {
	limit := "rate_limit: {unit: hour, requests_per_unit: 100}"
	cases := []struct {
		name, rules string
		o           Options
		want        []string
	}{
		{"a key from nowhere", "- key: a\n  " + limit + "\n- key: remote_address\n  " + limit, Options{}, []string{"the source of a is unknown, so app.a is never applied: --from a=header:NAME"}},
		{"a constant", "- key: plan\n  value: pro\n  " + limit, Options{}, []string{"every call has plan=pro"}},
		{"a mask", "- key: masked_remote_address\n  " + limit, Options{From: map[string]string{"masked_remote_address": "masked_remote_address:24/64"}}, []string{"calls go to any member, which forwards"}},
		{"a key that places nothing", "- key: a\n  " + limit, Options{Key: "b", From: map[string]string{"a": "header:a"}}, []string{"no rule is placed by b"}},
		{"two places", "- key: a\n  " + limit, Options{Envoy: []byte("rate_limits: [{actions: [{request_headers: {header_name: a, descriptor_key: a}}]}, {actions: [{request_headers: {header_name: b, descriptor_key: a}}]}]")},
			[]string{"your Envoy takes a from several sources"}},
		{"what the own Envoy never says", "- key: generic_key\n  value: x\n  " + limit + "\n- key: generic_key\n  value: y\n  " + limit, Options{Envoy: []byte("rate_limits: [{actions: [{generic_key: {descriptor_value: y}}]}]")},
			[]string{"your Envoy never sends generic_key=x"}},
		{"routes by no header", "- key: generic_key\n  value: x\n  " + limit, Options{Shape: Routes}, []string{"do not determine which header places a request; using x-api-key"}},
		{"shard_by", "- key: a\n  " + limit + "\n- key: a\n  value: x\n  " + limit, Options{From: map[string]string{"a": "header:a"}}, []string{"(unless its metadata says keyward: {shard_by: a})"}},
	}
	for _, c := range cases {
		c.o.Rules, c.o.XDS = load(t, "domain: app\ndescriptors:\n"+c.rules), "127.0.0.1:1"
		_, warnings, err := Generate(c.o)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if len(warnings) != len(c.want) {
			t.Errorf("%s: %q, want %q", c.name, warnings, c.want)
			continue
		}
		for i, w := range c.want {
			if !strings.Contains(warnings[i], w) {
				t.Errorf("%s: %q, want %q", c.name, warnings[i], w)
			}
		}
	}
}

func TestFaultsAreSaidTogether(t *testing.T) {
	_, _, err := Generate(Options{
		Shape: "round", Part: "half", ADS: "rest", Listen: "x", Admin: "x:y", Upstream: ":99999", XDS: "host", Sidecar: "1", Timeout: 1, EnvoyVersion: "1.20",
		TLSCert: "a", Members: []StaticMember{{"", "1.1.1.1"}}, Capacity: 1, Envoy: []byte("{"),
		From: map[string]string{"a": "head:x", "b": "header:", "c": "query:%", "d": "metadata:x", "e": "value:", "f": "remote_address", "masked_remote_address": "masked_remote_address:33/1"},
	})
	if err == nil {
		t.Fatal("no fault")
	}
	for _, want := range []string{
		`shape "round"`, `part "half"`, `ads "rest"`, "listen address", "admin address", "upstream address", "xDS address", "sidecar address", "timeout 1ns",
		"the oldest that can do this is 1.36", "its key", "and the CA", "member : ", "capacity 1", "has no name", "your Envoy's configuration",
		"from a: ", "from b: ", "from c: ", "from d: ", "from e: ", "so the rules must use that key", "24/64",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not said", want)
		}
	}
	if strings.Contains(err.Error(), "\n\n") || strings.HasSuffix(err.Error(), "\n") {
		t.Errorf("empty lines in %q", err)
	}
	for what, o := range map[string]Options{
		"no calls are left":       {Rules: load(t, simple), XDS: "127.0.0.1:1"},
		"no rules":                {XDS: "127.0.0.1:1"},
		"no server and no member": {Rules: load(t, simple), From: map[string]string{"api_key": "header:x"}},
		"secrets without files":   {Part: partSDSClient},
	} {
		if text, _, err := Generate(o); err == nil {
			t.Errorf("%s: printed\n%s", what, text)
		}
	}
}

// FuzzGenerate: for any options, the output is YAML that Envoy's API accepts, or there is an error.
func FuzzGenerate(f *testing.F) {
	f.Add("api_key", "header:x-api-key", "app", "", "pod-a", "10.0.0.1:1", "/tls.crt")
	f.Add("a: {", "query:}\n", "- #", "x", "'", "[::1]:1", "\"")
	f.Add("k", "metadata:a:b", "%", "100%", "true", "host:1", "~")
	f.Add("k\n\"", "value:%REQ(x)%", "null", "*", "1", ":1", " ")
	f.Add("remote_address", "remote_address", "\u2028", "", "0x1", "[::]:1", "{")
	f.Add("generic_key", "value:#", "a\nb", "#", "~", "1.1.1.1:0", "\x00")
	f.Add("masked_remote_address", "masked_remote_address:24/64", "a", "", "~", "1.1.1.1:0", "*a")
	f.Fuzz(func(t *testing.T, key, from, domain, value, member, address, file string) {
		rules, err := config.Load([]config.File{{Name: "f", Content: []byte(
			"domain: " + quote(domain) + "\ndescriptors: [{key: " + quote(key) + ", value: " + quote(value) + ", rate_limit: {unit: hour, requests_per_unit: 1}}]\n")}}, config.Options{})
		if err != nil {
			return
		}
		o := Options{
			Rules: rules, From: map[string]string{key: from}, Members: []StaticMember{{ring.ID(member), address}}, Upstream: address,
			TLSCert: file, TLSKey: file, TLSCA: file, ServerNames: []string{member},
		}
		for _, shape := range []Shape{OwnerDirect, Routes, Plain} {
			o.Shape = shape
			if text, _, err := Generate(o); err == nil {
				parse(t, partBootstrap, shape, text)
			}
		}
	})
}

// FuzzOwnEnvoy: for any configuration of the user's Envoy, the output is YAML, and its keys are those of the rules.
func FuzzOwnEnvoy(f *testing.F) {
	f.Add(ownEnvoy)
	f.Add("rate_limits: [{actions: [{1: 2}, {generic_key: 3}, null, {remote_address: {a: 1}}]}]")
	f.Add("rate_limits: [{actions: [{extension: {typed_config: {descriptor_key: k}}}, {request_headers: {header_name: [x], descriptor_key: {}}}]}, 7]")
	f.Add("a: &a {rateLimits: [{actions: [{metadata: {descriptor_key: k, metadata_key: {key: n, path: [{key: p}, 1]}, source: ROUTE_ENTRY}}]}]}\nb: *a")
	f.Add("rate_limits: [{actions: [{request_headers: {header_name: \"x%\", descriptor_key: k}}]}]")
	rules := load(f, "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 1}}, {key: generic_key, value: all, rate_limit: {unit: hour, requests_per_unit: 1}}]")
	f.Fuzz(func(t *testing.T, own string) {
		for _, part := range []Part{partBootstrap, partFilter} {
			if text, _, err := Generate(Options{Part: part, Rules: rules, Envoy: []byte(own), XDS: "127.0.0.1:1"}); err == nil {
				toJSON(t, text)
			}
		}
	})
}
