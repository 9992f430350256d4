package envoycheck

import (
	"strings"

	yaml "go.yaml.in/yaml/v3"
)

// field is an entry of a mapping.
type field struct{ key, value *yaml.Node }

// message is a mapping: a message of Envoy's configuration. The names of fields are in lower case without underscores,
// because Envoy reads max_tokens and maxTokens alike.
type message map[string]field

// messageOf returns the fields of a node, or nil if it is no mapping.
func messageOf(n *yaml.Node) message {
	if n = resolve(n); n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	m := message{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		m[plain(n.Content[i].Value)] = field{n.Content[i], resolve(n.Content[i+1])}
	}
	return m
}

func plain(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", "")) }

// resolve returns what an alias refers to.
func resolve(n *yaml.Node) *yaml.Node {
	for range 10 {
		if n == nil || n.Kind != yaml.AliasNode {
			return n
		}
		n = n.Alias
	}
	return nil
}

// at returns the message in a field, or nil.
func (m message) at(name string) message { return messageOf(m[name].value) }

// text returns the scalar in a field, or "".
func (m message) text(name string) string {
	if n := m[name].value; n != nil && n.Kind == yaml.ScalarNode {
		return n.Value
	}
	return ""
}

// list returns the elements of a repeated field.
func (m message) list(name string) []*yaml.Node {
	if n := m[name].value; n != nil && n.Kind == yaml.SequenceNode {
		return n.Content
	}
	return nil
}

// typed returns the type of a message in an Any, without its package, and its fields. A TypedStruct is that what it has.
func (m message) typed() (name string, fields message) {
	url, fields := m.text("@type"), m
	if strings.HasSuffix(url, ".TypedStruct") {
		url, fields = m.text("typeurl"), m.at("value")
	}
	return url[strings.LastIndexAny(url, "./")+1:], fields
}

// Aliases can make a short file large, or endless.
const (
	maxNodes = 1_000_000 // visited in one walk
	maxDepth = 200
)

// each calls visit with a node and everything in it, as long as visit returns true for what contains it.
func each(n *yaml.Node, visit func(*yaml.Node) bool) {
	nodes := 0
	var walk func(n *yaml.Node, depth int)
	walk = func(n *yaml.Node, depth int) {
		n = resolve(n)
		if nodes++; n == nil || nodes > maxNodes || depth > maxDepth || !visit(n) {
			return
		}
		for _, e := range n.Content {
			walk(e, depth+1)
		}
	}
	walk(n, 0)
}
