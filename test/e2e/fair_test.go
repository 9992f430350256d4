package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/lab"
)

const fairRules = `domain: app
descriptors:
  - key: backend
    descriptors:
      - key: tenant
        rate_limit: {unit: second, requests_per_unit: 30}
        metadata: {keyward: {fair: {entry: tenant, weights: {gold: 2}}}}
`

// fairWindow is the window of fairRules.
const fairWindow = time.Second

// fairDemand holds the hits that the tenants ask for in each window. The limit is 30.
var fairDemand = map[string]int{"greedy": 300, "gold": 8, "silver": 6, "bronze": 3}

// TestFairTenants lets one tenant ask for ten times the limit that it shares with three modest ones, at three members.
// From the second window on, the modest tenants get all that they ask for, and the greedy one gets the rest.
func TestFairTenants(t *testing.T) {
	l := newLab(t, lab.Options{
		Rules: map[string]string{"app.yaml": fairRules}, Expect: 3, Args: []string{"--decision-timeout", "1s", "--decision-headers"},
	})
	f := newFleet(t, l, names(3)...)
	var clients []rlsv3.RateLimitServiceClient
	for _, s := range f.live {
		clients = append(clients, dial(t, s.RLS, nil))
	}
	d := &fairDrive{t: t, clients: clients}
	measured := 0
	for complete := 0; measured < 1 && d.windows < 12; {
		if got, ok := d.window(); !ok { // this machine was too slow: the requests fell into two windows
			complete = 0
		} else if complete++; complete > 1 {
			measured++
			want := map[string]int{"greedy": 13, "gold": 8, "silver": 6, "bronze": 3}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("the tenants have %v of 30, want %v", got, want)
			}
		}
	}
	if measured == 0 {
		t.Fatal("this machine could not ask for all hits within one window")
	}
	if d.reasons == 0 {
		t.Error("no denial states that hits were left to other tenants")
	}
	if n := f.sum("keyward_fair_refused_hits_total"); n == 0 {
		t.Error("no member counts hits that were left to other tenants")
	}
	d.checkTenants(f)
}

// fairDrive asks the members in turn.
type fairDrive struct {
	t       *testing.T
	clients []rlsv3.RateLimitServiceClient
	asked   int
	windows int
	reasons int // denials that were left to other tenants
}

// rounds is the number of rounds in a window. In each one, every tenant asks for its part of its demand.
const rounds = 15

// window asks for the demands of one window, evenly over most of it. It returns the admitted hits by tenant, and
// whether all requests fell into that window.
func (d *fairDrive) window() (got map[string]int, ok bool) {
	d.windows++
	begin := time.Now().Truncate(fairWindow).Add(fairWindow)
	got = map[string]int{}
	for i := range rounds {
		<-time.After(time.Until(begin.Add(time.Duration(i) * fairWindow * 4 / 5 / rounds)))
		for _, tenant := range []string{"gold", "silver", "bronze", "greedy"} {
			n := fairDemand[tenant]
			for range (i+1)*n/rounds - i*n/rounds {
				if d.ask(tenant) {
					got[tenant]++
				}
			}
		}
	}
	return got, time.Now().Before(begin.Add(fairWindow))
}

// ask asks for one hit of a tenant and reports whether it was admitted.
func (d *fairDrive) ask(tenant string) bool {
	d.asked++
	resp := ask(d.t, d.clients[d.asked%len(d.clients)], request("app", 1, "backend", "db", "tenant", tenant))
	for _, h := range resp.ResponseHeadersToAdd {
		if h.Key == "x-keyward-reason" && h.Value == "fair_share" {
			d.reasons++
		}
	}
	return resp.OverallCode == rlsv3.RateLimitResponse_OK
}

// checkTenants checks that the owner lists the tenants, by their names if the rule or the request names them.
func (d *fairDrive) checkTenants(f *fleet) {
	d.t.Helper()
	var listed []api.TenantStatus
	ctx, cancel := context.WithTimeout(d.t.Context(), 10*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "the owner to list four tenants", func(ctx context.Context) error {
		for tenant := range fairDemand { // so that no tenant is dropped meanwhile
			d.ask(tenant)
		}
		for _, s := range f.live {
			c, err := lab.CounterOf(ctx, s.Metrics, "app", "backend", "db", "tenant", "greedy")
			if err == nil && len(c.Tenants) == len(fairDemand) {
				listed = c.Tenants
				return nil
			}
		}
		return fmt.Errorf("no member lists %d tenants", len(fairDemand))
	}); err != nil {
		d.t.Fatal(err)
	}
	for tenant, weight := range map[string]uint32{"gold": 2, "greedy": 1} {
		if !slices.ContainsFunc(listed, func(s api.TenantStatus) bool { return s.Tenant == tenant && s.Weight == weight }) {
			d.t.Errorf("%s with weight %d is not among the tenants %+v", tenant, weight, listed)
		}
	}
}
