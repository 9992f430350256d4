package gateways

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// The rules of testBudget, for the members' environment.
const (
	budgetRoute    = "budget"
	budgetReserve  = 100
	budgetDefaults = `KEYWARD_RULE_DEFAULTS={"` + gatewayNamespace + "/" + budgetRoute + `": {"reserve": 100, "settle": "addend", "lapse": "release"}}`
)

// testBudget has a budget of tokens whose number is known when a response ends. Requests without hits reserve 100 tokens, and
// responses settle them.
func testBudget(t *testing.T, s *suite) {
	s.enforce(t, budgetRoute, policy{
		rules: []rule{{limit: 1000, unit: "Day", header: clientHeader, shared: true, requestCost: &cost{key: "none"}, responseCost: &cost{key: "tokens"}}},
		script: script(`function envoy_on_request(h)
  set(h, "none", 0)
end
function envoy_on_response(h)
  local tokens = h:headers():get("x-tokens")
  if tokens then -- a denied request has none: it would settle the hold of another
    set(h, "tokens", tonumber(tokens))
  end
end`),
	}, clientHeader, "probe", "x-tokens", "1")
	if a := s.send(t, budgetRoute, clientHeader, "alice", "x-tokens", "40"); a.status != http.StatusOK || a.number("x-ratelimit-remaining") != 900 {
		t.Errorf("a request that reserves 100 of 1000: status %d, %d remaining", a.status, a.number("x-ratelimit-remaining"))
	}
	s.awaitSpent(t, 40, "alice")
	open := closeGate()
	codes := make(chan int)
	var wait sync.WaitGroup
	for range 15 { // at the same time: 960 tokens are enough for 9
		wait.Go(func() {
			a, err := s.get(newClient(""), budgetRoute, clientHeader, "alice", "x-tokens", "50", gateHeader, "1")
			if err != nil {
				t.Error(err)
			}
			codes <- a.status
		})
	}
	denied := 0
	for range 6 {
		select {
		case code := <-codes:
			if code != http.StatusTooManyRequests {
				t.Errorf("status %d while others hold all tokens", code)
			}
			denied++
		case <-time.After(20 * time.Second):
			t.Errorf("%d requests were denied, want 6: the others wait for their responses", denied)
		}
	}
	open()
	for range 15 - denied {
		if code := <-codes; code != http.StatusOK {
			t.Errorf("status %d of a request that had reserved its tokens", code)
		}
	}
	wait.Wait()
	s.awaitSpent(t, 40+9*50, "alice")
}

// awaitSpent waits until a client of testBudget has spent this number of tokens, with nothing reserved.
func (s *suite) awaitSpent(t *testing.T, want uint64, tenant string) {
	t.Helper()
	ctx, cancel := timeout(t, 30*time.Second)
	defer cancel()
	domain, entries := s.gateway.counter(budgetRoute, tenant)
	if err := lab.Await(ctx, "the tokens spent", func(ctx context.Context) error {
		c, err := lab.CounterOf(ctx, s.cluster.members[0].ip+s.cluster.metrics, domain, entries...)
		if err == nil && c.Count != want {
			err = fmt.Errorf("%d tokens are spent or reserved, want %d", c.Count, want)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}
