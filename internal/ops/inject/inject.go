// Package inject adds a Keyward sidecar to the pods of Kubernetes manifests.
//
// It adds the same as the library chart keyward-lib: a native sidecar before all other init containers, its volumes,
// the label by which members find each other, and a termination grace period. Documents without pods stay unchanged,
// byte for byte. The others are formatted, but keep their order and comments.
package inject

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Options configure the sidecar. It refers to the objects of a release of the chart keyward in mode sidecar.
type Options struct {
	Release    string // full name of the release's objects; default keyward
	Image      string
	PullPolicy string // default IfNotPresent
	TLS        bool   // the release has certificates

	GossipSecret, TLSSecret, RulesConfigMap string // default: Release with the suffix -gossip, -tls or -rules

	CPU, MemoryRequest, Memory string // CPU request, memory request and memory limit; default 20m, 64Mi, 256Mi

	DataVolume string // where the journal is: emptyDir (default), hostPath, claim (of the StatefulSet, named keyward-data) or none
	DataSize   string // with emptyDir, the sizeLimit: twice the release's KEYWARD_DATA_SIZE; default 2Gi
	DataPath   string // with hostPath, the directory of the node; default /var/lib/keyward

	Federation       bool              // the release has federation.region
	AuthoritySecrets []AuthoritySecret // the release's federation.authorities with a secretName
	FederationPort   bool              // the release has federation.listen.enabled

	Module      string // version of the pods' Envoy, which loads the dynamic module, such as 1.40; empty: no module
	ModuleImage string // of deploy/module/Dockerfile
	ModuleEnvoy string // name of Envoy's container; default envoy

	EnvoyAdmin string   // host:port of the admin page of the pod's Envoy, which drains when the pod stops; empty: none
	Args       []string // additional flags of the sidecar
	Grace      int      // minimum termination grace period in seconds; default 60
}

// AuthoritySecret is the key of a Secret that contains the URL of a coordinator.
type AuthoritySecret struct{ Name, Secret, Key string }

// ParseAuthoritySecret reads NAME=SECRET/KEY.
func ParseAuthoritySecret(text string) (a AuthoritySecret, err error) {
	name, at, _ := strings.Cut(text, "=")
	secret, key, _ := strings.Cut(at, "/")
	if name == "" || secret == "" || key == "" {
		return a, fmt.Errorf("%q: want NAME=SECRET/KEY", text)
	}
	return AuthoritySecret{name, secret, key}, nil
}

// Names in pods.
const (
	memberLabel   = "keyward.io/member"
	containerName = "keyward"
	dataVolume    = "keyward-data"
)

// Inject adds the sidecar to every pod template in a file of YAML documents. The notes list the changes, and warn about
// what may not work. Inject is idempotent.
func Inject(text []byte, o Options) (out []byte, notes []string, err error) {
	if err := o.fill(); err != nil {
		return nil, nil, err
	}
	in := &injector{Options: o}
	var b bytes.Buffer
	for i, doc := range split(text) {
		changed, err := in.document(doc)
		if err != nil {
			return nil, nil, fmt.Errorf("document %d: %w", i+1, err)
		}
		b.Write(changed)
	}
	return b.Bytes(), in.notes, nil
}

func (o *Options) fill() error {
	for _, d := range []struct {
		v  *string
		or string
	}{{&o.Release, "keyward"}, {&o.PullPolicy, "IfNotPresent"}, {&o.CPU, "20m"}, {&o.MemoryRequest, "64Mi"}, {&o.Memory, "256Mi"},
		{&o.ModuleEnvoy, "envoy"}, {&o.DataVolume, "emptyDir"}, {&o.DataSize, "2Gi"}, {&o.DataPath, "/var/lib/keyward"}} {
		if *d.v == "" {
			*d.v = d.or
		}
	}
	for suffix, v := range map[string]*string{"-gossip": &o.GossipSecret, "-tls": &o.TLSSecret, "-rules": &o.RulesConfigMap} {
		if *v == "" {
			*v = o.Release + suffix
		}
	}
	if o.Grace == 0 {
		o.Grace = 60
	}
	if o.Image == "" {
		return errors.New("no image given")
	}
	if !slices.Contains([]string{"emptyDir", "hostPath", "claim", "none"}, o.DataVolume) {
		return fmt.Errorf("data volume %q: want emptyDir, hostPath, claim or none", o.DataVolume)
	}
	if o.Module != "" && o.ModuleImage == "" {
		return errors.New("no image of the module given")
	}
	_, err := o.GoMemLimit()
	return err
}

// split splits a file at its --- lines. Each belongs to the document after it.
func split(text []byte) (docs [][]byte) {
	start := 0
	for at := 0; at < len(text); {
		line := text[at:]
		if i := bytes.IndexByte(line, '\n'); i >= 0 {
			line = line[:i+1]
		}
		if at > start && bytes.HasPrefix(line, []byte("---")) && (len(line) == 3 || bytes.ContainsAny(line[3:4], " \t\r\n")) {
			docs, start = append(docs, text[start:at]), at
		}
		at += len(line)
	}
	return append(docs, text[start:])
}

type injector struct {
	Options
	notes []string
}

func (in *injector) note(format string, args ...any) {
	in.notes = append(in.notes, fmt.Sprintf(format, args...))
}

// document changes one document, or returns it unchanged.
func (in *injector) document(text []byte) ([]byte, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); errors.Is(err, io.EOF) || err == nil && len(doc.Content) == 0 {
		return text, nil
	} else if err != nil {
		return nil, err
	}
	n, err := in.object(doc.Content[0])
	if err != nil || n == 0 {
		return text, err
	}
	var b bytes.Buffer
	if bytes.HasPrefix(text, []byte("---")) {
		b.WriteString("---\n")
	}
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if compact(doc.Content[0]) {
		enc.CompactSeqIndent()
	}
	err = enc.Encode(&doc)
	return b.Bytes(), errors.Join(err, enc.Close())
}

// compact reports whether lists in the file are not indented below their key.
func compact(n *yaml.Node) bool {
	for i, c := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 1 && c.Kind == yaml.SequenceNode && c.Style&yaml.FlowStyle == 0 && len(c.Content) > 0 && c.Line > 0 {
			return c.Column == n.Content[i-1].Column
		}
		if compact(c) {
			return true
		}
	}
	return false
}

// object changes one object, and returns the number of its pod templates.
func (in *injector) object(o *yaml.Node) (n int, err error) {
	kind, name := text(get(o, "kind")), text(get(o, "metadata", "name"))
	switch kind {
	case "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job":
		return in.template(get(o, "spec", "template"), kind+" "+name)
	case "CronJob":
		return in.template(get(o, "spec", "jobTemplate", "spec", "template"), kind+" "+name)
	case "Pod":
		return in.template(o, kind+" "+name)
	case "EnvoyProxy":
		return in.envoyProxy(o, kind+" "+name)
	case "List":
		items := get(o, "items")
		if items == nil {
			return 0, nil
		}
		for _, item := range items.Content {
			m, err := in.object(item)
			if err != nil {
				return 0, err
			}
			n += m
		}
	}
	return n, nil
}

// template changes one pod template.
func (in *injector) template(t *yaml.Node, what string) (int, error) {
	spec := get(t, "spec")
	if spec == nil || spec.Kind != yaml.MappingNode {
		return 0, fmt.Errorf("%s has no pod spec", what)
	}
	in.warn(spec, what)
	in.setGracePeriod(spec, what)
	first := child(spec, "initContainers", yaml.SequenceNode)
	envoys := in.envoysOf(spec)
	if in.Module != "" && len(envoys) == 0 {
		return 0, fmt.Errorf("%s has no container %s that could load the module", what, in.ModuleEnvoy)
	}
	return 1, in.add(target{
		labels: child(child(t, "metadata", yaml.MappingNode), "labels", yaml.MappingNode), first: first,
		volumes: child(spec, "volumes", yaml.SequenceNode), envoys: envoys,
	}, what)
}

// target is where a pod template has what the sidecar needs.
type target struct {
	labels, volumes *yaml.Node
	first           *yaml.Node   // init containers
	envoys          []*yaml.Node // containers of Envoy
}

// add adds the sidecar, and the module if there is one.
func (in *injector) add(t target, what string) error {
	container, err := in.parse("sidecar.yaml")
	if err != nil {
		return err
	}
	volumes, err := in.parse("volumes.yaml")
	if err != nil {
		return err
	}
	set(t.labels, memberLabel, scalar(in.Release))
	remove(t.first, containerName)
	t.first.Content = slices.Insert(t.first.Content, 0, container)
	t.first.Style &^= yaml.FlowStyle
	for _, name := range []string{dataVolume, socketVolume, filesVolume} {
		remove(t.volumes, name)
	}
	for _, v := range volumes.Content {
		remove(t.volumes, text(get(v, "name")))
	}
	t.volumes.Content, t.volumes.Style = append(t.volumes.Content, volumes.Content...), t.volumes.Style&^yaml.FlowStyle
	in.note("%s: sidecar added", what)
	return in.addModule(t.first, t.envoys, what)
}

// setGracePeriod gives a pod enough time to hand off its counters.
func (in *injector) setGracePeriod(spec *yaml.Node, what string) {
	const key = "terminationGracePeriodSeconds"
	old := get(spec, key)
	if n, err := strconv.Atoi(text(old)); err == nil && n >= in.Grace {
		return
	}
	if old != nil {
		in.note("%s: %s is now %d instead of %s", what, key, in.Grace, old.Value)
	}
	set(spec, key, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: strconv.Itoa(in.Grace)})
}

// ports are the ports of the sidecar.
var ports = map[string]string{
	"8081": "the rate limit service", "8080": "/json and health checks", "6070": "the debug port",
	"8082": "the rate limit service for other pods", "7946": "gossip", "7947": "the peer protocol", "9090": "metrics",
}

// xdsPort is the port on which a sidecar may serve xDS. It does so only if a flag is set, so other containers may use
// the port.
const xdsPort = "18000"

// warn adds notes about settings of the pod that conflict with the sidecar.
func (in *injector) warn(spec *yaml.Node, what string) {
	if text(get(spec, "hostNetwork")) == "true" {
		in.note("WARNING: %s: with hostNetwork the ports are those of the node, so only one such pod fits on a node", what)
	}
	for _, list := range []string{"initContainers", "containers"} {
		all := get(spec, list)
		if all == nil {
			continue
		}
		for _, c := range all.Content {
			name, declared := text(get(c, "name")), get(c, "ports")
			if name == containerName || declared == nil {
				continue
			}
			for _, p := range declared.Content {
				port := text(get(p, "containerPort"))
				if port == xdsPort {
					in.note("WARNING: %s: container %s listens on %s, which the chart's NetworkPolicy blocks: list the pod's ports "+
						"in networkPolicy.appPorts",
						what, name, port)
				}
				if ports[port] != "" {
					in.note("WARNING: %s: container %s listens on %s, which the sidecar uses for %s: change one of them", what, name,
						port, ports[port])
				}
			}
		}
	}
}

// GoMemLimit returns GOMEMLIMIT: 90 % of the memory limit. The rest is for memory that the Go runtime does not count.
func (o *Options) GoMemLimit() (string, error) {
	units := map[string]float64{"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "k": 1e3, "M": 1e6, "G": 1e9}
	number := strings.TrimRight(o.Memory, "KMGki")
	n, err := strconv.ParseFloat(number, 64)
	unit, ok := units[o.Memory[len(number):]]
	if err != nil || !ok || n <= 0 {
		return "", fmt.Errorf("memory %q: want a number with Ki, Mi or Gi", o.Memory)
	}
	return fmt.Sprintf("%dMiB", int64(n*unit*0.9/(1<<20))), nil
}
