package gateways

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	luaFilter       = "envoy.filters.http.lua"
	rateLimitFilter = "envoy.filters.http.ratelimit"
)

// istioObject returns an object of Istio in the namespace of the gateway.
func istioObject(version, kind, name string, spec object) object {
	return object{"apiVersion": version, "kind": kind, "metadata": object{"name": name, "namespace": istioNamespace}, "spec": spec}
}

// istioFilter returns an EnvoyFilter with one patch for the gateway's pods.
func istioFilter(name string, patch object) object {
	return istioObject("networking.istio.io/v1alpha3", "EnvoyFilter", name, object{
		"workloadSelector": object{"labels": object{"istio": "ingressgateway"}}, "configPatches": []any{patch},
	})
}

// istioPatch returns the EnvoyFilter that adds to the virtual host of a route.
func istioPatch(route string, value object) object {
	return istioFilter(route, object{
		"applyTo": "VIRTUAL_HOST", "match": object{"context": "GATEWAY", "routeConfiguration": object{"vhost": object{"name": host(route) + ":" + istioPort}}},
		"patch": object{"operation": "MERGE", "value": value},
	})
}

// istioScripts returns the EnvoyFilter that adds the filter for the scripts of routes, in front of all others.
func istioScripts() object {
	return istioFilter("scripts", object{
		"applyTo": "HTTP_FILTER",
		"match":   object{"context": "GATEWAY", "listener": object{"filterChain": object{"filter": object{"name": "envoy.filters.network.http_connection_manager"}}}},
		"patch": object{"operation": "INSERT_FIRST", "value": object{
			"name": luaFilter, "typed_config": object{"@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua"},
		}},
	})
}

// printed returns the objects that Keyward's tool prints.
func (g *istio) printed() ([]object, error) {
	args := []string{g.source, "--selector", "istio=ingressgateway", "--connect-timeout", "2s"}
	if !g.owners {
		args = append(args, "--shape", "plain")
	}
	return g.tool("istio", args...)
}

// checkInjection requires that Istio adds a ConfigMap that an annotation names to the bootstrap of gateways.
func (g *istio) checkInjection() error {
	const template = "manifests/charts/istio-control/istio-discovery/files/gateway-injection-template.yaml"
	text, err := os.ReadFile(filepath.Join(g.module, template))
	if err != nil {
		return err
	}
	for _, want := range []string{"`sidecar.istio.io/bootstrapOverride`", "/etc/istio/custom-bootstrap/custom_bootstrap.json"} {
		if !strings.Contains(string(text), want) {
			return fmt.Errorf("%s lacks %s, by which gateways find the xDS server", template, want)
		}
	}
	return nil
}

// applyTool applies the objects of Keyward's tool.
func (g *istio) applyTool() error {
	objects, err := g.printed()
	if err != nil {
		return err
	}
	return g.applyNew(context.Background(), objects...)
}

// direct implements gateway. Envoy reads the address of the xDS server when it starts.
func (g *istio) direct(on bool) error {
	before, err := g.printed()
	if err != nil {
		return err
	}
	g.owners = on
	if err := g.applyTool(); err != nil {
		return err
	}
	if !on {
		for _, o := range before {
			if o["metadata"].(object)["name"] != releaseName { // the other shape has an EnvoyFilter of this name
				return g.kube.remove(o)
			}
		}
	}
	if err := g.data.stop(20 * time.Second); err != nil {
		return err
	}
	g.data, err = g.startEnvoy(context.Background(), g.host.Load().(string))
	return err
}

// apply implements gateway: a VirtualService is the route, and an EnvoyFilter adds the descriptors to its virtual host.
func (g *istio) apply(route string, p *policy) error {
	g.routes[route] = p
	var limits []any
	for i, r := range p.rules {
		limits = append(limits, istioLimits(route, i, r)...)
	}
	value, filters := object{}, object{}
	switch {
	case len(limits) == 0:
	case slices.ContainsFunc(p.rules, func(r rule) bool { return r.requestCost != nil }): // Envoy ignores costs in rate_limits of virtual hosts
		filters[rateLimitFilter] = object{"@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute", "rate_limits": limits}
	default: // and limits in those of the filter
		value["rate_limits"] = limits
	}
	if p.script != "" {
		filters[luaFilter] = object{
			"@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.LuaPerRoute", "source_code": object{"inline_string": p.script},
		}
	}
	value["typed_per_filter_config"] = filters
	objects := []object{istioPatch(route, value), istioService(route)}
	if err := errors.Join(g.writeRules(), g.kube.apply(objects...)); err != nil {
		return err
	}
	old := g.forgotten
	g.forgotten = ""
	if old == "" || old == route {
		return nil
	}
	return errors.Join(g.kube.remove(istioService(old)), g.kube.remove(istioPatch(old, nil)))
}

// istioService returns the VirtualService of a route.
func istioService(route string) object {
	destination := object{"host": applicationName + "." + gatewayNamespace + ".svc." + clusterDomain, "port": object{"number": 80}}
	return istioObject("networking.istio.io/v1", "VirtualService", route, object{
		"hosts": []any{host(route)}, "gateways": []any{gatewayName}, "http": []any{object{"route": []any{object{"destination": destination}}}},
	})
}

// forget implements gateway. The objects remain until those of the next route exist.
func (g *istio) forget(route string) {
	if _, ok := g.routes[route]; ok {
		delete(g.routes, route)
		g.forgotten = route
	}
}

// istioLimits returns the elements of rate_limits for a rule: that of requests, and that of responses if they have a cost.
func istioLimits(route string, i int, r rule) []any {
	out := object{"actions": istioActions(route, i, r)}
	if r.requestCost != nil {
		out["hits_addend"] = istioHits(*r.requestCost)
	}
	if r.limitOf != "" {
		out["limit"] = object{"dynamic_metadata": object{"metadata_key": object{"key": metadataNamespace, "path": []any{object{"key": r.limitOf}}}}}
	}
	if r.responseCost == nil {
		return []any{out}
	}
	return []any{out, object{"actions": istioActions(route, i, r), "hits_addend": istioHits(*r.responseCost), "apply_on_stream_done": true}}
}

func istioHits(c cost) object {
	if c.key == "" {
		return object{"number": c.number}
	}
	return object{"format": "%DYNAMIC_METADATA(" + metadataNamespace + ":" + c.key + ")%"}
}

// istioActions returns the actions of Envoy by which a request has the entries of a rule.
func istioActions(route string, i int, r rule) []any {
	actions := []any{object{"generic_key": object{"descriptor_key": routeKey, "descriptor_value": route}}}
	var headers []any
	match := func(name, value string) {
		headers = append(headers, object{"name": name, "string_match": object{"exact": value}})
	}
	for _, name := range slices.Sorted(maps.Keys(r.exact)) {
		match(name, r.exact[name])
	}
	for _, m := range r.methods { // at most one in the cases
		match(":method", m)
	}
	if len(headers) > 0 {
		actions = append(actions, object{"header_value_match": object{"descriptor_value": matchValue(i), "headers": headers}})
	}
	if r.header != "" {
		actions = append(actions, object{"request_headers": object{"header_name": r.header, "descriptor_key": clientKey}})
	}
	if r.cidr != "" {
		network := netip.MustParsePrefix(r.cidr)
		actions = append(actions, object{"remote_address_match": object{
			"descriptor_key": networkKey, "descriptor_value": r.cidr,
			"address_matcher": object{"ranges": []any{object{"address_prefix": network.Addr().String(), "prefix_len": network.Bits()}}},
		}}, object{"remote_address": object{}})
	}
	return actions
}

const networkKey = "network"

// istioLevels returns the entries of a rule.
func istioLevels(i int, r rule) (levels []level) {
	if len(r.exact)+len(r.methods) > 0 {
		levels = append(levels, level{matchKey, matchValue(i)})
	}
	if r.header != "" {
		levels = append(levels, level{clientKey, ""})
	}
	if r.cidr != "" {
		levels = append(levels, level{networkKey, r.cidr}, level{remoteAddressKey, ""})
	}
	return levels
}

// testIstioFilter sends requests for a route without descriptors of its own: those that the tool writes into the filter apply, in
// both shapes.
func testIstioFilter(t *testing.T, s *suite, g *istio) {
	for route := range maps.Clone(g.routes) {
		g.forget(route)
	}
	if err := g.apply("default", &policy{}); err != nil {
		t.Fatal(err)
	}
	if s.xds == nil {
		s.startXDS(t)
	}
	g.source = "--from=" + clientKey + "=header:" + clientHeader
	for _, owners := range []bool{false, true} {
		if err := g.direct(owners); err != nil {
			t.Fatal(err)
		}
		s.await(t, "default", defaultLimit, clientHeader, "alice")
	}
	s.awaitDirect(t, "default")
}
