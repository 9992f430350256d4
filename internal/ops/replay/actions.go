package replay

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/keyward/keyward/internal/config"
)

// DescriptorTemplate describes a descriptor that Envoy makes for a request, in one domain.
type DescriptorTemplate struct {
	Domain  string
	keys    []string
	sources []Source
}

// String returns the template in the form domain: key=source,key=source.
func (d DescriptorTemplate) String() string {
	parts := make([]string, len(d.keys))
	for i, k := range d.keys {
		parts[i] = k + "=" + d.sources[i].text
	}
	return d.Domain + ": " + strings.Join(parts, ",")
}

// Actions describes the rate limit actions of Envoy, which make descriptors of a request.
type Actions struct {
	From        map[string]Source // source of the value of each descriptor key
	Domain      string            // the only domain; empty: all domains of the rules
	Descriptors [][]string        // keys of each descriptor; none: one descriptor per rule, as from `keyward envoy-config`
}

// Templates returns the descriptors that Envoy makes for rules. The warnings name the rules that no descriptor reaches,
// and the values that are assumed for every request.
func (a Actions) Templates(rules *config.Rules) (templates []DescriptorTemplate, warnings []string) {
	add := func(d DescriptorTemplate) {
		if !slices.ContainsFunc(templates, func(have DescriptorTemplate) bool { return have.String() == d.String() }) {
			templates = append(templates, d)
		}
	}
	for _, domain := range rules.Domains() {
		if a.Domain != "" && domain != a.Domain {
			continue
		}
		for _, keys := range a.Descriptors {
			d := DescriptorTemplate{Domain: domain, keys: keys}
			for _, k := range keys {
				d.sources = append(d.sources, a.source(k))
			}
			add(d)
		}
	}
	for _, r := range rules.Rules() {
		if a.Domain != "" && r.Domain != a.Domain || len(a.Descriptors) > 0 {
			continue
		}
		d, notes, err := a.forRule(r)
		if err != nil {
			notes = []string{err.Error()}
		} else {
			add(d)
		}
		for _, w := range notes {
			if !slices.Contains(warnings, w) {
				warnings = append(warnings, w)
			}
		}
	}
	// Envoy has one filter per domain, which sends all descriptors in one call.
	order := rules.Domains()
	slices.SortStableFunc(templates, func(a, b DescriptorTemplate) int {
		return slices.Index(order, a.Domain) - slices.Index(order, b.Domain)
	})
	return templates, warnings
}

// forRule returns a descriptor whose entries are the levels of a rule. assumed describes the values that are assumed
// for every request. A generic_key is a constant in Envoy's configuration.
func (a Actions) forRule(r *config.RuleSpec) (d DescriptorTemplate, assumed []string, err error) {
	d.Domain = r.Domain
	for _, l := range r.Levels {
		s := a.source(l.Key)
		if s.text == "" && !l.Variable {
			s = Source{kind: constant, name: l.Value, text: "value:" + l.Value}
			if l.Key != "generic_key" {
				assumed = append(assumed, fmt.Sprintf("domain %s: assuming %s=%s for every request, because the source of %s is "+
					"unknown: --from %s=header:NAME, or --from %s=value:%s if Envoy always sends this value",
					r.Domain, l.Key, l.Value, l.Key, l.Key, l.Key, l.Value))
			}
		}
		if s.text == "" {
			return d, nil, fmt.Errorf("the source of %s is unknown, so %s is never applied: --from %s=header:NAME", l.Key,
				r.FullKey, l.Key)
		}
		d.keys, d.sources = append(d.keys, l.Key), append(d.sources, s)
	}
	return d, assumed, nil
}

// source returns the source of a key: the configured one, or else that of Envoy's action with this name.
func (a Actions) source(key string) Source {
	if s, ok := a.From[key]; ok {
		return s
	}
	switch key {
	case "remote_address", "masked_remote_address", "source_cluster", "destination_cluster":
		s, _ := ParseSource(key) // these are valid
		return s
	}
	return Source{}
}

// Check returns errors for descriptor keys without a source, and for sources that no template uses.
func (a Actions) Check(templates []DescriptorTemplate) []error {
	var faults []error
	used := map[string]bool{}
	for _, d := range templates {
		for _, k := range d.keys {
			used[k] = true
		}
	}
	for _, keys := range a.Descriptors {
		for _, k := range keys {
			if a.source(k).text == "" {
				faults = append(faults,
					fmt.Errorf("--descriptor %s: the source of %s is unknown: --from %s=header:NAME", strings.Join(keys, ","), k, k))
			}
		}
	}
	for _, k := range slices.Sorted(maps.Keys(a.From)) {
		if !used[k] {
			faults = append(faults, fmt.Errorf("--from %s: no rule has the key %s", k, k))
		}
	}
	return faults
}
