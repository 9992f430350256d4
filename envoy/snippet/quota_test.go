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
		"metadata":   {Options{Rules: load(t, manyQuotas), From: from}, "a bucket of api.api_key.tenant cannot have tenant"},
		"hot routes": {Options{Rules: load(t, quotas), From: from, HotRoutes: true, Routed: true}, "shape rlqs has no --for, --hot-routes"},
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
