package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/internal/lab"
)

const partitionRules = `domain: app
descriptors:
  - {key: default, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: share, rate_limit: {unit: year, requests_per_unit: 100}, metadata: {keyward: {partition: share}}}
  - {key: available, rate_limit: {unit: year, requests_per_unit: 100}, metadata: {keyward: {partition: available}}}
  - {key: quorum, rate_limit: {unit: year, requests_per_unit: 100}, metadata: {keyward: {partition: quorum}}}
  - {key: leased, rate_limit: {unit: year, requests_per_unit: 100}, metadata: {keyward: {partition: quorum, mechanism: lease, lease_min: 1}}}
`

// admittedOf asks c for n hits of a key, one at a time, and returns how many it admits.
func admittedOf(t *testing.T, c rlsv3.RateLimitServiceClient, n int, kv ...string) (admitted int) {
	t.Helper()
	for range n {
		if ask(t, c, request("app", 1, kv...)).OverallCode == rlsv3.RateLimitResponse_OK {
			admitted++
		}
	}
	return admitted
}

// TestPartitionByRule cuts a cluster in two, whose rules have policies of their own, and asks both parts for more than
// each limit.
func TestPartitionByRule(t *testing.T) {
	needsNamespaces(t)
	l := newLab(t, lab.Options{
		Rules: map[string]string{"app.yaml": partitionRules}, Expect: 5,
		Args: []string{"--detection", "1s", "--decision-timeout", "1s"},
	})
	network := newNetwork(t, l)
	members := names(5)
	f := networkFleet(t, l, network, members)
	// Each part is asked for a key that one of its members owns from the start. Of others, no member of the part may have
	// the count, and then they admit less.
	var values []string
	for i := range 100 {
		values = append(values, fmt.Sprintf("v%d", i))
	}
	valueOf := map[string]string{}
	for value, owner := range owners(t, l, members, values) {
		valueOf[owner] = value
	}
	near, far := valueOf[members[0]], valueOf[members[3]]
	if err := network.Cut(members[3:], members[:3]); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for i, s := range f.live {
		value := near
		if i >= 3 {
			value = far
		}
		if err := lab.Await(ctx, s.Name+" to decide for its part", func(ctx context.Context) error {
			c, err := lab.CounterOf(ctx, s.Metrics, "app", "default", value)
			if err == nil && c.Authority != "part" {
				err = fmt.Errorf("authority %q", c.Authority)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, part := range []struct {
		member int
		value  string
		want   map[string]int
	}{
		{0, near, map[string]int{"default": 60, "share": 60, "available": 100, "quorum": 100}},
		{3, far, map[string]int{"default": 40, "share": 40, "available": 100, "quorum": 0, "leased": 0}},
	} {
		c := dial(t, f.live[part.member].RLS, nil)
		for rule, want := range part.want {
			if got := admittedOf(t, c, 110, rule, part.value); got != want {
				t.Errorf("%s admits %d of rule %s, want %d", f.live[part.member].Name, got, rule, want)
			}
		}
	}
}

const choiceRules = `domain: app
descriptors:
  - key: static
    rate_limit: {unit: year, requests_per_unit: 30}
    metadata: {keyward: {mechanism: static}}
  - key: watermark
    rate_limit: {unit: year, requests_per_unit: 1000}
    metadata: {keyward: {mechanism: approximate, epsilon: 30%, low_watermark: 20%}}
  - key: caller
    rate_limit: {unit: year, requests_per_unit: 300}
    metadata: {keyward: {mechanism: approximate, epsilon: 30%, identity: {entry: caller, unknown: 0, anonymous: none}}}
`

// TestChoicesOfRules asks three members by rules that choose how they are decided.
func TestChoicesOfRules(t *testing.T) {
	l := newLab(t, lab.Options{
		Rules: map[string]string{"app.yaml": choiceRules}, Expect: 3, Args: []string{"--decision-timeout", "1s", "--no-hot"},
	})
	f := newFleet(t, l, names(3)...)
	var clients []rlsv3.RateLimitServiceClient
	for _, s := range f.live {
		clients = append(clients, dial(t, s.RLS, nil))
	}
	// inTurn asks the members in turn, and returns the admitted hits and the requests that owners got from others.
	inTurn := func(n int, kv ...string) (admitted int, forwarded float64) {
		before := f.sum("keyward_owner_requests_total")
		for i := range n {
			admitted += admittedOf(t, clients[i%len(clients)], 1, kv...)
		}
		return admitted, f.sum("keyward_owner_requests_total") - before
	}

	for i, c := range clients {
		if got := admittedOf(t, c, 20, "static", "x"); got != 10 {
			t.Errorf("%s admits %d of its third of 30", f.live[i].Name, got)
		}
	}
	if n := f.sum("keyward_authority_total", "authority", "static"); n != 60 {
		t.Errorf("%v decisions by static rules, want 60", n)
	}
	if n := f.sum("keyward_owner_requests_total"); n != 0 {
		t.Errorf("%v requests between members", n)
	}
	for _, s := range f.live { // no member has what the others have counted
		c, err := lab.CounterOf(t.Context(), s.Metrics, "app", "static", "x")
		if err != nil || c.Count != 20 || c.Remaining != 0 || c.Source != "this_member" || c.Authority != "static" || c.Owner != "" {
			t.Errorf("%s: %+v, %v", s.Name, c, err)
		}
	}
	// The members have started in this window: earlier boots may have admitted as much.
	if n := f.sum("keyward_overadmission_bound_by_cause", "cause", "share"); n != 30 {
		t.Errorf("the bound is %v, want 30", n)
	}

	admitted, forwarded := inTurn(1400, "watermark", "x")
	t.Logf("low_watermark: %d admitted, %v of 1400 requests forwarded", admitted, forwarded)
	// Without the watermark, the slack of 300 would be used up. A report that is late on a busy machine uses some of it.
	if admitted < 1000 || admitted > 1200 || forwarded < 50 || forwarded > 900 {
		t.Errorf("low_watermark: %d admitted, want about 1000; %v forwarded, want about 130", admitted, forwarded)
	}

	admitted, forwarded = inTurn(150, "caller", "alice")
	if admitted != 150 || forwarded > 50 {
		t.Errorf("a known caller: %d of 150 admitted, %v forwarded", admitted, forwarded)
	}
	admitted, forwarded = inTurn(150, "caller", "none")
	if admitted != 150 || forwarded != 100 {
		t.Errorf("an unknown caller: %d of 150 admitted, %v forwarded, want 100", admitted, forwarded)
	}
}
