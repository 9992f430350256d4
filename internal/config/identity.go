package config

import (
	"fmt"
	"maps"
	"slices"

	"github.com/keyward/keyward/internal/lease"
)

// Identity divides the callers of an approximate rule by an entry of its descriptors: callers that the entry names may
// use the complete slack, others a part of it.
type Identity struct {
	Entry     string   // key of the entry
	Unknown   float64  // part of the slack that unknown callers may use, from 0 to 1
	Anonymous []string // values of the entry, in addition to the empty one, that name no caller

	level int          // of the entry in the rule's path
	terms *lease.Terms // of unknown callers; set by compile
}

// parseIdentity reads identity: known, unknown, or a map.
func (x *Extension) parseIdentity(v any, path []*node) (fault string) {
	m, isMap := v.(map[string]any)
	if !isMap {
		x.Unknown, fault = either("identity", "known", "unknown")(v)
		return fault
	}
	id := &Identity{Unknown: 1.0 / unknownPart}
	for _, key := range slices.Sorted(maps.Keys(m)) {
		switch key {
		case "entry":
			id.Entry, _ = m[key].(string)
		case "unknown":
			f, ok := fraction(m[key])
			if !ok || !(f >= 0 && f <= 1) {
				return fmt.Sprintf("identity.unknown must be from 0 to 1, like 0.25 or 25%%, not '%v'", m[key])
			}
			id.Unknown = f
		case "anonymous":
			if id.Anonymous, fault = parseTexts("identity.anonymous", m[key]); fault != "" {
				return fault
			}
		default:
			return fmt.Sprintf("identity must be known, unknown, or a map with the keys entry, unknown and anonymous, not '%s'",
				key)
		}
	}
	if id.level = levelOf(path, id.Entry); id.level < 0 {
		return fmt.Sprintf("identity.entry must be an entry key of the descriptor, not '%v'", m["entry"])
	}
	x.Identity = id
	return ""
}

// parseTexts reads a text or a list of texts.
func parseTexts(name string, v any) (texts []string, fault string) {
	all, isList := v.([]any)
	if !isList {
		all = []any{v}
	}
	for _, e := range all {
		text, ok := e.(string)
		if !ok {
			return nil, fmt.Sprintf("%s must be a text or a list of texts, not '%v'", name, v)
		}
		texts = append(texts, text)
	}
	return texts, ""
}

// isUnknown reports whether the entries of a descriptor of the rule name no caller.
func (id *Identity) isUnknown(entries []Entry) bool {
	caller := entries[id.level].Value
	return caller == "" || slices.Contains(id.Anonymous, caller)
}

// UnknownSlack returns the slack of unknown callers, or 0 if the rule does not distinguish them.
func (x *Extension) UnknownSlack() uint32 {
	if x.Identity == nil || x.Identity.terms == nil {
		return 0
	}
	return x.Identity.terms.Slack
}

// setUncapped records that the rule refuses no request.
func (x *Extension) setUncapped() {
	x.lease().Uncapped = true
	if x.Identity != nil && x.Identity.terms != nil {
		x.Identity.terms.Uncapped = true
	}
}
