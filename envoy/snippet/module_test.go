package snippet

import (
	"encoding/json"
	"maps"
	"slices"
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
		"caps":        {Options{Rules: load(t, simple), From: from, Caps: true}, "shape module has no --hot-routes"},
		"Envoy 1.37":  {Options{Rules: load(t, simple), From: from, EnvoyVersion: "1.37.0"}, "no module for Envoy 1.37"},
		"Envoy 1.41":  {Options{Rules: load(t, simple), From: from, EnvoyVersion: "1.41.0"}, "no module for Envoy 1.41"},
		"only a hold": {Options{Rules: load(t, tokens), From: map[string]string{"streams": "header:x-tenant"}}, "no domain can have the module"},
		"no shape":    {Options{Rules: load(t, simple), From: from, ModuleAs: ModuleFilter, Shape: Plain}, "--module-as is of shape module"},
		"as":          {Options{Rules: load(t, simple), From: from, ModuleAs: "lua"}, `--module-as "lua": want matcher or filter`},
		"matcher":     {Options{Rules: load(t, simple), From: from, ModuleAs: ModuleMatcher}, "--module-as matcher: Envoy 1.36 (--envoy-version) has no matchers in modules; Envoy 1.38 is the first that has"},
		"metadata":    {Options{Rules: load(t, manyQuotas), From: from}, "the module cannot do metadata, which api.api_key.tenant, api.api_key.tenant_large needs"},
	} {
		if c.o.Shape == "" {
			c.o.Shape = Module
		}
		if _, _, err := Generate(c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, not %q", name, err, c.want)
		}
	}
}

// TestModuleAs checks whether the module is a matcher or a filter.
func TestModuleAs(t *testing.T) {
	header := map[string]string{"api_key": "header:x-api-key"}
	address, masked := map[string]string{"remote_address": "remote_address"}, map[string]string{"masked_remote_address": "masked_remote_address:24/64"}
	for name, c := range map[string]struct {
		o       Options
		matcher bool
		warning string
	}{
		"complete":               {Options{EnvoyVersion: "1.38", From: header}, true, ""},
		"complete, 1.36":         {Options{EnvoyVersion: "1.36", From: header}, false, ""},
		"complete, an address":   {Options{EnvoyVersion: "1.40", From: address}, false, ""},
		"complete, a filter":     {Options{EnvoyVersion: "1.40", From: header, ModuleAs: ModuleFilter}, false, ""},
		"own routes":             {Options{EnvoyVersion: "1.40", From: header, Part: partFilter}, false, ""},
		"own routes, a matcher":  {Options{EnvoyVersion: "1.40", From: header, Part: partFilter, ModuleAs: ModuleMatcher}, true, ""},
		"gateway":                {Options{EnvoyVersion: "1.40", From: header, Gateway: gatewayIstio}, false, ""},
		"gateway, a matcher":     {Options{EnvoyVersion: "1.40", From: header, Gateway: gatewayIstio, ModuleAs: ModuleMatcher}, true, ""},
		"an address, a matcher":  {Options{EnvoyVersion: "1.40", From: address, ModuleAs: ModuleMatcher}, false, "the module is a filter, because a matcher has no addresses"},
		"a masked one, the same": {Options{EnvoyVersion: "1.40", From: masked, ModuleAs: ModuleMatcher}, false, "a matcher has no addresses"},
	} {
		key := slices.Collect(maps.Keys(c.o.From))[0]
		c.o.Shape, c.o.Rules = Module, load(t, strings.ReplaceAll(simple, "api_key", key))
		text, warnings, err := Generate(c.o)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		matcher, filter := strings.Contains(string(text), "v3.DynamicModuleMatcher"), strings.Contains(string(text), "v3.DynamicModuleFilter")
		if matcher != c.matcher || filter == c.matcher {
			t.Errorf("%s: a matcher: %v, a filter: %v, want a matcher: %v\n%s", name, matcher, filter, c.matcher, text)
		}
		if all := strings.Join(warnings, "\n"); (c.warning == "") != (all == "") || !strings.Contains(all, c.warning) {
			t.Errorf("%s: warnings %q, want %q", name, all, c.warning)
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

// TestModuleFor checks which file each version of Envoy loads, and that the configuration names the same one.
func TestModuleFor(t *testing.T) {
	for version, want := range map[string]string{
		"1.36": "libkeyward_abi_1_36.so", "1.36.4": "libkeyward_abi_1_36.so", "1.38.3": "libkeyward_abi_v0_1_0.so",
		"v1.39.3": "libkeyward_abi_v0_1_0.so", "1.40": "libkeyward_abi_v0_2_0.so", "v1.40.0-dev": "libkeyward_abi_v0_2_0.so",
	} {
		f, err := ModuleFor(version)
		if err != nil || f.Name() != want {
			t.Errorf("%s: %s, %v, want %s", version, f.Name(), err, want)
		}
		o := Options{Shape: Module, Rules: load(t, simple), From: map[string]string{"api_key": "header:x-api-key"}, EnvoyVersion: version}
		text, _, err := Generate(o)
		if name := "{name: keyward_abi_" + f.ABI + ", "; err != nil || !strings.Contains(string(text), name) {
			t.Errorf("%s: the configuration does not have %s: %v", version, name, err)
		}
	}
	for version, want := range map[string]string{
		"1.37.0": "there is no module for Envoy 1.37, only for 1.36, 1.38, 1.39 and 1.40",
		"2.0":    `envoy version "2.0": want something like 1.40.0; there is a module for 1.36, 1.38, 1.39 and 1.40`,
		"1.35.1": "envoy version 1.35.1: the oldest that can do this is 1.36; there is a module for 1.36, 1.38, 1.39 and 1.40",
		"1.41":   "there is no module for Envoy 1.41, only for 1.36, 1.38, 1.39 and 1.40",
	} {
		if _, err := ModuleFor(version); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", version, err, want)
		}
	}
}
