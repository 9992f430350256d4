package gateways

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// aiBackend returns an AIServiceBackend of an upstream.
func aiBackend(name, upstream string) object {
	return resource(aiAPI, "AIServiceBackend", name, object{
		"schema": object{"name": "OpenAI"}, "backendRef": object{"group": "gateway.envoyproxy.io", "kind": "Backend", "name": upstream},
	})
}

// aiRoute returns a backend and a route of the same name, for a model of that name, or for these models.
func aiRoute(name string, models ...string) []object {
	if len(models) == 0 {
		models = []string{name}
	}
	var rules []any
	for _, model := range models {
		rules = append(rules, aiRule(model, object{"name": name}))
	}
	return []object{aiBackend(name, "application"), aiGatewayRoute(name, rules...)}
}

// aiRule returns a rule of a route, for a model at these backends.
func aiRule(model string, backends ...object) object {
	var refs []any
	for _, b := range backends {
		b["modelNameOverride"] = model
		refs = append(refs, b)
	}
	return object{
		"matches":     []any{object{"headers": []any{object{"type": "Exact", "name": "x-ai-eg-model", "value": model}}}},
		"backendRefs": refs,
	}
}

func aiGatewayRoute(name string, rules ...any) object {
	return resource(aiAPI, "AIGatewayRoute", name, object{
		"parentRefs": []any{object{"name": gatewayName, "kind": "Gateway", "group": "gateway.networking.k8s.io"}},
		"hostnames":  []any{host(name)}, "rules": rules,
	})
}

// quotaPolicy returns a QuotaPolicy for backends.
func quotaPolicy(name string, spec object, backends ...string) object {
	var targets []any
	for _, b := range backends {
		targets = append(targets, object{"group": "aigateway.envoyproxy.io", "kind": "AIServiceBackend", "name": b})
	}
	spec["targetRefs"] = targets
	return resource(quotaAPI, "QuotaPolicy", name, spec)
}

// modelQuota returns an item of perModelQuotas.
func modelQuota(model string, quota object) object {
	quota["mode"] = "Shared"
	return object{"modelName": model, "quota": quota}
}

func bucket(limit uint, duration string) object { return object{"limit": limit, "duration": duration} }

var aiDurations = map[string]string{"Second": "1s", "Minute": "1m", "Hour": "1h", "Day": "1d"}

// aiQuota returns the quota of a policy: a default bucket for one limit without conditions, otherwise rules.
func aiQuota(p *policy) object {
	if r := p.rules[0]; len(p.rules) == 1 && !r.shadow && len(aiHeaders(r)) == 0 {
		return object{"defaultBucket": bucket(r.limit, aiDurations[r.unit])}
	}
	var rules []any
	for _, r := range p.rules {
		rule := object{"quota": bucket(r.limit, aiDurations[r.unit])}
		if headers := aiHeaders(r); len(headers) > 0 {
			rule["clientSelectors"] = []any{object{"headers": headers}}
		}
		if r.shadow {
			rule["shadowMode"] = true
		}
		rules = append(rules, rule)
	}
	return object{"bucketRules": rules}
}

// aiHeaders returns the conditions of a rule. The gateway ignores conditions on methods, but not those on the header :method. All
// requests for completions are POSTs.
func aiHeaders(r rule) (headers []any) {
	if len(r.methods) > 0 {
		headers = append(headers, object{"type": "Exact", "name": ":method", "value": http.MethodPost})
	}
	for _, name := range slices.Sorted(maps.Keys(r.exact)) {
		headers = append(headers, object{"type": "Exact", "name": name, "value": r.exact[name]})
	}
	if r.header != "" {
		headers = append(headers, object{"type": "Distinct", "name": r.header})
	}
	return headers
}

// apply implements gateway.
func (g *aiGateway) apply(route string, p *policy) error {
	return g.applyQuota(route, aiRoute(route), quotaPolicy(route, object{"perModelQuotas": []any{modelQuota(route, aiQuota(p))}}, route))
}

// applyQuota applies the resources of a route, of which the last is an AIGatewayRoute, and its QuotaPolicies. A new route answers before
// the policies exist: until the processor has loaded it, requests fail, and the policies would count them. When the controller has
// accepted the policies, an annotation of its HTTPRoute makes Envoy Gateway ask it again: see testStaleFault.
func (g *aiGateway) applyQuota(route string, resources []object, policies ...object) error {
	last := resources[len(resources)-1]
	if _, ok := g.routes[route]; !ok && g.running {
		g.setRoute(route, resources...)
		if err := errors.Join(g.write(), g.awaitRoute(route, last)); err != nil {
			return err
		}
	}
	all := append(slices.Clone(resources), policies...)
	g.setRoute(route, all...)
	if err := g.write(); err != nil {
		return err
	}
	if g.running {
		if err := g.awaitAccepted(policies); err != nil {
			return err
		}
	}
	if !g.running { // it asks when it starts
		return nil
	}
	return g.touch(route)
}

// touch makes Envoy Gateway translate a route again.
func (g *aiGateway) touch(route string) error {
	g.revision++
	o := httpRoute(route)
	o["metadata"].(object)["annotations"] = object{revisionAnnotation: fmt.Sprint(g.revision)}
	return g.kube.apply(o)
}

// httpRoute returns the HTTPRoute that the controller makes of a route, without its content.
func httpRoute(route string) object {
	o := resource(gatewayAPI, "HTTPRoute", route, nil)
	delete(o, "spec")
	return o
}

// write applies the resources of all routes, and removes those of forgotten routes with what the controller has made of them, as
// Kubernetes' garbage collector does.
func (g *aiGateway) write() error {
	before := maps.Clone(g.applied)
	if err := g.envoyGatewayKube.write(); err != nil {
		return err
	}
	for path, o := range before {
		if _, ok := g.applied[path]; ok || o["kind"] != "AIGatewayRoute" {
			continue
		}
		name := o["metadata"].(object)["name"].(string)
		made := []object{httpRoute(name)}
		for _, filter := range []string{"ai-eg-host-rewrite-", "ai-eg-route-not-found-response-"} {
			made = append(made, resource(envoyAPI, "HTTPRouteFilter", filter+name, nil))
		}
		for _, m := range made {
			if err := g.kube.remove(m); err != nil && !errors.Is(err, errNotFound) {
				return err
			}
		}
	}
	return nil
}

// revisionAnnotation is one that Envoy Gateway copies from HTTPRoutes to the routes in Envoy.
const revisionAnnotation = "gateway.envoyproxy.io/quota-revision"

// awaitAccepted waits until the controller has accepted policies.
func (g *aiGateway) awaitAccepted(policies []object) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return lab.Await(ctx, "the policies' acceptance", func(ctx context.Context) error {
		for _, p := range policies {
			path, err := objectPath(p)
			if err != nil {
				return err
			}
			var o struct {
				Status struct {
					Conditions []struct{ Type, Message string }
				}
			}
			if err := g.kube.get(ctx, path, &o); err != nil {
				return err
			}
			if c := o.Status.Conditions; len(c) == 0 || c[0].Type != "Accepted" {
				return fmt.Errorf("%s: %v", path, c)
			}
		}
		return nil
	})
}

func (g *aiGateway) setRoute(route string, all ...object) {
	g.routes[route] = nil
	for _, o := range all {
		g.routes[route] = append(g.routes[route], o)
	}
}

// awaitRoute waits until a route answers for the model of its last rule.
func (g *aiGateway) awaitRoute(route string, o object) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	rules := o["spec"].(object)["rules"].([]any)
	model := rules[len(rules)-1].(object)["backendRefs"].([]any)[0].(object)["modelNameOverride"].(string)
	client := newClient("")
	return lab.Await(ctx, "the route "+route, func(context.Context) error {
		req, err := g.completion(completion{Model: model})
		if err != nil {
			return err
		}
		req.Host = host(route)
		res, err := client.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err == nil && res.StatusCode != http.StatusOK {
			err = fmt.Errorf("status %s: %s", res.Status, text)
		}
		return err
	})
}

// request implements requester: a request for the model with the name of the route.
func (g *aiGateway) request(route string) (*http.Request, error) {
	return g.completion(completion{Model: route})
}

// completion returns a request for chat completions.
func (g *aiGateway) completion(c completion) (*http.Request, error) {
	c.Messages = []chatMessage{{Role: "user", Content: "Say this is a test."}}
	if c.Stream {
		c.StreamOptions = &streamOptions{IncludeUsage: true}
	}
	body, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequest(http.MethodPost, "http://"+g.address()+"/v1/chat/completions", bytes.NewReader(body))
	if err == nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, err
}

// direct implements gateway.
func (g *aiGateway) direct(bool) error { return errors.New(g.lacks(ownerDirect)) }

// counter implements gateway.
func (g *aiGateway) counter(route, client string) (domain string, entries []string) {
	return quotaDomain, append(aiEntries(route, route), "rule-0-"+clientHeader+"-match-0", client)
}

// aiEntries returns the entries of the descriptor of a model of a backend.
func aiEntries(backend, model string) []string {
	return []string{"backend_name", gatewayNamespace + "/" + backend, "model_name_override", model}
}
