package snippet

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	yamlv3 "go.yaml.in/yaml/v3"
)

// moduleActions are the actions that the dynamic module of envoy/module/rust has.
var moduleActions = []string{"request_headers", "query_parameters", "generic_key", "header_value_match", "remote_address", "masked_remote_address"}

// moduleABIs are the ABIs of the module's files, by Envoy's minor version.
var moduleABIs = map[int]string{36: "1_36", 38: "v0_1_0", 39: "v0_1_0", 40: "v0_2_0"}

// planModule configures the module of each domain.
func (g *generator) planModule() (faults []error) {
	if !g.module {
		return nil
	}
	if g.Gateway != "" || g.HotRoutes || g.HotECDS || g.Caps || g.Routed {
		faults = append(faults, errors.New("shape module has no --for, --hot-routes, --hot-filters, --caps and --routed"))
	}
	if moduleABIs[g.minor] == "" {
		faults = append(faults, fmt.Errorf("shape module: there is no module for Envoy 1.%d: want --envoy-version 1.36, 1.38, 1.39 or 1.40", g.minor))
	}
	if len(faults) > 0 || g.secrets() || g.Part == partCluster {
		return faults
	}
	found := false
	for i := range g.Domains {
		d := &g.Domains[i]
		text, err := g.moduleConfig(d)
		if err != nil {
			g.warn("domain %s has no module: %v", d.Name, err)
			continue
		}
		d.Module, found = text, true
	}
	if !found {
		for _, w := range g.warnings {
			faults = append(faults, errors.New(w))
		}
		faults = append(faults, errors.New("shape module: no domain can have the module"))
	}
	return faults
}

// moduleConfig returns the module's configuration for a domain, as JSON. It has all descriptors of the rate limit filter,
// because a request whose leases are taken skips that filter.
func (g *generator) moduleConfig(d *domain) (string, error) {
	type actions struct {
		Actions []any `json:"actions"`
	}
	var limits []actions
	for _, c := range d.Descriptors {
		if c.Holds != (holds{}) {
			return "", fmt.Errorf("hits of %s are held, and the module's are spent", comment(c.Rules))
		}
		var l actions
		for _, text := range c.Actions {
			var a map[string]any
			if err := yamlv3.Unmarshal([]byte("{"+text+"}"), &a); err != nil {
				return "", fmt.Errorf("action %s: %w", text, err)
			}
			for _, name := range slices.Sorted(maps.Keys(a)) {
				if !slices.Contains(moduleActions, name) {
					return "", fmt.Errorf("the module cannot do %s, which %s needs", name, comment(c.Rules))
				}
			}
			l.Actions = append(l.Actions, a)
		}
		limits = append(limits, l)
	}
	b, err := json.Marshal(struct {
		Socket string    `json:"socket"`
		Node   string    `json:"node"`
		Domain string    `json:"domain"`
		Limits []actions `json:"limits"`
	}{g.ModuleSocket, g.NodeID(), d.Name, limits})
	return string(b), err
}

// ModuleABI returns the ABI in the name of the module's file.
func (g *generator) ModuleABI() string { return moduleABIs[g.minor] }

// ForVersions returns which versions of Envoy the configuration is for.
func (g *generator) ForVersions() string {
	if g.module {
		return fmt.Sprintf("1.%d", g.minor)
	}
	return fmt.Sprintf("1.%d and later", g.minor)
}

// LeaseFilter returns the name of the module's filter.
func (g *generator) LeaseFilter(d domain) string {
	if len(g.Domains) > 1 {
		return "keyward.lease/" + d.Name
	}
	return "keyward.lease"
}
