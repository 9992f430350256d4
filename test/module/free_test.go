package module

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestRequestsWithoutLimitsAndWithCosts has an Envoy and a sidecar decide requests with a descriptor that takes several hits,
// one that no rule limits and one of an unlimited rule. They need no calls, and each hit is counted once.
func TestRequestsWithoutLimitsAndWithCosts(t *testing.T) {
	f := startFleetWith(t, newest, 1, "domain: app\ndescriptors:\n- key: api_key\n  rate_limit: {unit: hour, requests_per_unit: 1000000}\n- key: free\n  rate_limit: {unlimited: true}\n")
	p := f.pods[0]
	s := start(t, newest, setup{socket: p.socket, service: p.sidecar.RLS, limits: `[{"actions":[{"request_headers":{"header_name":"x-key","descriptor_key":"api_key"}}],"hits_addend":{"format":"%REQ(x-cost)%"}},
		{"actions":[{"generic_key":{"descriptor_key":"unknown","descriptor_value":"v"}}]}, {"actions":[{"generic_key":{"descriptor_key":"free","descriptor_value":"v"}}]}]`})
	calls := func() int {
		n, err := s.envoy.Stat(t.Context(), "cluster.app.ratelimit.ok")
		if err != nil {
			t.Fatal(err)
		}
		return int(n)
	}
	sent := 0
	awaitTrue(t, "requests without calls", func() bool {
		before := calls()
		admitted, _ := s.burst(2, 50, "x-key", "k", "x-cost", "3")
		s.want("admitted", admitted, 50)
		sent += 50
		return calls() == before
	})
	s.want("status without a cost", s.get("/", "x-key", "k"), http.StatusOK) // the filter leaves the descriptor out
	awaitTrue(t, "all hits in the statistics", func() bool {
		return strings.Contains(f.metrics("ratelimit_service_rate_limit_total_hits"), fmt.Sprintf(" %d\n", 3*sent))
	})
	if free := f.metrics("keyward_module_free_hits_total"); strings.HasSuffix(free, " 0\n") {
		t.Errorf("%s: nothing was spent without a charge", free)
	}
	t.Logf("%d calls for %d requests", calls(), sent)
}
