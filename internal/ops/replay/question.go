package replay

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/keyward/keyward/internal/config"
)

// DescriptorTemplate is one descriptor that Envoy makes of a request, in one domain.
type DescriptorTemplate struct {
	Domain  string
	keys    []string
	sources []Source
}

// String is the descriptor as it would be written: domain: key=source,key=source.
func (q DescriptorTemplate) String() string {
	parts := make([]string, len(q.keys))
	for i, k := range q.keys {
		parts[i] = k + "=" + q.sources[i].text
	}
	return q.Domain + ": " + strings.Join(parts, ",")
}

// Actions says what Envoy asks about.
type Actions struct {
	From        map[string]Source // where the value of a descriptor key is
	Domain      string            // the only one; empty: all that rules have
	Descriptors [][]string        // keys of each descriptor; none: one for each rule, as `keyward envoy-config` makes them
}

// Templates are the descriptors that Envoy makes for rules. The warnings name the rules that none of them can reach, and
// those that every request is taken to be about.
func (a Actions) Templates(rules *config.Rules) (qs []DescriptorTemplate, warnings []string) {
	add := func(q DescriptorTemplate) {
		if !slices.ContainsFunc(qs, func(have DescriptorTemplate) bool { return have.String() == q.String() }) {
			qs = append(qs, q)
		}
	}
	for _, domain := range rules.Domains() {
		if a.Domain != "" && domain != a.Domain {
			continue
		}
		for _, keys := range a.Descriptors {
			q := DescriptorTemplate{Domain: domain, keys: keys}
			for _, k := range keys {
				q.sources = append(q.sources, a.source(k))
			}
			add(q)
		}
	}
	for _, r := range rules.Rules() {
		if a.Domain != "" && r.Domain != a.Domain || len(a.Descriptors) > 0 {
			continue
		}
		q, taken, err := a.forRule(r)
		if err != nil {
			taken = []string{err.Error()}
		} else {
			add(q)
		}
		for _, w := range taken {
			if !slices.Contains(warnings, w) {
				warnings = append(warnings, w)
			}
		}
	}
	// Envoy has one filter a domain, which asks about all descriptors at once.
	order := rules.Domains()
	slices.SortStableFunc(qs, func(a, b DescriptorTemplate) int {
		return slices.Index(order, a.Domain) - slices.Index(order, b.Domain)
	})
	return qs, warnings
}

// forRule takes a rule's levels as the entries of a descriptor. taken names the values that every request is taken to
// have; a generic_key is a constant in Envoy's own configuration.
func (a Actions) forRule(r *config.RuleSpec) (q DescriptorTemplate, taken []string, err error) {
	q.Domain = r.Domain
	for _, l := range r.Levels {
		s := a.source(l.Key)
		if s.text == "" && !l.Variable {
			s = Source{kind: constant, name: l.Value, text: "value:" + l.Value}
			if l.Key != "generic_key" {
				taken = append(taken, fmt.Sprintf("domain %s: every request is asked about with %s=%s, since nothing says where %s is: --from %s=header:NAME, or --from %s=value:%s if Envoy always sends it",
					r.Domain, l.Key, l.Value, l.Key, l.Key, l.Key, l.Value))
			}
		}
		if s.text == "" {
			return q, nil, fmt.Errorf("nothing says where %s is, so %s is never asked about: --from %s=header:NAME", l.Key, r.FullKey, l.Key)
		}
		q.keys, q.sources = append(q.keys, l.Key), append(q.sources, s)
	}
	return q, taken, nil
}

// source is where a key's value is: what was said, else what Envoy itself calls so.
func (a Actions) source(key string) Source {
	if s, ok := a.From[key]; ok {
		return s
	}
	switch key {
	case "remote_address", "masked_remote_address", "source_cluster", "destination_cluster":
		s, _ := ParseSource(key) // these are all in its grammar
		return s
	}
	return Source{}
}

// Check finds descriptors whose keys have no source, and sources that no question uses.
func (a Actions) Check(questions []DescriptorTemplate) []error {
	var faults []error
	used := map[string]bool{}
	for _, q := range questions {
		for _, k := range q.keys {
			used[k] = true
		}
	}
	for _, keys := range a.Descriptors {
		for _, k := range keys {
			if a.source(k).text == "" {
				faults = append(faults, fmt.Errorf("--descriptor %s: nothing says where %s is: --from %s=header:NAME", strings.Join(keys, ","), k, k))
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
