package gateways

import (
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// apply implements gateway.
func (g *envoyGateway) apply(route string, p *policy) error {
	g.routes[route] = envoyGatewayRoute(route, p)
	return g.write()
}

// envoyGatewayRoute returns the resources of a route.
func envoyGatewayRoute(route string, p *policy) []any {
	rules := make([]any, len(p.rules))
	for i, r := range p.rules {
		rules[i] = envoyGatewayRule(r)
	}
	target := []any{object{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": route}}
	all := []any{
		resource(gatewayAPI, "HTTPRoute", route, object{
			"parentRefs": []any{object{"name": gatewayName}}, "hostnames": []any{host(route)},
			"rules": []any{object{
				"matches":     []any{object{"path": object{"type": "PathPrefix", "value": "/"}}},
				"backendRefs": []any{object{"group": "gateway.envoyproxy.io", "kind": "Backend", "name": "application"}},
			}},
		}),
	}
	if len(rules) > 0 {
		all = append(all, resource(envoyAPI, "BackendTrafficPolicy", route, object{
			"targetRefs": target, "rateLimit": object{"type": "Global", "global": object{"rules": rules}},
		}))
	}
	if p.script != "" {
		all = append(all, resource(envoyAPI, "EnvoyExtensionPolicy", route, object{
			"targetRefs": target, "lua": []any{object{"type": "Inline", "inline": p.script}},
		}))
	}
	return all
}

// forget implements gateway.
func (g *envoyGateway) forget(route string) { delete(g.routes, route) }

// write writes the resources of all routes, in one file: the control plane reads all files again at each change of one.
func (g *envoyGateway) write() error {
	var all []any
	for _, route := range slices.Sorted(maps.Keys(g.routes)) {
		all = append(all, g.routes[route]...)
	}
	return writeYAML(g.dir("res/routes.yaml"), all...)
}

// envoyGatewayRule returns a rule of a BackendTrafficPolicy.
func envoyGatewayRule(r rule) object {
	limit := object{"requests": r.limit, "unit": r.unit}
	if r.limitOf != "" {
		limit["fromMetadata"] = object{"namespace": metadataNamespace, "key": r.limitOf}
	}
	out := object{"limit": limit}
	if selector := envoyGatewaySelector(r); len(selector) > 0 {
		out["clientSelectors"] = []any{selector}
	}
	if r.shadow {
		out["shadowMode"] = true
	}
	if r.shared {
		out["shared"] = true
	}
	costs := object{}
	for name, c := range map[string]*cost{"request": r.requestCost, "response": r.responseCost} {
		switch {
		case c == nil:
		case c.key == "":
			costs[name] = object{"from": "Number", "number": c.number}
		default:
			costs[name] = object{"from": "Metadata", "metadata": object{"namespace": metadataNamespace, "key": c.key}}
		}
	}
	if len(costs) > 0 {
		out["cost"] = costs
	}
	return out
}

func envoyGatewaySelector(r rule) object {
	selector := object{}
	var headers []any
	if r.header != "" {
		headers = append(headers, object{"type": "Distinct", "name": r.header})
	}
	for name, value := range r.exact {
		headers = append(headers, object{"type": "Exact", "name": name, "value": value})
	}
	if len(headers) > 0 {
		selector["headers"] = headers
	}
	if r.cidr != "" {
		selector["sourceCIDR"] = object{"type": "Distinct", "value": r.cidr}
	}
	if len(r.methods) > 0 {
		var methods []any
		for _, m := range r.methods {
			methods = append(methods, object{"value": m})
		}
		selector["methods"] = methods
	}
	return selector
}

// generate sets the resources that Keyward's tool prints for calls to owners.
func (g *envoyGateway) generate() error {
	text, err := exec.Command(filepath.Join(programs, "keyward"), "envoy-config", "--for", g.name(), "--from", "user=header:"+clientHeader,
		"--timeout", callTimeout, "--connect-timeout", "2s", "--namespace", namespace, "--gateway", gatewayName, "--gateway-namespace", gatewayNamespace).Output()
	if err != nil {
		return fmt.Errorf("keyward envoy-config: %w", err)
	}
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		var o object
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			return err
		}
		switch o["kind"] {
		case "EnvoyProxy":
			g.envoyProxy = o
		case "EnvoyPatchPolicy":
			g.patchPolicy = o
		}
	}
	return nil
}

// direct implements gateway.
func (g *envoyGateway) direct(on bool) error {
	g.setDirect(on)
	return g.write()
}

func (g *envoyGateway) setDirect(on bool) {
	const key = " calls to owners"
	delete(g.routes, key)
	if on {
		g.routes[key] = []any{g.patchPolicy}
	}
}

// counter implements gateway.
func (g *envoyGateway) counter(route, client string) (domain string, entries []string) {
	domain = gatewayNamespace + "/" + route
	rule := domain + "/rule/0"
	return domain, []string{rule, rule, "rule-0-match-0", client}
}

// testNumberPanics requires that the control plane still has the fault of lacks(numberCost).
func testNumberPanics(t *testing.T, g *envoyGateway) {
	p := policy{rules: []rule{{limit: 7, unit: "Hour", requestCost: &cost{number: 3}}}}
	if err := g.apply("number", &p); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := timeout(t, 30*time.Second)
	defer cancel()
	select {
	case <-g.pod.process.Exited():
	case <-ctx.Done():
		t.Fatal("it runs on: its fault is mended, so let the cases use it")
	}
	if log := g.pod.process.Tail(200_000); !strings.Contains(log, "panic: unsupported type: uint64") {
		t.Errorf("it ended for another reason:\n%s", log)
	}
}
