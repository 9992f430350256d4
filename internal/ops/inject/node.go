package inject

import (
	"bytes"
	"embed"
	"encoding/json"
	"slices"
	"text/template"

	"go.yaml.in/yaml/v3"
)

//go:embed module.yaml sidecar.yaml volumes.yaml
var files embed.FS

// parse executes a template and parses the result.
func (in *injector) parse(file string) (*yaml.Node, error) {
	quote := func(v string) (string, error) {
		b, err := json.Marshal(v)
		return string(b), err
	}
	t, err := template.New(file).Funcs(template.FuncMap{"quote": quote}).ParseFS(files, file)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := t.Execute(&b, &in.Options); err != nil {
		return nil, err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(b.Bytes(), &doc); err != nil {
		return nil, err
	}
	return doc.Content[0], nil
}

// get returns the value at a path of keys through mappings, or nil.
func get(n *yaml.Node, path ...string) *yaml.Node {
	for _, key := range path {
		i := find(n, key)
		if i < 0 {
			return nil
		}
		n = n.Content[i]
	}
	return n
}

// find returns the index of a key's value in a mapping, or -1.
func find(n *yaml.Node, key string) int {
	if n == nil || n.Kind != yaml.MappingNode {
		return -1
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return i + 1
		}
	}
	return -1
}

// set sets the value of a key in a mapping. It appends a new key.
func set(n *yaml.Node, key string, v *yaml.Node) {
	if i := find(n, key); i >= 0 {
		v.LineComment = n.Content[i].LineComment
		n.Content[i] = v
		return
	}
	n.Content = append(n.Content, scalar(key), v)
}

// child returns the value of a key. It creates the value if there is none, or none of the given kind.
func child(n *yaml.Node, key string, kind yaml.Kind) *yaml.Node {
	if c := get(n, key); c != nil && c.Kind == kind {
		return c
	}
	c := &yaml.Node{Kind: kind}
	set(n, key, c)
	return c
}

// remove removes the elements with the given name from a list.
func remove(list *yaml.Node, name string) {
	list.Content = slices.DeleteFunc(list.Content, func(n *yaml.Node) bool { return text(get(n, "name")) == name })
}

func text(n *yaml.Node) string {
	if n == nil {
		return ""
	}
	return n.Value
}

func scalar(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s} }
