package snippet

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestModuleFaults checks that shape module names everything that it cannot express.
func TestModuleFaults(t *testing.T) {
	from := map[string]string{"api_key": "header:x-api-key", "tenant": "metadata:jwt:tenant", "streams": "header:x-tenant"}
	for name, c := range map[string]struct {
		o    Options
		want string
	}{
		"caps":        {Options{Rules: load(t, simple), From: from, Caps: true}, "shape module has no --for"},
		"Envoy 1.37":  {Options{Rules: load(t, simple), From: from, EnvoyVersion: "1.37.0"}, "no module for Envoy 1.37"},
		"Envoy 1.41":  {Options{Rules: load(t, simple), From: from, EnvoyVersion: "1.41.0"}, "no module for Envoy 1.41"},
		"only a hold": {Options{Rules: load(t, tokens), From: map[string]string{"streams": "header:x-tenant"}}, "no domain can have the module"},
		"metadata":    {Options{Rules: load(t, manyQuotas), From: from}, "the module cannot do metadata, which api.api_key.tenant, api.api_key.tenant_large needs"},
	} {
		c.o.Shape = Module
		if _, _, err := Generate(c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, not %q", name, err, c.want)
		}
	}
}

// TestModuleHasTheDescriptorsOfTheFilter checks that the module takes a lease for each descriptor that the rate limit
// filter would send: it would otherwise skip limits.
func TestModuleHasTheDescriptorsOfTheFilter(t *testing.T) {
	from := map[string]string{"session": "query:session"}
	text, _, err := Generate(Options{Shape: Module, Part: partFilter, Rules: load(t, rich), From: from, Envoy: []byte(ownEnvoy), EnvoyVersion: "1.40"})
	if err != nil {
		t.Fatal(err)
	}
	var value string
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "value: "); ok && value == "" {
			if err := json.Unmarshal([]byte(rest), &value); err != nil {
				t.Fatal(err)
			}
		}
	}
	var module struct{ Limits []struct{ Actions []any } }
	if err := json.Unmarshal([]byte(value), &module); err != nil {
		t.Fatal(err)
	}
	if filter := strings.Count(string(text), "- actions:"); filter == 0 || len(module.Limits) != filter {
		t.Errorf("%d descriptors of the module, %d of the filter:\n%s", len(module.Limits), filter, text)
	}
}
