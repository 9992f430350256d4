package gateways

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
)

const (
	rulesFile    = "cases.yaml"
	defaultLimit = 1_000_000 // of routes without rules of their own
)

// The keys of descriptors.
const (
	routeKey  = "route"
	matchKey  = "header_match"
	clientKey = "user"
)

// apply implements gateway: the rules of all routes are one file of the chart's ConfigMap, and an HTTPProxy has the descriptors.
func (g *contour) apply(route string, p *policy) error {
	g.routes[route] = p
	var descriptors []any
	for i, r := range p.rules {
		descriptors = append(descriptors, object{"entries": contourEntries(route, i, r)})
	}
	httpRoute := object{"services": []any{object{"name": applicationName, "port": 80}}}
	if len(descriptors) > 0 {
		httpRoute["rateLimitPolicy"] = object{"global": object{"descriptors": descriptors}}
	}
	proxy := httpProxy(route)
	proxy["spec"] = object{"virtualhost": object{"fqdn": host(route)}, "routes": []any{httpRoute}}
	if err := errors.Join(g.writeRules(), g.kube.apply(proxy)); err != nil {
		return err
	}
	old := g.old
	g.old = ""
	if old == "" || old == route {
		return nil
	}
	return g.kube.remove(httpProxy(old))
}

func httpProxy(route string) object {
	return object{"apiVersion": "projectcontour.io/v1", "kind": "HTTPProxy", "metadata": object{"name": route, "namespace": gatewayNamespace}}
}

// forget implements gateway. The HTTPProxy remains until the next one exists: without any, Contour closes the listener.
func (g *contour) forget(route string) {
	if _, ok := g.routes[route]; ok {
		delete(g.routes, route)
		g.old = route
	}
}

// contourEntries returns the entries of the descriptor of a rule.
func contourEntries(route string, i int, r rule) []any {
	entries := []any{object{"genericKey": object{"key": routeKey, "value": route}}}
	var headers []any
	for _, name := range slices.Sorted(maps.Keys(r.exact)) {
		headers = append(headers, object{"name": name, "exact": r.exact[name]})
	}
	for _, m := range r.methods { // at most one in the cases
		headers = append(headers, object{"name": ":method", "exact": m})
	}
	if len(headers) > 0 {
		entries = append(entries, object{"requestHeaderValueMatch": object{"headers": headers, "value": matchValue(i), "expectMatch": true}})
	}
	if r.header != "" {
		entries = append(entries, object{"requestHeader": object{"headerName": r.header, "descriptorKey": clientKey}})
	}
	if r.cidr != "" { // Contour sends all addresses, and the clients of the cases are in the network
		entries = append(entries, object{"remoteAddress": object{}})
	}
	return entries
}

func matchValue(i int) string { return fmt.Sprintf("rule-%d", i) }

// contourLevels returns the keys of contourEntries below that of the route.
func contourLevels(i int, r rule) (all []level) {
	if len(r.exact)+len(r.methods) > 0 {
		all = append(all, level{matchKey, matchValue(i)})
	}
	if r.header != "" {
		all = append(all, level{clientKey, ""})
	}
	if r.cidr != "" {
		all = append(all, level{"remote_address", ""})
	}
	return all
}

// direct implements gateway.
func (g *contour) direct(bool) error { return errors.New("Contour calls any member") }

// testContourDefault sends requests for a route without descriptors: those of the tool's ContourConfiguration apply.
func testContourDefault(t *testing.T, s *suite) {
	if err := s.gateway.apply("default", &policy{}); err != nil {
		t.Fatal(err)
	}
	s.await(t, "default", defaultLimit, clientHeader, "alice")
}
