package config

import (
	"fmt"
	"slices"

	yamlv3 "go.yaml.in/yaml/v3"
)

// level is a kind of mapping in a rules file. A key has an effect only in mappings of its own level; the decoder
// ignores it in the others, as envoyproxy/ratelimit does.
type level uint8

const (
	inFile level = iota
	inDescriptor
	inLimit
	inReplaces
)

// here describes the level in a message.
func (l level) here() string {
	return [...]string{"at the top of the file", "in a descriptor", "inside 'rate_limit'", "in an entry of 'replaces'"}[l]
}

// levelKey is a key that has an effect at a level.
type levelKey struct {
	key   string
	at    level
	below level // of the mappings in the key's value; equal to at if the loader reads none there

	// lost is the consequence if the key is only one level above or below its own. It may be empty.
	lost string
}

// levelKeys returns every key that a file may have, with the levels at which it has an effect.
func levelKeys() []levelKey {
	const enforced = "the rule is enforced"
	return []levelKey{
		{"domain", inFile, inFile, ""},
		{"descriptors", inFile, inDescriptor, ""},
		{"key", inDescriptor, inDescriptor, ""},
		{"value", inDescriptor, inDescriptor, ""},
		{"rate_limit", inDescriptor, inLimit, ""},
		{"unit", inLimit, inLimit, "the descriptor has no limit"},
		{"requests_per_unit", inLimit, inLimit, "the descriptor has no limit"},
		{"unlimited", inLimit, inLimit, ""},
		{"name", inLimit, inLimit, ""},
		{"replaces", inLimit, inReplaces, "nothing is replaced"},
		{"name", inReplaces, inReplaces, ""},
		{"descriptors", inDescriptor, inDescriptor, "the descriptors in it are not loaded"},
		{"shadow_mode", inDescriptor, inDescriptor, enforced},
		{"quota_mode", inDescriptor, inDescriptor, enforced},
		{"detailed_metric", inDescriptor, inDescriptor, ""},
		{"value_to_metric", inDescriptor, inDescriptor, ""},
		{"share_threshold", inDescriptor, inDescriptor, "every value is counted separately"},
		{"metadata", inDescriptor, inDescriptor, "nothing in it is used"},
	}
}

// levelWalk finds known keys at levels where they have no effect.
type levelWalk struct {
	keys  []levelKey
	seen  map[levelVisit]bool // aliases can refer to a mapping many times
	found func(key *yamlv3.Node, text string)
}

type levelVisit struct {
	node *yamlv3.Node
	at   level
}

// mapping checks the mapping m, which has the given level. up is the mapping around it, or the zero position for the root.
func (w *levelWalk) mapping(m, up position, at level) {
	m = m.resolve()
	if m.node == nil || m.node.Kind != yamlv3.MappingNode || w.seen[levelVisit{m.node, at}] {
		return
	}
	w.seen[levelVisit{m.node, at}] = true
	for i := 0; i < len(m.node.Content)-1; i += 2 {
		key, value := m.node.Content[i], position{m.node.Content[i+1]}
		if key.Tag == "!!merge" {
			w.each(value, func(merged position) { w.mapping(merged, up, at) })
			continue
		}
		rows := w.rows(key.Value)
		here := slices.IndexFunc(rows, func(k levelKey) bool { return k.at == at })
		switch {
		case len(rows) == 0: // an unknown key, which is a fault already
		case here < 0:
			w.misplaced(key, rows, misplacedKey{m, up, value, at})
		case rows[here].below != at || key.Value == "descriptors":
			w.each(value, func(element position) { w.mapping(element, m, rows[here].below) })
		}
	}
}

// each calls f for a mapping, or for every element of a list.
func (w *levelWalk) each(p position, f func(position)) {
	p = p.resolve()
	if p.node == nil || p.node.Kind != yamlv3.SequenceNode {
		f(p)
		return
	}
	for i := range p.node.Content {
		f(p.index(i))
	}
}

// rows returns the levels at which a key has an effect. There are none for an unknown key.
func (w *levelWalk) rows(key string) (rows []levelKey) {
	for _, k := range w.keys {
		if k.key == key {
			rows = append(rows, k)
		}
	}
	return rows
}

// misplacedKey describes where a key without effect is: its mapping, the mapping around that, the key's value and the
// level.
type misplacedKey struct {
	in, up, value position
	at            level
}

func (w *levelWalk) misplaced(key *yamlv3.Node, rows []levelKey, m misplacedKey) {
	if m.at == inFile && hasAnchor(m.value.node) {
		return // it defines anchors for aliases
	}
	own := slices.MinFunc(rows, func(a, b levelKey) int { return m.levelsTo(a.at) - m.levelsTo(b.at) })
	text := "'" + key.Value + "' has no effect " + m.at.here()
	if lost := m.lost(own); lost != "" {
		text += ", so " + lost
	}
	w.found(key, text+": write it "+m.belongs(own.at))
}

// levelsTo returns the distance in levels from the key to another level.
func (m misplacedKey) levelsTo(other level) int {
	return max(int(m.at), int(other)) - min(int(m.at), int(other))
}

// belongs describes where to write a key of a level, seen from m.
func (m misplacedKey) belongs(to level) string {
	if to == inDescriptor && m.at == inLimit {
		return "next to 'rate_limit', in the descriptor"
	}
	return to.here()
}

// lost describes the consequence of k being here. It is empty if the key is also at its own level, or if nothing is
// known.
func (m misplacedKey) lost(k levelKey) string {
	limit := m.in.get("rate_limit")
	switch {
	case m.at == inFile:
		return "it applies to no rule"
	case k.at == inDescriptor && m.at == inLimit && m.up.get(k.key).node == nil,
		k.at == inLimit && m.at == inDescriptor && limit.node == nil,
		k.below == inReplaces && m.at == inDescriptor && limit.get(k.key).node == nil:
		return k.lost
	}
	return ""
}

// hasAnchor reports whether n or anything in it has an anchor.
func hasAnchor(n *yamlv3.Node) bool {
	return n != nil && (n.Anchor != "" || slices.ContainsFunc(n.Content, hasAnchor))
}

// duplicates calls found for every key that occurred earlier in its mapping. It does not follow aliases, so it visits
// each mapping once.
func duplicates(n *yamlv3.Node, found func(key *yamlv3.Node, text string)) {
	for _, child := range n.Content {
		duplicates(child, found)
	}
	if n.Kind != yamlv3.MappingNode {
		return
	}
	type name struct{ tag, value string }
	first := map[name]int{}
	for i := 0; i < len(n.Content)-1; i += 2 {
		key := n.Content[i]
		id := name{key.ShortTag(), key.Value}
		if key.Kind != yamlv3.ScalarNode || id.tag == "!!merge" {
			continue
		}
		before, ok := first[id]
		if !ok {
			first[id] = i
			continue
		}
		effect := "the later one replaces it"
		if merges(key.Value, n.Content[before+1], n.Content[i+1]) {
			effect = "the later one is merged into it and replaces the keys that both have"
		}
		found(key, fmt.Sprintf("'%s' already occurs in line %d: %s", key.Value, n.Content[before].Line, effect))
	}
}

// merges reports whether the decoder merges the second value of a key into the first. It does so for mappings that are
// a struct or a map in a descriptor.
func merges(key string, first, second *yamlv3.Node) bool {
	a, b := position{first}.resolve(), position{second}.resolve()
	return (key == "rate_limit" || key == "metadata") &&
		a.node.Kind == yamlv3.MappingNode && b.node.Kind == yamlv3.MappingNode
}
