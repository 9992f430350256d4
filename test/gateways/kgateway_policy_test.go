package gateways

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"testing"
)

// apply implements gateway: a TrafficPolicy has the descriptors of an HTTPRoute.
func (g *kgateway) apply(route string, p *policy) error {
	g.routes[route] = p
	objects := []object{kgatewayRoute(route)}
	if len(p.rules) > 0 {
		objects = append(objects, kgatewayPolicy(route, p))
	}
	if err := errors.Join(g.writeRules(), g.kube.apply(objects...)); err != nil {
		return err
	}
	old := g.forgotten
	g.forgotten = ""
	if old == "" || old == route {
		return nil
	}
	return errors.Join(g.kube.remove(kgatewayPolicy(old, &policy{})), g.kube.remove(kgatewayRoute(old)))
}

// forget implements gateway. The objects remain until those of the next route exist.
func (g *kgateway) forget(route string) {
	if _, ok := g.routes[route]; ok {
		delete(g.routes, route)
		g.forgotten = route
	}
}

// kgatewayRoute returns the HTTPRoute of a route.
func kgatewayRoute(route string) object {
	return object{
		"apiVersion": gatewayAPI, "kind": "HTTPRoute", "metadata": object{"name": route, "namespace": gatewayNamespace},
		"spec": object{
			"parentRefs": []any{object{"name": kgatewayName, "namespace": kgatewayNamespace}}, "hostnames": []any{host(route)},
			"rules": []any{object{"backendRefs": []any{object{"name": applicationName, "port": 80}}}},
		},
	}
}

// kgatewayPolicy returns the TrafficPolicy of a route.
func kgatewayPolicy(route string, p *policy) object {
	var descriptors []any
	for i, r := range p.rules {
		next := object{"entries": kgatewayEntries(route, i, r)}
		if !slices.ContainsFunc(descriptors, func(d any) bool { return reflect.DeepEqual(d, next) }) { // rules for values of a header share one
			descriptors = append(descriptors, next)
		}
	}
	return object{
		"apiVersion": kgatewayAPI, "kind": "TrafficPolicy", "metadata": object{"name": route, "namespace": gatewayNamespace},
		"spec": object{
			"targetRefs": []any{object{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": route}},
			"rateLimit": object{"global": object{
				"extensionRef": object{"name": releaseName, "namespace": kgatewayNamespace}, "descriptors": descriptors,
			}},
		},
	}
}

// kgatewayEntries returns the entries of the descriptor of a rule.
func kgatewayEntries(route string, i int, r rule) []any {
	entries := []any{object{"type": "Generic", "generic": object{"key": routeKey, "value": route}}}
	for _, l := range kgatewayLevels(i, r) {
		if l.key == remoteAddressKey {
			entries = append(entries, object{"type": "RemoteAddress"})
		} else {
			entries = append(entries, object{"type": "Header", "header": l.key})
		}
	}
	return entries
}

const remoteAddressKey = "remote_address"

// kgatewayLevels returns the entries of a rule: the values of headers, below the headers' names. The rules select values, and
// kgateway sends all addresses.
func kgatewayLevels(_ int, r rule) (levels []level) {
	for _, name := range slices.Sorted(maps.Keys(r.exact)) {
		levels = append(levels, level{name, r.exact[name]})
	}
	for _, m := range r.methods { // at most one in the cases
		levels = append(levels, level{":method", m})
	}
	if r.header != "" {
		levels = append(levels, level{r.header, ""})
	}
	if r.cidr != "" {
		levels = append(levels, level{remoteAddressKey, ""})
	}
	return levels
}

// testKgatewayDefault sends requests for a route without a TrafficPolicy: that of the Gateway, which the tool prints, applies.
func testKgatewayDefault(t *testing.T, s *suite, g *kgateway) {
	if err := g.apply("default", &policy{}); err != nil {
		t.Fatal(err)
	}
	s.await(t, "default", defaultLimit, clientHeader, "alice")
}
