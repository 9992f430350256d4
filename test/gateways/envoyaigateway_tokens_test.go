package gateways

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// aiCases are those of Envoy AI Gateway alone: tokens that its processor reads from replies, and the gateway's faults.
var aiCases = []struct {
	name string
	run  func(*testing.T, *suite, *aiGateway)
}{
	{"rules of QuotaPolicies", testQuotaRules},
	{"policy before its route", testPolicyFirst},
	{"tokens of replies", testReplyTokens},
	{"tokens of models", testModelTokens},
	{"tokens of tenants", testTenantTokens},
	{"cost expressions", testCostExpression},
	{"quota edited", testQuotaEdited},
	{"tokens while members are replaced", testTokensRolled},
	{"the fault remains: policies of routes that exist", testStaleFault},
	{"the fault remains: tokens of distinct headers", testDistinctFault},
	{"the fault remains: inverted headers", testInvertedFault},
	{"the fault remains: quotas of services", testServiceFault},
	{"the fault remains: conditions other than headers", testConditionsFault},
	{"the fault remains: the backend with quota left", testRoutingFault},
}

// chat sends a request for completions that takes a number of tokens, and returns the response with its body.
func (s *suite) chat(t *testing.T, g *aiGateway, route string, c completion, tokens int, headers ...string) (answer, string) {
	t.Helper()
	req, err := g.completion(c)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host(route)
	req.Header.Set(tokensHeader, strconv.Itoa(tokens))
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{status: res.StatusCode, header: res.Header}, string(body)
}

// spend sends a request for the model of a route, and fails the test on another status.
func (s *suite) spend(t *testing.T, g *aiGateway, route string, tokens, status int, headers ...string) {
	t.Helper()
	if a, body := s.chat(t, g, route, completion{Model: route}, tokens, headers...); a.status != status {
		t.Fatalf("a request for %d tokens: status %d, want %d: %s", tokens, a.status, status, body)
	}
}

// count returns the counter of a descriptor.
func (s *suite) count(ctx context.Context, entries ...string) (uint64, error) {
	c, err := lab.CounterOf(ctx, s.cluster.members[0].ip+s.cluster.metrics, quotaDomain, entries...)
	return c.Count, err
}

// awaitCount waits until a counter has this value: Envoy reports the tokens of a reply after it has sent the reply.
func (s *suite) awaitCount(t *testing.T, want uint64, entries ...string) {
	t.Helper()
	ctx, cancel := timeout(t, 20*time.Second)
	defer cancel()
	var got uint64
	if err := lab.Await(ctx, "the count", func(ctx context.Context) (err error) {
		n, err := s.count(ctx, entries...)
		if err != nil {
			return err
		}
		if got = n; got != want {
			err = errors.New("it is another one")
		}
		return err
	}); err != nil {
		t.Fatalf("%v: %d are counted, want %d: %v", entries, got, want, err)
	}
}

// tokenQuota is a QuotaPolicy for a test.
type tokenQuota struct {
	route   string
	models  []string // of the route; its own name if there are none
	spec    object
	entries []string // of a descriptor that the tokens of requests for the first model count for
	headers []string // of these requests
	hits    uint64   // that each of these requests counts in addition to its tokens
}

// quota applies a route with a QuotaPolicy, and waits until it is in force and tokens are counted. It returns the count.
func (s *suite) quota(t *testing.T, g *aiGateway, q tokenQuota) uint64 {
	t.Helper()
	g.forget(s.route)
	s.route = q.route
	if err := g.applyQuota(q.route, aiRoute(q.route, q.models...), quotaPolicy(q.route, q.spec, q.route)); err != nil {
		t.Fatal(err)
	}
	return s.awaitTokens(t, g, q)
}

// awaitTokens waits until all members count the tokens of a request. It returns the count.
func (s *suite) awaitTokens(t *testing.T, g *aiGateway, q tokenQuota) (now uint64) {
	t.Helper()
	const tokens = 7
	c := completion{Model: append(q.models, q.route)[0]}
	ctx, cancel := timeout(t, time.Minute)
	defer cancel()
	last := ""
	if err := lab.Await(ctx, "tokens of the model "+c.Model, func(ctx context.Context) error {
		before, err := s.count(ctx, q.entries...)
		if err != nil {
			return err
		}
		if a, body := s.chat(t, g, q.route, c, tokens, q.headers...); a.status != http.StatusOK {
			last = fmt.Sprintf("status %d: %s", a.status, body)
			return errors.New(last)
		}
		for polls := 0; polls < 50; polls++ {
			if now, err = s.count(ctx, q.entries...); err != nil || now == before+q.hits+tokens {
				return err
			}
			pause(ctx, 20*time.Millisecond)
		}
		last = fmt.Sprintf("%d are counted after %d and a request of %d tokens", now, before, tokens)
		return errors.New(last)
	}); err != nil {
		t.Fatalf("%s: %v", last, err)
	}
	if err := lab.Await(ctx, "the same rules at all members", s.cluster.agree); err != nil {
		t.Fatal(err)
	}
	return now
}

// oneQuota returns the specification of a QuotaPolicy with a default bucket for one model.
func oneQuota(model string, limit uint) object {
	return object{"perModelQuotas": []any{modelQuota(model, object{"defaultBucket": bucket(limit, "1d")})}}
}

// testQuotaRules looks at the rules that the controller serves at its port for members.
func testQuotaRules(t *testing.T, s *suite, g *aiGateway) {
	p := policy{rules: []rule{{limit: 700_001, unit: "Day"}}}
	s.enforce(t, "served", p)
	ctx, cancel := timeout(t, 30*time.Second)
	defer cancel()
	want := quotaDomain + ".backend_name_default/served.model_name_override_served: unit=DAY requests_per_unit=700001, shadow_mode: false, quota_mode: true"
	behind, err := s.cluster.behind(ctx, want)
	if err != nil || len(behind) > 0 {
		rules, _ := s.cluster.rules(ctx)
		t.Fatalf("%v lack %q (%v): %v", behind, want, err, rules)
	}
	g.forget("served")
	if err := g.write(); err != nil {
		t.Fatal(err)
	}
	if err := lab.Await(ctx, "the end of the rule at all members", func(ctx context.Context) error {
		rules, err := s.cluster.rules(ctx)
		for name, text := range rules {
			if strings.Contains(text, "default/served") {
				return fmt.Errorf("%s has it", name)
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// testPolicyFirst has a route that is created after its policy. Its HTTPRoute needs no annotation.
func testPolicyFirst(t *testing.T, s *suite, g *aiGateway) {
	g.forget(s.route)
	s.route = "early"
	all := aiRoute(s.route)
	p := quotaPolicy(s.route, oneQuota(s.route, 600_002), s.route)
	g.setRoute(s.route, all[0], p)
	if err := errors.Join(g.write(), g.awaitAccepted([]object{p})); err != nil {
		t.Fatal(err)
	}
	g.setRoute(s.route, all[0], p, all[1])
	if err := g.write(); err != nil {
		t.Fatal(err)
	}
	s.await(t, s.route, 600_002)
}

// testReplyTokens uses up a limit of tokens: a request counts as one, and its tokens count when the reply ends.
func testReplyTokens(t *testing.T, s *suite, g *aiGateway) {
	const limit = 1000
	entries := aiEntries("tokens", "tokens")
	n := s.quota(t, g, tokenQuota{route: "tokens", spec: oneQuota("tokens", limit), entries: entries, hits: 1})
	s.spend(t, g, "tokens", 100, http.StatusOK)
	s.awaitCount(t, n+101, entries...)
	a, body := s.chat(t, g, "tokens", completion{Model: "tokens", Stream: true}, 200)
	if a.status != http.StatusOK || !strings.Contains(body, `"total_tokens": 200`) && !strings.Contains(body, `"total_tokens":200`) || !strings.HasSuffix(strings.TrimSpace(body), "[DONE]") {
		t.Fatalf("a stream of 200 tokens: status %d: %s", a.status, body)
	}
	n += 101 + 201
	s.awaitCount(t, n, entries...)
	if got, want := a.number("x-ratelimit-remaining"), limit-int(n)+200; got != want {
		t.Errorf("x-ratelimit-remaining %d, want %d: the reply began before its tokens were counted", got, want)
	}
	s.spend(t, g, "tokens", 900, http.StatusOK) // more than is left, which only the next request sees
	s.awaitCount(t, n+901, entries...)
	if a, body := s.chat(t, g, "tokens", completion{Model: "tokens"}, 1); a.status != http.StatusTooManyRequests || a.header.Get("retry-after") == "" {
		t.Errorf("after all tokens: status %d, Retry-After %q: %s", a.status, a.header.Get("retry-after"), body)
	}
}

// testModelTokens has two models of a backend, each with its own limit.
func testModelTokens(t *testing.T, s *suite, g *aiGateway) {
	small, large := completion{Model: "small"}, completion{Model: "large"}
	spec := object{"perModelQuotas": []any{
		modelQuota("small", object{"defaultBucket": bucket(500, "1h")}), modelQuota("large", object{"defaultBucket": bucket(5000, "1h")}),
	}}
	entries := aiEntries("models", "small")
	n := s.quota(t, g, tokenQuota{route: "models", models: []string{"small", "large"}, spec: spec, entries: entries, hits: 1})
	if a, body := s.chat(t, g, "models", small, 500-int(n)-1); a.status != http.StatusOK {
		t.Fatalf("status %d: %s", a.status, body)
	}
	s.awaitCount(t, 500, entries...)
	if a, body := s.chat(t, g, "models", small, 1); a.status != http.StatusTooManyRequests {
		t.Errorf("a model without tokens left: status %d: %s", a.status, body)
	}
	a, body := s.chat(t, g, "models", large, 1)
	if a.status != http.StatusOK || a.limit() != "5000" {
		t.Errorf("the other model: status %d with limit %q: %s", a.status, a.limit(), body)
	}
}

// testTenantTokens has a limit for each of two tenants, and a third for the others.
func testTenantTokens(t *testing.T, s *suite, g *aiGateway) {
	tenant := func(name string, limit uint) object {
		header := object{"type": "Exact", "name": "x-tenant", "value": name}
		return object{"quota": bucket(limit, "1h"), "clientSelectors": []any{object{"headers": []any{header}}}}
	}
	spec := object{"perModelQuotas": []any{modelQuota("tenants", object{"bucketRules": []any{tenant("alice", 300), tenant("bob", 400)}})}}
	entriesOf := func(i int, name string) []string {
		key := fmt.Sprintf("rule-%d-x-tenant|%s-match-0", i, name)
		return append(aiEntries("tenants", "tenants"), key, key)
	}
	alice, bob := entriesOf(0, "alice"), entriesOf(1, "bob")
	n := s.quota(t, g, tokenQuota{route: "tenants", spec: spec, entries: alice, headers: []string{"x-tenant", "alice"}, hits: 1})
	s.spend(t, g, "tenants", 300-int(n)-1, http.StatusOK, "x-tenant", "alice")
	s.awaitCount(t, 300, alice...)
	s.spend(t, g, "tenants", 1, http.StatusTooManyRequests, "x-tenant", "alice")
	s.spend(t, g, "tenants", 50, http.StatusOK, "x-tenant", "bob")
	s.awaitCount(t, 51, bob...)
	s.spend(t, g, "tenants", 50, http.StatusOK)
}

// testCostExpression counts output tokens ten times.
func testCostExpression(t *testing.T, s *suite, g *aiGateway) {
	entries := aiEntries("priced", "priced")
	spec := object{"perModelQuotas": []any{modelQuota("priced", object{
		"costExpression": "total_tokens == uint(7) ? total_tokens : input_tokens + uint(10) * output_tokens", "defaultBucket": bucket(10_000, "1h"),
	})}}
	n := s.quota(t, g, tokenQuota{route: "priced", spec: spec, entries: entries, hits: 1})
	s.spend(t, g, "priced", 100, http.StatusOK) // 25 input and 75 output tokens
	s.awaitCount(t, n+1+25+750, entries...)
}

// testQuotaEdited raises a limit that is used up. The count remains.
func testQuotaEdited(t *testing.T, s *suite, g *aiGateway) {
	entries := aiEntries("raised", "raised")
	n := s.quota(t, g, tokenQuota{route: "raised", spec: oneQuota("raised", 200), entries: entries, hits: 1})
	s.spend(t, g, "raised", 200-int(n)-1, http.StatusOK)
	s.awaitCount(t, 200, entries...)
	s.spend(t, g, "raised", 1, http.StatusTooManyRequests)
	begin := time.Now()
	if err := g.applyQuota("raised", aiRoute("raised"), quotaPolicy("raised", oneQuota("raised", 600), "raised")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := timeout(t, 30*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "the new limit", func(ctx context.Context) error {
		behind, err := s.cluster.behind(ctx, "requests_per_unit=600")
		if err == nil && len(behind) > 0 {
			err = fmt.Errorf("%v lack it", behind)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Logf("the new limit was in force at all members after %.2f s", time.Since(begin).Seconds())
	before, err := s.count(ctx, entries...)
	if err != nil {
		t.Fatal(err)
	}
	s.spend(t, g, "raised", 1, http.StatusOK)
	s.awaitCount(t, before+2, entries...)
}

// testTokensRolled replaces all members, one after the other, while requests of ten tenants take tokens: each token is counted once. No
// tenant is so busy that members lend parts of its limit, because a change of owner keeps lent hits charged.
func testTokensRolled(t *testing.T, s *suite, g *aiGateway) {
	const route = "rolled-tokens"
	var tenants []string
	var rules []any
	entries := map[string][]string{}
	for i := range 10 {
		tenant := fmt.Sprintf("tenant-%d", i)
		tenants = append(tenants, tenant)
		header := object{"type": "Exact", "name": clientHeader, "value": tenant}
		rules = append(rules, object{"quota": bucket(900_000_000, "1d"), "clientSelectors": []any{object{"headers": []any{header}}}})
		key := fmt.Sprintf("rule-%d-%s|%s-match-0", i, clientHeader, tenant)
		entries[tenant] = append(aiEntries(route, route), key, key)
	}
	spec := object{"perModelQuotas": []any{modelQuota(route, object{"bucketRules": rules})}}
	counted := map[string]uint64{}
	counted[tenants[0]] = s.quota(t, g, tokenQuota{route: route, spec: spec, entries: entries[tenants[0]], headers: []string{clientHeader, tenants[0]}, hits: 1})
	uncounted, err := g.stat(t.Context(), ".ratelimit.failure_mode_allowed")
	if err != nil {
		t.Fatal(err)
	}
	l := s.startLoad(route, 200, tenants, tokensHeader, "7")
	for _, m := range slices.Clone(s.cluster.members) {
		if _, err := s.cluster.add(); err != nil {
			t.Fatal(err)
		}
		if err := s.cluster.awaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.cluster.remove(m); err != nil {
			t.Error(err)
		}
	}
	sent, err := l.end()
	if err != nil {
		t.Error(err)
	}
	if ok := l.codes[http.StatusOK]; ok != sent {
		t.Errorf("status codes %v", l.codes)
	}
	for _, tenant := range tenants {
		s.awaitCount(t, counted[tenant]+uint64(l.admitted[tenant])*8, entries[tenant]...)
	}
	after, err := g.stat(t.Context(), ".ratelimit.failure_mode_allowed")
	if err != nil || after != uncounted {
		t.Errorf("%v requests were admitted because their calls failed (%v)", after-uncounted, err)
	}
	t.Logf("%d requests with 7 tokens each while 3 members were replaced: all counted", sent)
}
