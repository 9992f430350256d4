package migrate

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	yaml "go.yaml.in/yaml/v3"
)

// errNoWorkload reports a file that cannot be patched.
var errNoWorkload = errors.New("there is no Kubernetes workload to patch, only variables")

// Names of the objects of a cluster with several replicas.
const (
	secretName  = "keyward-members" // tls.crt, tls.key, ca.crt and gossip.key
	secretMount = "/etc/keyward"
	gossipPort  = 7946
	peerPort    = 7947
)

// Patched returns the manifest with Keyward's image. For more than one replica it adds a headless Service and the
// settings of a cluster. If clean is set, it removes variables that no longer have an effect. Comments stay.
func (m *Manifest) Patched(image string, replicas int, clean bool) ([]byte, error) {
	if m.container == nil {
		return nil, errNoWorkload
	}
	set(m.container, "image", scalar(image))
	if at(m.container, "command") == nil && at(m.container, "args") == nil {
		set(m.container, "command", mustNode("[/bin/ratelimit]")) // the image's own command listens on loopback only
	}
	if clean {
		m.clean()
	}
	docs := slices.Clone(m.docs)
	if replicas > 1 {
		service, err := m.cluster(replicas)
		if err != nil {
			return nil, err
		}
		docs = append(docs, service)
	}
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	for _, d := range docs {
		if err := e.Encode(d); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), e.Close()
}

// clean removes the variables of stores, and others without effect.
func (m *Manifest) clean() {
	env := at(m.container, "env")
	if env == nil {
		return
	}
	fates := map[string]string{}
	for _, v := range m.Env.Variables(false) {
		fates[v.Name] = v.Fate
	}
	env.Content = slices.DeleteFunc(env.Content, func(v *yaml.Node) bool {
		f := fates[text(at(v, "name"))]
		return f == goesAway || f == noEffect
	})
}

// cluster adds the settings of a cluster, and returns the Service by which its members find each other.
func (m *Manifest) cluster(replicas int) (*yaml.Node, error) {
	kind, name := text(at(m.workload, "kind")), text(at(m.workload, "metadata", "name"))
	labels := at(m.workload, "spec", "selector", "matchLabels")
	if labels == nil {
		return nil, fmt.Errorf("%s/%s has no spec.selector.matchLabels, which the Service needs to select its pods", kind,
			name)
	}
	if kind != "DaemonSet" {
		set(at(m.workload, "spec"), "replicas", mustNode(fmt.Sprint(replicas)))
	}
	service := name + "-gossip"
	m.variables([][2]string{
		{"KEYWARD_JOIN", fmt.Sprintf("dns+%s:%d", service, gossipPort)},
		{"KEYWARD_EXPECT", fmt.Sprint(replicas)},
		{"KEYWARD_GOSSIP_KEY_FILE", secretMount + "/gossip.key"},
		{"KEYWARD_TLS_CERT", secretMount + "/tls.crt"},
		{"KEYWARD_TLS_KEY", secretMount + "/tls.key"},
		{"KEYWARD_TLS_CA", secretMount + "/ca.crt"},
	})
	for _, v := range [][2]string{{"POD_NAME", "metadata.name"}, {"POD_IP", "status.podIP"}, {"POD_UID", "metadata.uid"}} {
		m.add(v[0], mustNode(fmt.Sprintf("{fieldRef: {fieldPath: %s}}", v[1])), "valueFrom")
	}
	appendTo(m.container, "ports", mustNode(fmt.Sprintf("{name: gossip, containerPort: %d, protocol: TCP}", gossipPort)))
	appendTo(m.container, "ports",
		mustNode(fmt.Sprintf("{name: gossip-udp, containerPort: %d, protocol: UDP}", gossipPort)))
	appendTo(m.container, "ports", mustNode(fmt.Sprintf("{name: peer, containerPort: %d, protocol: TCP}", peerPort)))
	appendTo(m.container, "volumeMounts",
		mustNode(fmt.Sprintf("{name: %s, mountPath: %s, readOnly: true}", secretName, secretMount)))
	appendTo(podSpec(m.workload), "volumes",
		mustNode(fmt.Sprintf("{name: %s, secret: {secretName: %s}}", secretName, secretName)))
	m.drain()
	return m.service(service, labels)
}

// drain adds a preStop hook that hands off the counters before a replica stops.
func (m *Manifest) drain() {
	if at(m.container, "lifecycle") == nil {
		set(m.container, "lifecycle", mustNode("{}"))
	}
	if l := at(m.container, "lifecycle"); at(l, "preStop") == nil {
		l.Style = 0
		set(l, "preStop", mustNode("{exec: {command: [/bin/keyward, drain]}}"))
	}
}

// service returns a headless Service that includes pods that are not ready, since members find each other before they
// are ready.
func (m *Manifest) service(name string, labels *yaml.Node) (*yaml.Node, error) {
	s := mustNode(fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %s}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  ports:
    - {name: gossip, port: %d, protocol: TCP}
    - {name: gossip-udp, port: %d, protocol: UDP}
    - {name: peer, port: %d, protocol: TCP}
`, name, gossipPort, gossipPort, peerPort))
	if ns := text(at(m.workload, "metadata", "namespace")); ns != "" {
		set(at(s, "metadata"), "namespace", scalar(ns))
	}
	b, err := yaml.Marshal(labels) // a copy: the same node twice would become an alias
	if err != nil {
		return nil, err
	}
	set(at(s, "spec"), "selector", mustNode(string(b)))
	return s, nil
}

func (m *Manifest) variables(vars [][2]string) {
	for _, v := range vars {
		m.add(v[0], quoted(v[1]), "value")
	}
}

// add adds a variable to the container, unless it is already set.
func (m *Manifest) add(name string, value *yaml.Node, field string) {
	if _, ok := m.Env.get(name); ok {
		return
	}
	v := mustNode("{}")
	v.Style = 0
	set(v, "name", scalar(name))
	set(v, field, value)
	appendTo(m.container, "env", v)
}

// set sets a key of a mapping. It replaces the value in place if the key exists.
func set(n *yaml.Node, key string, value *yaml.Node) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			value.LineComment = n.Content[i+1].LineComment
			n.Content[i+1] = value
			return
		}
	}
	n.Content = append(n.Content, scalar(key), value)
}

// appendTo appends to the sequence at a key, unless it has an element with the same name.
func appendTo(n *yaml.Node, key string, value *yaml.Node) {
	list := at(n, key)
	if list == nil || list.Kind != yaml.SequenceNode {
		list = &yaml.Node{Kind: yaml.SequenceNode}
		set(n, key, list)
	}
	for _, have := range list.Content {
		if text(at(have, "name")) == text(at(value, "name")) {
			return
		}
	}
	list.Content = append(list.Content, value)
}

func scalar(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: s} }

// quoted returns a string scalar, with quotes if it looks like a number, as the values of variables require.
func quoted(s string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s}
	if strings.Trim(s, "0123456789.") == "" {
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}

// mustNode parses YAML that this package has written.
func mustNode(text string) *yaml.Node {
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		panic(err)
	}
	return doc.Content[0]
}
