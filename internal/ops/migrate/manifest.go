package migrate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	yaml "go.yaml.in/yaml/v3"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/settings"
)

// Manifest is a YAML file that configures envoyproxy/ratelimit: Kubernetes objects, a compose file or chart values.
type Manifest struct {
	Env      Env
	Rules    []config.File // rules files in ConfigMaps
	Workload string        // kind/name; empty if it is not a Kubernetes workload
	Replicas int           // of the workload; default 1
	Image    string

	docs      []*yaml.Node
	workload  *yaml.Node
	container *yaml.Node
}

// errNoVariables reports a file without envoyproxy/ratelimit.
var errNoVariables = errors.New("no container that runs ratelimit, and no variable of envoyproxy/ratelimit: use " +
	"--container to name the container")

// ParseManifest finds the container that runs ratelimit: the one with the given name, or else the one with its image or
// command. If there is none, it collects every known variable in the file, in any notation.
func ParseManifest(content []byte, container string) (*Manifest, error) {
	m := &Manifest{Replicas: 1}
	for dec := yaml.NewDecoder(bytes.NewReader(content)); ; {
		doc := new(yaml.Node)
		err := dec.Decode(doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if len(doc.Content) == 0 || doc.Content[0].Kind != yaml.MappingNode {
			continue
		}
		if top := doc.Content[0]; text(at(top, "kind")) == "List" { // the output of kubectl get -o yaml
			m.docs = append(m.docs, items(at(top, "items"))...)
		} else {
			m.docs = append(m.docs, top)
		}
	}
	m.configMaps()
	for _, doc := range m.docs {
		if m.find(doc, container) {
			return m, nil
		}
	}
	if container != "" {
		return nil, fmt.Errorf("no workload has a container %s", container)
	}
	for _, doc := range m.docs {
		m.walk(doc)
	}
	if len(m.Env) == 0 {
		return nil, errNoVariables
	}
	return m, nil
}

// at returns the value at a path of keys through mappings, or nil.
func at(n *yaml.Node, keys ...string) *yaml.Node {
	for _, k := range keys {
		if n == nil || n.Kind != yaml.MappingNode {
			return nil
		}
		var next *yaml.Node
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == k {
				next = n.Content[i+1]
			}
		}
		n = next
	}
	return n
}

// text returns the value of a scalar, or the empty string for anything else.
func text(n *yaml.Node) string {
	if n == nil || n.Kind != yaml.ScalarNode {
		return ""
	}
	return n.Value
}

// items returns the elements of a sequence.
func items(n *yaml.Node) []*yaml.Node {
	if n == nil || n.Kind != yaml.SequenceNode {
		return nil
	}
	return n.Content
}

// podSpec returns the pod spec of a workload.
func podSpec(doc *yaml.Node) *yaml.Node {
	if text(at(doc, "kind")) == "Pod" {
		return at(doc, "spec")
	}
	return at(doc, "spec", "template", "spec")
}

func (m *Manifest) find(doc *yaml.Node, name string) bool {
	for _, c := range items(at(podSpec(doc), "containers")) {
		is := text(at(c, "name")) == name
		if name == "" {
			is = runsRatelimit(c)
		}
		if !is {
			continue
		}
		m.workload, m.container = doc, c
		m.Workload = text(at(doc, "kind")) + "/" + text(at(doc, "metadata", "name"))
		m.Image = text(at(c, "image"))
		if n := text(at(doc, "spec", "replicas")); n != "" {
			if _, err := fmt.Sscan(n, &m.Replicas); err != nil {
				m.Replicas = 1
			}
		}
		m.environment(doc, c)
		return true
	}
	return false
}

func runsRatelimit(c *yaml.Node) bool {
	image, _, _ := strings.Cut(text(at(c, "image")), "@")
	if strings.HasSuffix(image, "/ratelimit") || strings.Contains(image, "/ratelimit:") ||
		strings.HasPrefix(image, "ratelimit") {
		return true
	}
	for _, list := range []string{"command", "args"} {
		for _, w := range items(at(c, list)) {
			if strings.HasSuffix(w.Value, "/ratelimit") || strings.HasSuffix(w.Value, "/service_cmd") {
				return true
			}
		}
	}
	return false
}

// environment reads the variables of a container, including those of ConfigMaps in the same file.
func (m *Manifest) environment(doc, c *yaml.Node) {
	namespace := text(at(doc, "metadata", "namespace"))
	for _, from := range items(at(c, "envFrom")) {
		name := text(at(from, "configMapRef", "name"))
		data := at(m.object("ConfigMap", namespace, name), "data")
		if name == "" || data == nil {
			continue
		}
		for i := 0; i+1 < len(data.Content); i += 2 {
			m.Env = append(m.Env,
				Var{Name: text(at(from, "prefix")) + data.Content[i].Value, Value: text(data.Content[i+1]), From: "ConfigMap " + name})
		}
	}
	for _, v := range items(at(c, "env")) {
		m.Env = append(m.Env, m.variable(v, namespace))
	}
}

// variable reads {name: N, value: V}, or valueFrom.
func (m *Manifest) variable(v *yaml.Node, namespace string) Var {
	x := Var{Name: text(at(v, "name")), Value: text(at(v, "value"))}
	if ref := at(v, "valueFrom", "secretKeyRef"); ref != nil {
		x.From = "Secret " + text(at(ref, "name")) + ", key " + text(at(ref, "key"))
	}
	if ref := at(v, "valueFrom", "configMapKeyRef"); ref != nil {
		x.From = "ConfigMap " + text(at(ref, "name")) + ", key " + text(at(ref, "key"))
		x.Value = text(at(m.object("ConfigMap", namespace, text(at(ref, "name"))), "data", text(at(ref, "key"))))
	}
	if ref := at(v, "valueFrom", "fieldRef"); ref != nil {
		x.From = "field " + text(at(ref, "fieldPath"))
	}
	return x
}

func (m *Manifest) object(kind, namespace, name string) *yaml.Node {
	for _, doc := range m.docs {
		if text(at(doc, "kind")) == kind && text(at(doc, "metadata", "name")) == name &&
			text(at(doc, "metadata", "namespace")) == namespace {
			return doc
		}
	}
	return nil
}

// configMaps collects the rules files in ConfigMaps: YAML with a domain and descriptors.
func (m *Manifest) configMaps() {
	for _, doc := range m.docs {
		data := at(doc, "data")
		if text(at(doc, "kind")) != "ConfigMap" || data == nil || data.Kind != yaml.MappingNode {
			continue
		}
		for i := 0; i+1 < len(data.Content); i += 2 {
			var head struct {
				Domain      string `yaml:"domain"`
				Descriptors []any  `yaml:"descriptors"`
			}
			content := text(data.Content[i+1])
			if yaml.Unmarshal([]byte(content), &head) == nil && head.Domain != "" && head.Descriptors != nil {
				m.Rules = append(m.Rules, config.File{Name: data.Content[i].Value, Content: []byte(content)})
			}
		}
	}
	slices.SortFunc(m.Rules, func(a, b config.File) int { return strings.Compare(a.Name, b.Name) })
}

// walk collects known variables in any YAML: NAME: value, NAME=value, or {name: NAME, value: V}.
func (m *Manifest) walk(n *yaml.Node) {
	switch n.Kind {
	case yaml.MappingNode:
		if isKnown(text(at(n, "name"))) {
			m.Env = append(m.Env, m.variable(n, ""))
			return
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if k, v := n.Content[i].Value, n.Content[i+1]; isKnown(k) && v.Kind == yaml.ScalarNode {
				m.Env = append(m.Env, Var{Name: k, Value: v.Value})
			} else {
				m.walk(v)
			}
		}
	case yaml.SequenceNode:
		for _, x := range n.Content {
			m.walk(x)
		}
	case yaml.ScalarNode:
		if name, value, ok := strings.Cut(n.Value, "="); ok && isKnown(name) {
			m.Env = append(m.Env, Var{Name: name, Value: value})
		}
	case yaml.DocumentNode, yaml.AliasNode:
	}
}

// isKnown reports whether a name is a variable of envoyproxy/ratelimit. It excludes names that are too common.
func isKnown(name string) bool {
	if name == "" || name == "HOST" || name == "PORT" {
		return false
	}
	if slices.ContainsFunc(settings.Table(), func(v settings.EnvVariable) bool { return v.Name == name }) {
		return true
	}
	fate, _ := otherFate(name)
	return fate != unknown && fate != own
}
