package gateways

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// testHeaders looks at the headers of responses below and above a limit.
func testHeaders(t *testing.T, s *suite) {
	counted := s.enforce(t, "headers", policy{rules: []rule{{limit: 4, unit: "Hour", header: clientHeader}}}, clientHeader, "probe")
	if counted != 1 {
		t.Fatalf("%d requests counted", counted)
	}
	for i := range 5 {
		a := s.send(t, "headers", clientHeader, "alice")
		if got, want := a.header.Get("x-ratelimit-limit"), "4, 4;w=3600"; got != want {
			t.Errorf("request %d: x-ratelimit-limit %q, want %q", i+1, got, want)
		}
		if got, want := a.number("x-ratelimit-remaining"), max(0, 3-i); got != want {
			t.Errorf("request %d: x-ratelimit-remaining %d, want %d", i+1, got, want)
		}
		if reset := a.number("x-ratelimit-reset"); reset < 0 || reset > 3600 {
			t.Errorf("request %d: x-ratelimit-reset %d, want at most an hour", i+1, reset)
		}
		retry := a.number("retry-after")
		if over := i == 4; over != (a.status == http.StatusTooManyRequests) || over != (retry >= 0) || retry > 3600 {
			t.Errorf("request %d: status %d with Retry-After %q", i+1, a.status, a.header.Get("retry-after"))
		}
	}
}

// testShadow has a limit that is counted and denies nothing.
func testShadow(t *testing.T, s *suite) {
	counted := s.enforce(t, "shadow", policy{rules: []rule{{limit: 3, unit: "Hour", shadow: true}}})
	codes := s.sendTimes(t, 5, "shadow")
	if slices.ContainsFunc(codes, func(c int) bool { return c != http.StatusOK }) {
		t.Errorf("status codes %v: a rule in shadow mode has denied requests", codes)
	}
	over, err := s.cluster.sum(t.Context(), "ratelimit_service_rate_limit_shadow_mode")
	if want := counted + 5 - 3; err != nil || int(over) != want {
		t.Errorf("members counted %v requests over limits in shadow mode, want %d (%v)", over, want, err)
	}
}

// unitSeconds are the windows of the units, as Envoy names them in headers.
var unitSeconds = map[string]int{"Second": 1, "Minute": 60, "Hour": 3600, "Day": 86400, "Week": 7 * 86400, "Month": 30 * 86400, "Year": 365 * 86400}

// testUnits has a rule for each unit that the gateway has.
func testUnits(t *testing.T, s *suite) {
	units := []string{"Hour", "Second", "Minute", "Day", "Week", "Month", "Year"}
	if s.gateway.lacks(longUnits) != "" {
		units, s.without = units[:4], string(longUnits)
	}
	var p policy
	for i, unit := range units {
		p.rules = append(p.rules, rule{limit: uint(i + 3), unit: unit, exact: map[string]string{"x-unit": unit}})
	}
	counted := map[string]int{"Hour": s.enforce(t, "units", p, "x-unit", "Hour")}
	for i, unit := range units {
		limit := i + 3
		a := s.send(t, "units", "x-unit", unit)
		if got, want := a.header.Get("x-ratelimit-limit"), fmt.Sprintf("%d, %d;w=%d", limit, limit, unitSeconds[unit]); got != want {
			t.Errorf("%s: x-ratelimit-limit %q, want %q", unit, got, want)
		}
		if unit == "Second" || unit == "Minute" {
			continue // the window may end before the limit is reached
		}
		for n := counted[unit] + 2; n <= limit+1; n++ {
			want := http.StatusOK
			if n > limit {
				want = http.StatusTooManyRequests
			}
			if got := s.send(t, "units", "x-unit", unit).status; got != want {
				t.Errorf("%s: request %d of %d: status %d", unit, n, limit, got)
			}
		}
	}
}

// testTenants gives each value of a header its own count.
func testTenants(t *testing.T, s *suite) {
	s.enforce(t, "tenants", policy{rules: []rule{{limit: 3, unit: "Day", header: clientHeader, methods: []string{"GET"}}}}, clientHeader, "probe")
	for _, tenant := range []string{"alice", "bob"} {
		if got := s.sendTimes(t, 4, "tenants", clientHeader, tenant); !slices.Equal(got, []int{200, 200, 200, 429}) {
			t.Errorf("%s: status codes %v", tenant, got)
		}
	}
	if got := s.sendTimes(t, 5, "tenants"); slices.Contains(got, 429) {
		t.Errorf("without the header: status codes %v", got)
	}
}

// testAddresses gives each client address its own count.
func testAddresses(t *testing.T, s *suite) {
	s.enforce(t, "addresses", policy{rules: []rule{{limit: 3, unit: "Day", cidr: "10.251.0.0/24"}}})
	for _, ip := range clients {
		client := newClient(ip)
		var got []int
		for range 4 {
			a, err := s.get(client, "addresses")
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, a.status)
		}
		if !slices.Equal(got, []int{200, 200, 200, 429}) {
			t.Errorf("%s: status codes %v", ip, got)
		}
	}
}

// testRequestCost takes the hits of a request from dynamic metadata.
func testRequestCost(t *testing.T, s *suite) {
	s.enforce(t, "cost", policy{
		rules: []rule{{limit: 10, unit: "Hour", header: clientHeader, requestCost: &cost{key: "cost"}}},
		script: script(`function envoy_on_request(h)
  set(h, "cost", tonumber(h:headers():get("x-cost") or "1"))
end`),
	}, clientHeader, "probe")
	got := s.sendTimes(t, 3, "cost", clientHeader, "alice", "x-cost", "4")
	if !slices.Equal(got, []int{200, 200, 429}) {
		t.Errorf("requests of 4 hits with a limit of 10: status codes %v", got)
	}
	if got := s.sendTimes(t, 2, "cost", clientHeader, "bob", "x-cost", "10"); !slices.Equal(got, []int{200, 429}) {
		t.Errorf("requests of 10 hits with a limit of 10: status codes %v", got)
	}
}

// testNumberCost has requests of three hits.
func testNumberCost(t *testing.T, s *suite) {
	s.enforce(t, "number", policy{rules: []rule{{limit: 7, unit: "Hour", header: clientHeader, requestCost: &cost{number: 3}}}}, clientHeader, "probe")
	if got := s.sendTimes(t, 3, "number", clientHeader, "alice"); !slices.Equal(got, []int{200, 200, 429}) {
		t.Errorf("requests of 3 hits with a limit of 7: status codes %v", got)
	}
}

// testLimitOfMetadata takes the limit of a request from dynamic metadata.
func testLimitOfMetadata(t *testing.T, s *suite) {
	s.enforce(t, "plans", policy{
		rules: []rule{{limit: 9, unit: "Hour", header: clientHeader, limitOf: "plan"}},
		script: script(`function envoy_on_request(h)
  if h:headers():get("x-plan") == "free" then
    set(h, "plan", {requests_per_unit = 2, unit = "DAY"})
  end
end`),
	}, clientHeader, "probe")
	if got := s.sendTimes(t, 3, "plans", clientHeader, "alice", "x-plan", "free"); !slices.Equal(got, []int{200, 200, 429}) {
		t.Errorf("a limit of 2 from metadata: status codes %v", got)
	}
	if a := s.send(t, "plans", clientHeader, "bob", "x-plan", "free"); !strings.HasPrefix(a.header.Get("x-ratelimit-limit"), "2, 2;w=86400") {
		t.Errorf("x-ratelimit-limit %q, want that of the metadata", a.header.Get("x-ratelimit-limit"))
	}
	if got := s.sendTimes(t, 4, "plans", clientHeader, "carol"); slices.Contains(got, 429) {
		t.Errorf("without metadata: status codes %v", got)
	}
}

// script returns Lua with a function set(handle, key, value), which sets dynamic metadata of the cases.
func script(text string) string {
	return `function set(h, key, value)
  h:streamInfo():dynamicMetadata():set("` + metadataNamespace + `", key, value)
end
` + text
}
