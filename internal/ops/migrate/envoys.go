package migrate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	yaml "go.yaml.in/yaml/v3"
)

// peer is a NetworkPolicyPeer: pods that may call the service.
type peer struct {
	NamespaceSelector *selector `yaml:"namespaceSelector,omitempty"`
	PodSelector       *selector `yaml:"podSelector,omitempty"`
}

// selector is a LabelSelector.
type selector struct {
	MatchLabels map[string]string `yaml:"matchLabels"`
}

// networkPolicy is the value networkPolicy of charts/keyward.
type networkPolicy struct {
	EnvoyFrom []any `yaml:"envoyFrom"` // of peer, or fillIn
}

const (
	namespaceLabel = "kubernetes.io/metadata.name" // Kubernetes sets it on every namespace
	// fillIn is a placeholder for unknown peers. It is not a valid peer, so Helm rejects the values by the chart's
	// schema before it installs anything. A rejection by the API server would be too late: Helm would install the rest
	// of the release.
	fillIn = "fill in the Envoys that call the service, such as {namespaceSelector: {matchLabels: {" + namespaceLabel + ": NAMESPACE}}}"
)

func inNamespace(name string) *selector {
	return &selector{MatchLabels: map[string]string{namespaceLabel: name}}
}

// mirror returns the peer of `keyward mirror`, with the labels that docs/migration.md uses.
func mirror() peer {
	return peer{PodSelector: &selector{MatchLabels: map[string]string{"app": "ratelimit-mirror"}}}
}

// envoys returns the Envoys among the workloads in the file, each once. It leaves out those with an unknown namespace.
func (d *Deployment) envoys() (found []peer) {
	if d.Manifest == nil {
		return nil
	}
	for _, doc := range d.Manifest.docs {
		spec := podSpec(doc)
		if !slices.ContainsFunc(append(items(at(spec, "containers")), items(at(spec, "initContainers"))...), runsEnvoy) {
			continue
		}
		p := peer{PodSelector: podLabels(doc)}
		if ns := text(at(doc, "metadata", "namespace")); ns != "" {
			p.NamespaceSelector = inNamespace(ns)
		} else if p.PodSelector == nil || d.namespace() != "" {
			continue // a peer without a namespace is in the release's namespace, which is that of the workload
		}
		if !slices.ContainsFunc(found, func(q peer) bool { return q.String() == p.String() }) {
			found = append(found, p)
		}
	}
	return found
}

// runsEnvoy reports whether a container runs Envoy, judging by its image (including Istio's) or its command.
func runsEnvoy(c *yaml.Node) bool {
	image, _, _ := strings.Cut(text(at(c, "image")), "@")
	base, _, _ := strings.Cut(image[strings.LastIndexByte(image, '/')+1:], ":")
	if base == "envoy" || base == "proxyv2" || strings.Contains(image, "envoyproxy/envoy") {
		return true
	}
	command := items(at(c, "command"))
	return len(command) > 0 && (command[0].Value == "envoy" || strings.HasSuffix(command[0].Value, "/envoy"))
}

// podLabels returns a selector for the pods of a workload: its own, or else the labels of its pods. It is nil if there
// are none.
func podLabels(doc *yaml.Node) *selector {
	for _, n := range []*yaml.Node{at(doc, "spec", "selector", "matchLabels"), at(doc, "spec", "template", "metadata", "labels")} {
		if s := labels(n); s != nil {
			return s
		}
	}
	if text(at(doc, "kind")) == "Pod" {
		return labels(at(doc, "metadata", "labels"))
	}
	return nil
}

func labels(n *yaml.Node) *selector {
	if n == nil || n.Kind != yaml.MappingNode || len(n.Content) == 0 {
		return nil
	}
	s := &selector{MatchLabels: map[string]string{}}
	for i := 0; i+1 < len(n.Content); i += 2 {
		s.MatchLabels[n.Content[i].Value] = text(n.Content[i+1])
	}
	return s
}

// String describes what a peer selects.
func (p peer) String() string {
	pods, where := "all pods", "the release's namespace"
	if p.PodSelector != nil {
		var list []string
		for _, k := range slices.Sorted(maps.Keys(p.PodSelector.MatchLabels)) {
			list = append(list, k+"="+p.PodSelector.MatchLabels[k])
		}
		pods = "pods " + strings.Join(list, ",")
	}
	if p.NamespaceSelector != nil {
		where = "namespace " + p.NamespaceSelector.MatchLabels[namespaceLabel]
	}
	return fmt.Sprintf("%s of %s", pods, where)
}

// policy returns the peers that may call the new service: the mirror and the Envoys in the file, or fillIn if there are
// none.
func (d *Deployment) policy() networkPolicy {
	var from []any
	for _, p := range d.envoys() {
		from = append(from, p)
	}
	if len(from) == 0 {
		from = append(from, fillIn)
	}
	return networkPolicy{EnvoyFrom: append(from, mirror())}
}

// envoysStep names the Envoys. It comes before the installation.
func (d *Deployment) envoysStep() MigrationStep {
	s := MigrationStep{
		Title: "Name the Envoys. The chart blocks the rate limit ports for pods that are not in networkPolicy.envoyFrom. " +
			"With failure_mode_deny: false, which is Envoy's default, an Envoy that cannot call the service admits requests " +
			"uncounted.",
		Do:   []string{"keyward migrate " + d.source() + " --values values.yaml"},
		Back: []string{"# nothing to undo"},
	}
	if found := d.envoys(); len(found) > 0 {
		for _, p := range found {
			s.Do = append(s.Do, "# networkPolicy.envoyFrom in values.yaml names Envoys: "+p.String())
		}
		s.Do = append(s.Do, "# add any other Envoys that call the old service")
	} else {
		s.Do = append(s.Do,
			"# fill in networkPolicy.envoyFrom in values.yaml: no Envoy was found. Until you do, Helm refuses the values")
	}
	s.Do = append(s.Do,
		"# it also names the mirror that is used in the steps below: "+mirror().String(),
		"kubectl get pods --all-namespaces --show-labels | grep -i envoy   # lists candidates")
	return s
}
