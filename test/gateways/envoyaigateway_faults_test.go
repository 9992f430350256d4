package gateways

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// mended is the message of a test that requires a fault of the gateway.
const mended = "the gateway's fault is mended: let the cases use it, and change docs/gateways/envoy-ai-gateway.md"

// bucketRule returns the specification of a QuotaPolicy with one rule for clients.
func bucketRule(model string, limit uint, selector object) object {
	rule := object{"quota": bucket(limit, "1d"), "clientSelectors": []any{selector}}
	return object{"perModelQuotas": []any{modelQuota(model, object{"bucketRules": []any{rule}})}}
}

// testStaleFault requires that a QuotaPolicy for a route that exists reaches the members but not Envoy: the controller writes the HTTPRoute
// without a change, which Envoy Gateway does not translate again. After an annotation it does.
func testStaleFault(t *testing.T, s *suite, g *aiGateway) {
	const route = "stale"
	g.forget(s.route)
	s.route = route
	if err := g.applyQuota(route, aiRoute(route)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := timeout(t, time.Minute)
	defer cancel()
	before, err := g.routeMeta(ctx, route)
	if err != nil {
		t.Fatal(err)
	}
	p := quotaPolicy(route, oneQuota(route, 600_001), route)
	g.setRoute(route, append(aiRoute(route), p)...)
	if err := errors.Join(g.write(), g.awaitAccepted([]object{p})); err != nil {
		t.Fatal(err)
	}
	if err := lab.Await(ctx, "the controller's update of the route", func(ctx context.Context) error {
		behind, err := s.cluster.behind(ctx, "requests_per_unit=600001")
		if err == nil && len(behind) > 0 {
			err = fmt.Errorf("%v lack the rule", behind)
		}
		_, log, _ := strings.Cut(g.controller.process.Tail(200_000), `QuotaPolicy change	{"route": "`+route+`"`)
		_, log, _ = strings.Cut(log, `updating HTTPRoute	{"namespace": "default", "name": "`+route+`"}`)
		if err == nil && !strings.Contains(log, "syncing Gateway") { // it follows the update
			err = errors.New("it is not in the log")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if after, err := g.routeMeta(ctx, route); err != nil || after != before {
		t.Fatalf("the update changed the HTTPRoute from %s to %s (%v): %s", before, after, err, mended)
	}
	if a, body := s.chat(t, g, route, completion{Model: route}, 1); a.status != http.StatusOK || a.limit() != "" {
		t.Errorf("status %d, limit %q: %s: %s", a.status, a.limit(), body, mended)
	}
	if err := g.touch(route); err != nil {
		t.Fatal(err)
	}
	s.await(t, route, 600_001)
}

// routeMeta returns what Envoy Gateway compares of a route's HTTPRoute.
func (g *aiGateway) routeMeta(ctx context.Context, route string) (string, error) {
	path, err := objectPath(httpRoute(route))
	if err != nil {
		return "", err
	}
	var o struct {
		Metadata struct {
			Generation          int
			Annotations, Labels map[string]string
		}
	}
	err = g.kube.get(ctx, path, &o)
	return fmt.Sprint(o.Metadata), err
}

// testDistinctFault requires that the gateway counts the tokens of all values of a Distinct header together, under the name of the rule:
// they count for no client's limit. Requests count for their client.
func testDistinctFault(t *testing.T, s *suite, g *aiGateway) {
	const key = "rule-0-" + clientHeader + "-match-0"
	all := append(aiEntries("distinct", "distinct"), key, key)
	alice := append(aiEntries("distinct", "distinct"), key, "alice")
	n := s.quota(t, g, tokenQuota{
		route: "distinct", entries: all, headers: []string{clientHeader, "probe"},
		spec: bucketRule("distinct", 1000, object{"headers": []any{object{"type": "Distinct", "name": clientHeader}}}),
	})
	s.spend(t, g, "distinct", 100, http.StatusOK, clientHeader, "alice")
	s.awaitCount(t, n+100, all...)
	if got, err := s.count(t.Context(), alice...); err != nil || got != 1 {
		t.Errorf("%d are counted for the client after a request of 100 tokens (%v): %s", got, err, mended)
	}
}

// testInvertedFault requires that the gateway counts the tokens of the clients that an inverted condition excludes, and not those of the
// others, whose requests it counts.
func testInvertedFault(t *testing.T, s *suite, g *aiGateway) {
	const key = "rule-0-x-tenant|bob-match-0"
	entries := append(aiEntries("inverted", "inverted"), key, key)
	header := object{"type": "Exact", "name": "x-tenant", "value": "bob", "invert": true}
	n := s.quota(t, g, tokenQuota{
		route: "inverted", entries: entries, headers: []string{"x-tenant", "bob"}, spec: bucketRule("inverted", 1000, object{"headers": []any{header}}),
	})
	defer func() {
		if t.Failed() {
			t.Log(mended)
		}
	}()
	s.spend(t, g, "inverted", 100, http.StatusOK, "x-tenant", "alice")
	s.awaitCount(t, n+1, entries...)
	s.spend(t, g, "inverted", 50, http.StatusOK, "x-tenant", "bob")
	s.awaitCount(t, n+1+50, entries...)
}

// testServiceFault requires that the gateway serves the rule of a quota for all models of a backend, and that its Envoy asks for none.
func testServiceFault(t *testing.T, s *suite, g *aiGateway) {
	spec := oneQuota("counted", 1000)
	spec["serviceQuota"] = object{"quota": bucket(2, "1d")}
	s.quota(t, g, tokenQuota{route: "service", models: []string{"counted", "other"}, spec: spec, entries: aiEntries("service", "counted"), hits: 1})
	if behind, err := s.cluster.behind(t.Context(), "default/service.model_name_override: unit=DAY requests_per_unit=2,"); err != nil || len(behind) > 0 {
		t.Errorf("%v lack the rule of the quota (%v)", behind, err)
	}
	for range 4 {
		if a, body := s.chat(t, g, "service", completion{Model: "other"}, 10); a.status != http.StatusOK {
			t.Fatalf("status %d: %s: %s", a.status, mended, body)
		}
	}
	if got, err := s.count(t.Context(), aiEntries("service", "other")...); err != nil || got != 0 {
		t.Errorf("%d are counted for a model without a quota of its own (%v): %s", got, err, mended)
	}
}

// testConditionsFault requires that the gateway applies a rule for addresses, methods, paths and parameters to all requests.
func testConditionsFault(t *testing.T, s *suite, g *aiGateway) {
	const key = "rule-0-match-0"
	entries := append(aiEntries("conditions", "conditions"), key, key)
	selector := object{
		"sourceCIDR": object{"type": "Exact", "value": "192.0.2.0/24"}, "methods": []any{object{"value": http.MethodDelete}},
		"path": object{"type": "Exact", "value": "/none"}, "queryParams": []any{object{"type": "Exact", "name": "none", "value": "none"}},
	}
	n := s.quota(t, g, tokenQuota{route: "conditions", entries: entries, hits: 1, spec: bucketRule("conditions", 100, selector)})
	s.spend(t, g, "conditions", 100-int(n)-1, http.StatusOK)
	s.awaitCount(t, 100, entries...)
	if a, _ := s.chat(t, g, "conditions", completion{Model: "conditions"}, 1); a.status != http.StatusTooManyRequests {
		t.Errorf("status %d of a request that the rule does not select: %s", a.status, mended)
	}
}

// testRoutingFault requires that the gateway sends requests to a backend whose quota is used up while another one has some left. The
// decision allows the request, because of the other one, and the gateway does not read which one it was.
func testRoutingFault(t *testing.T, s *suite, g *aiGateway) {
	const route, first, second = "fallback", "fallback-first", "fallback-second"
	g.forget(s.route)
	s.route = route
	resources := []object{
		aiBackend(first, "application"), aiBackend(second, "reserve"),
		aiGatewayRoute(route, aiRule(route, object{"name": first, "priority": 0}, object{"name": second, "priority": 1})),
	}
	if err := g.applyQuota(route, resources,
		quotaPolicy(first, oneQuota(route, 100), first), quotaPolicy(second, oneQuota(route, 100_000), second)); err != nil {
		t.Fatal(err)
	}
	n := s.awaitTokens(t, g, tokenQuota{route: route, entries: aiEntries(first, route), hits: 1})
	s.spend(t, g, route, 100-int(n)-1, http.StatusOK)
	s.awaitCount(t, 100, aiEntries(first, route)...)
	ctx, cancel := timeout(t, 30*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "the second policy", func(ctx context.Context) error {
		got, err := s.count(ctx, aiEntries(second, route)...)
		if err == nil && got == 0 {
			err = fmt.Errorf("no request is counted")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	a, body := s.chat(t, g, route, completion{Model: route}, 5)
	if a.status != http.StatusOK {
		t.Fatalf("status %d: %s", a.status, body)
	}
	if upstream := a.header.Get(upstreamHeader); upstream != "application" {
		t.Errorf("the upstream %q answered: %s", upstream, mended)
	}
}
