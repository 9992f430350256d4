package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Defaults are keys of metadata.keyward for the rules of each domain that lack them. They are for rules from servers that
// send no metadata. They are immutable.
type Defaults map[string]map[string]any

// placed are the keys whose values depend on the descriptors of a rule.
var placed = []string{"shard_by", "fair", "federation", "identity"}

// ParseDefaults reads a YAML or JSON map of domains to keys of metadata.keyward. It returns all faults, joined. Empty
// content has no defaults.
func ParseDefaults(content []byte) (Defaults, error) {
	raw := map[string]map[string]interface{}{}
	if err := unmarshal(content, &raw); err != nil {
		return nil, err
	}
	all := Defaults{}
	var faults []error
	for _, domain := range slices.Sorted(maps.Keys(raw)) {
		all[domain] = plainMap(raw[domain])
		if _, err := newMetadata(all[domain]); err != nil {
			faults = append(faults, fmt.Errorf("domain '%s': %w", domain, err))
			continue
		}
		known := settings()
		for _, key := range slices.Sorted(maps.Keys(all[domain])) {
			i := slices.IndexFunc(known, func(k setting) bool { return k.key == key })
			switch {
			case i < 0:
				faults = append(faults, fmt.Errorf("domain '%s': unknown key '%s'%s", domain, key, meant(key)))
			case slices.Contains(placed, key): // checked with each rule
			default:
				if fault := known[i].set(new(Extension), all[domain][key], nil); fault != "" {
					faults = append(faults, fmt.Errorf("domain '%s': %s", domain, fault))
				}
			}
		}
	}
	return all, errors.Join(faults...)
}

// meant returns a hint for a misspelled key of metadata.keyward.
func meant(key string) string {
	if hint := hintWord(key, extensionKeyNames()); hint != "" {
		return " (" + hint + ")"
	}
	return ""
}

// complete returns the metadata of a rule with the defaults of its domain, and the keys that it takes from them. It does
// not modify metadata. The defaults do not apply to a descriptor without a limit.
func (d Defaults) complete(r *RuleSpec, metadata map[string]any) (_ map[string]any, taken []string) {
	if r == nil || r.Unlimited || len(d[r.Domain]) == 0 {
		return metadata, nil
	}
	own, isMap := metadata[metadataKey].(map[string]any)
	if metadata[metadataKey] != nil && !isMap {
		return metadata, nil // a fault
	}
	all := maps.Clone(d[r.Domain])
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if _, ok := own[key]; !ok {
			taken = append(taken, key)
		}
	}
	maps.Copy(all, own)
	complete := maps.Clone(metadata)
	if complete == nil {
		complete = map[string]any{}
	}
	complete[metadataKey] = all
	return complete, taken
}

// blameDefaults adds the keys of both to faults of a rule that has keys of its own and takes others from its domain's
// defaults, unless it has the fault without them. own is the rule's metadata.
func blameDefaults(faults []extensionFault, of ancestry, taken []string, own map[string]any) []extensionFault {
	if len(faults) == 0 {
		return nil
	}
	_, ownFaults := parseExtension(own, of.path)
	keys := "none"
	if m, _ := own[metadataKey].(map[string]any); len(m) > 0 {
		keys = strings.Join(slices.Sorted(maps.Keys(m)), ", ")
	}
	for i := range faults {
		if !slices.Contains(ownFaults, faults[i]) {
			faults[i].text += fmt.Sprintf(" (defaults of domain '%s': %s; the rule's own keys: %s)", of.domain, strings.Join(taken, ", "), keys)
		}
	}
	return faults
}
