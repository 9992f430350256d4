package snippet

import (
	"strings"
	"testing"
)

// TestQuotaFaults checks that shape rlqs names everything that it cannot express.
func TestQuotaFaults(t *testing.T) {
	from := map[string]string{"api_key": "header:x-api-key", "tenant": "metadata:jwt:tenant"}
	for name, c := range map[string]struct {
		o    Options
		want string
	}{
		"no rules":   {Options{}, "needs the rules"},
		"no quota":   {Options{Rules: load(t, simple), From: from}, "no rule has metadata.keyward: {mechanism: quota}"},
		"no source":  {Options{Rules: load(t, quotas)}, "the source of api_key is unknown, so api.api_key is never applied"},
		"metadata":   {Options{Rules: load(t, manyQuotas), From: from}, "a bucket of api.api_key.tenant cannot have tenant"},
		"routed":     {Options{Rules: load(t, quotas), From: from, Routed: true}, "shape rlqs has no --hot-filters"},
		"hot routes": {Options{Rules: load(t, hotQuotas), From: from, HotRoutes: true}, "need the address of an xDS server"},
		"hot alone":  {Options{Rules: load(t, hotQuotas), From: from}, "{hot_step: quota} with --hot-routes"},
	} {
		c.o.Shape = RLQS
		if _, _, err := Generate(c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, not %q", name, err, c.want)
		}
	}
}

// TestQuotasAreCountedOnce checks that the hits of a rule are taken by a quota filter or by calls, not by both.
func TestQuotasAreCountedOnce(t *testing.T) {
	from := map[string]string{"api_key": "header:x-api-key"}
	for shape, want := range map[Shape][2]int{RLQS: {1, 0}, Plain: {0, 1}} {
		text, warnings, err := Generate(Options{Shape: shape, Rules: load(t, quotas), From: from})
		if err != nil {
			t.Fatal(err)
		}
		filters := strings.Count(string(text), "RateLimitQuotaFilterConfig\n")
		calls := strings.Count(string(text), "descriptor_key: api_key")
		if got := [2]int{filters, calls}; got != want {
			t.Errorf("%s: %v filters and calls, not %v", shape, got, want)
		}
		if warned := strings.Contains(strings.Join(warnings, "\n"), "work in progress"); warned != (shape == RLQS) {
			t.Errorf("%s: %q", shape, warnings)
		}
	}
}

// TestHotQuotas checks that each descriptor is in one filter for calls, and that the route of a hot key can replace it.
func TestHotQuotas(t *testing.T) {
	text, warnings, err := Generate(Options{
		Shape: RLQS, Rules: load(t, hotQuotas), From: map[string]string{"api_key": "header:x-api-key"}, HotRoutes: true, XDS: "127.0.0.1:18000",
	})
	if err != nil {
		t.Fatal(err)
	}
	for part, want := range map[string]int{
		"descriptor_key: api_key": 1, "{remote_address: {}}": 1, "name: keyward-quota/api/api_key\n": 1, "name: keyward-calls/api/api_key\n": 1,
		"disabled: true": 1, "lds_config:": 1, "route_config_name: keyward-direct": 1, "cds_config:": 0,
	} {
		if n := strings.Count(string(text), part); n != want {
			t.Errorf("%d times %s, want %d", n, part, want)
		}
	}
	if strings.Contains(strings.Join(warnings, "\n"), "never switch") {
		t.Errorf("%q", warnings)
	}
	_, warnings, err = Generate(Options{
		Shape: RLQS, Rules: load(t, hotQuotas), From: map[string]string{"api_key": "header:x-user"}, HotRoutes: true, XDS: "127.0.0.1:18000",
	})
	if err != nil || !strings.Contains(strings.Join(warnings, "\n"), "never switch") {
		t.Errorf("another header: %q, %v", warnings, err)
	}
}
