package snippet

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
)

// moduleActions are the actions that the dynamic module of envoy/module/rust has.
var moduleActions = []string{"request_headers", "query_parameters", "generic_key", "header_value_match", "remote_address", "masked_remote_address"}

// ModuleFile is a file of the dynamic module, which implements one ABI of Envoy.
type ModuleFile struct {
	ABI    string // as in the name of the file
	minors []int  // of the Envoy versions that load it
}

// moduleFiles are all files that scripts/module builds, in the order of their Envoy versions.
var moduleFiles = []ModuleFile{{"1_36", []int{36}}, {"v0_1_0", []int{38, 39}}, {"v0_2_0", []int{40}}}

// ModuleFiles returns the files of the dynamic module.
func ModuleFiles() []ModuleFile { return slices.Clone(moduleFiles) }

// ModuleFor returns the file of the dynamic module for a version of Envoy, such as 1.40, 1.40.0 or v1.40.0. It returns
// an error that lists the versions with a file if there is none.
func ModuleFor(envoy string) (ModuleFile, error) {
	minor, err := minorVersion(envoy)
	if err != nil {
		return ModuleFile{}, fmt.Errorf("%w; there is a module for %s", err, moduleVersions())
	}
	return moduleFor(minor)
}

func moduleFor(minor int) (ModuleFile, error) {
	for _, f := range moduleFiles {
		if slices.Contains(f.minors, minor) {
			return f, nil
		}
	}
	return ModuleFile{}, fmt.Errorf("there is no module for Envoy 1.%d, only for %s", minor, moduleVersions())
}

// Name returns the name under which Envoy's configuration refers to the file.
func (f ModuleFile) Name() string { return "libkeyward_abi_" + f.ABI + ".so" }

// Envoys returns the versions of Envoy that load the file, such as 1.38 and 1.39.
func (f ModuleFile) Envoys() (versions []string) {
	for _, m := range f.minors {
		versions = append(versions, fmt.Sprintf("1.%d", m))
	}
	return versions
}

// moduleVersions lists the versions of Envoy that load a file, for errors.
func moduleVersions() string {
	var all []string
	for _, f := range moduleFiles {
		all = append(all, f.Envoys()...)
	}
	last := len(all) - 1
	return strings.Join(all[:last], ", ") + " and " + all[last]
}

// Values of Options.ModuleAs.
const (
	// ModuleFilter: the module is a filter before the rate limit filter.
	ModuleFilter = "filter"
	// ModuleMatcher: the module is a matcher of the rate limit filter. That costs less CPU time. A matcher has no addresses, and
	// does not know whether the request has a route to a cluster: one without takes hits, which the rate limit filter would not.
	ModuleMatcher = "matcher"
)

// moduleMatchers is the first minor version of Envoy with matchers in modules.
const moduleMatchers = 38

// planModule configures the module of each domain.
func (g *generator) planModule() (faults []error) {
	if !g.module {
		if g.ModuleAs != "" {
			return []error{errors.New("--module-as is of shape module")}
		}
		return nil
	}
	explicit := g.ModuleAs == ModuleMatcher
	if err := g.chooseModuleAs(); err != nil {
		faults = append(faults, err)
	}
	if g.HotRoutes || g.HotECDS || g.Caps || g.Routed {
		faults = append(faults, errors.New("shape module has no --hot-routes, --hot-filters, --caps and --routed"))
	}
	if _, err := moduleFor(g.minor); err != nil {
		faults = append(faults, fmt.Errorf("shape module: --envoy-version: %w", err))
	}
	if len(faults) > 0 || g.secrets() || g.Part == partCluster {
		return faults
	}
	found := false
	for i := range g.Domains {
		d := &g.Domains[i]
		text, address, err := g.moduleConfig(d)
		if err != nil {
			g.warn("domain %s has no module: %v", d.Name, err)
			continue
		}
		d.Module, found = text, true
		d.Matcher = g.ModuleAs == ModuleMatcher && !address
		if explicit && !d.Matcher {
			g.warn("domain %s: the module is a filter, because a matcher has no addresses", d.Name)
		}
	}
	if !found {
		for _, w := range g.warnings {
			faults = append(faults, errors.New(w))
		}
		faults = append(faults, errors.New("shape module: no domain can have the module"))
	}
	return faults
}

// chooseModuleAs sets the default of ModuleAs, and returns an error if this Envoy does not have what it says.
func (g *generator) chooseModuleAs() error {
	switch {
	case g.ModuleAs == "" && g.Part == partBootstrap && g.minor >= moduleMatchers:
		g.ModuleAs = ModuleMatcher
	case g.ModuleAs == "":
		g.ModuleAs = ModuleFilter
	case g.ModuleAs != ModuleFilter && g.ModuleAs != ModuleMatcher:
		return fmt.Errorf("--module-as %q: want %s or %s", g.ModuleAs, ModuleMatcher, ModuleFilter)
	case g.ModuleAs == ModuleMatcher && g.minor < moduleMatchers:
		return fmt.Errorf("--module-as %s: Envoy 1.%d (--envoy-version) has no matchers in modules; Envoy 1.%d is the first that has", ModuleMatcher, g.minor, moduleMatchers)
	}
	return nil
}

// moduleConfig returns the module's configuration for a domain, as JSON. It has all descriptors of the rate limit filter,
// because a request whose leases are taken skips that filter. It reports whether one of them has the address of the client.
func (g *generator) moduleConfig(d *domain) (text string, address bool, err error) {
	type actions struct {
		Actions []any `json:"actions"`
	}
	var limits []actions
	for _, c := range d.Descriptors {
		if c.Holds != (holds{}) {
			return "", false, fmt.Errorf("hits of %s are held, and the module's are spent", comment(c.Rules))
		}
		var l actions
		for _, text := range c.Actions {
			var a map[string]any
			if err := yamlv3.Unmarshal([]byte("{"+text+"}"), &a); err != nil {
				return "", false, fmt.Errorf("action %s: %w", text, err)
			}
			for _, name := range slices.Sorted(maps.Keys(a)) {
				if !slices.Contains(moduleActions, name) {
					return "", false, fmt.Errorf("the module cannot do %s, which %s needs", name, comment(c.Rules))
				}
				address = address || name == "remote_address" || name == "masked_remote_address"
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
	return string(b), address, err
}

// ModuleABI returns the ABI in the name of the module's file.
func (g *generator) ModuleABI() string {
	f, _ := moduleFor(g.minor) // planModule has returned the error
	return f.ABI
}

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
