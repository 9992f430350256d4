package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
)

// position is a node in a YAML file. It serves line numbers and the order of keys only. The zero position knows neither,
// so a disagreement between the two YAML parsers has no other effect.
type position struct{ node *yamlv3.Node }

func newPosition(content []byte) position {
	doc, err := decodeNode(yamlv3.NewDecoder(bytes.NewReader(content)))
	if err != nil || len(doc.Content) == 0 {
		return position{}
	}
	return position{doc.Content[0]}
}

// secondDocument returns the line of a file's second document, which is never loaded. It is 0 if there is none.
func secondDocument(content []byte) int {
	dec := yamlv3.NewDecoder(bytes.NewReader(content))
	if _, err := decodeNode(dec); err != nil {
		return 0
	}
	doc, err := decodeNode(dec)
	switch {
	case errors.Is(err, io.EOF):
		return 0
	case err != nil: // there is something, although it is not valid
		return 1
	case len(doc.Content) == 1 && doc.Content[0].Tag == "!!null":
		return 0 // a trailing separator
	}
	return position{doc}.line()
}

func decodeNode(dec *yamlv3.Decoder) (n *yamlv3.Node, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("yaml: %v", v)
		}
	}()
	n = new(yamlv3.Node)
	return n, dec.Decode(n)
}

func (p position) line() int {
	if p.node == nil {
		return 0
	}
	return p.node.Line
}

// column counts characters, from 1. It is 0 if unknown.
func (p position) column() int {
	if p.node == nil {
		return 0
	}
	return p.node.Column
}

// or returns p, or another position if p is unknown.
func (p position) or(other position) position {
	if p.node == nil {
		return other
	}
	return p
}

// orKey returns the position of p, or of its key if p is unknown.
func (p position) orKey(key keyPosition) keyPosition {
	if p.node == nil {
		return key
	}
	return keyPosition{line: p.node.Line, column: p.node.Column}
}

// resolve follows aliases.
func (p position) resolve() position {
	for p.node != nil && p.node.Kind == yamlv3.AliasNode {
		p.node = p.node.Alias
	}
	return p
}

// get returns the value of a key in a mapping: the last of duplicates, as the loader does, or else that of the first
// merge with the key.
func (p position) get(key string) position {
	p = p.resolve()
	if p.node == nil || p.node.Kind != yamlv3.MappingNode {
		return position{}
	}
	for i := len(p.node.Content) - 2; i >= 0; i -= 2 {
		if p.node.Content[i].Value == key {
			return position{p.node.Content[i+1]}
		}
	}
	for i := 0; i < len(p.node.Content)-1; i += 2 {
		if p.node.Content[i].Tag != "!!merge" {
			continue
		}
		if found := (position{p.node.Content[i+1]}).merged(key); found.node != nil {
			return found
		}
	}
	return position{}
}

// keyOf returns the position of a key in a mapping, without merges.
func (p position) keyOf(key string) position {
	p = p.resolve()
	if p.node == nil || p.node.Kind != yamlv3.MappingNode {
		return position{}
	}
	for i := 0; i < len(p.node.Content)-1; i += 2 {
		if p.node.Content[i].Value == key {
			return position{p.node.Content[i]}
		}
	}
	return position{}
}

func (p position) merged(key string) position {
	p = p.resolve()
	if p.node == nil || p.node.Kind != yamlv3.SequenceNode {
		return p.get(key)
	}
	for _, n := range p.node.Content {
		if found := (position{n}).get(key); found.node != nil {
			return found
		}
	}
	return position{}
}

// index returns an element of a sequence.
func (p position) index(i int) position {
	p = p.resolve()
	if p.node == nil || p.node.Kind != yamlv3.SequenceNode || i >= len(p.node.Content) {
		return position{}
	}
	return position{p.node.Content[i]}
}

type keyPosition struct {
	key          any
	line, column int
}

// order returns the keys of m in the order of the file, followed by the keys of merges, sorted.
func (p position) order(m map[interface{}]interface{}) []keyPosition {
	found := map[string]keyPosition{}
	if at := p.resolve(); at.node != nil && at.node.Kind == yamlv3.MappingNode {
		for i := 0; i < len(at.node.Content)-1; i += 2 {
			if k := at.node.Content[i]; found[k.Value].line == 0 {
				found[k.Value] = keyPosition{line: k.Line, column: k.Column}
			}
		}
	}
	keys := make([]keyPosition, 0, len(m))
	for k := range m {
		at := found[fmt.Sprint(k)]
		keys = append(keys, keyPosition{k, at.line, at.column})
	}
	slices.SortFunc(keys, func(a, b keyPosition) int {
		switch {
		case a.line == b.line:
			return strings.Compare(fmt.Sprint(a.key), fmt.Sprint(b.key))
		case a.line == 0:
			return 1
		case b.line == 0:
			return -1
		}
		return a.line - b.line
	})
	for i := range keys {
		if keys[i].line == 0 {
			keys[i].line, keys[i].column = p.line(), p.column()
		}
	}
	return keys
}
