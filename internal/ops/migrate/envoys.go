package migrate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	yaml "go.yaml.in/yaml/v3"
)

// peer is a NetworkPolicyPeer: pods that may ask.
type peer struct {
	NamespaceSelector *selector `yaml:"namespaceSelector,omitempty"`
	PodSelector       *selector `yaml:"podSelector,omitempty"`
}

// selector is a LabelSelector.
type selector struct {
	MatchLabels map[string]string `yaml:"matchLabels"`
}

// networkPolicy is the value of this name of charts/keyward.
type networkPolicy struct {
	EnvoyFrom []any `yaml:"envoyFrom"` // of peer, or fillIn
}

const (
	namespaceLabel = "kubernetes.io/metadata.name" // Kubernetes sets it on every namespace
	// fillIn stands for peers that are not known. It is not a peer, so the chart's schema has Helm refuse the values before anything
	// is installed. The API server would be too late: Helm installs the rest of a release whose policy is refused.
	fillIn = "fill in the Envoys that ask, such as {namespaceSelector: {matchLabels: {" + namespaceLabel + ": NAMESPACE}}}"
)

func inNamespace(name string) *selector {
	return &selector{MatchLabels: map[string]string{namespaceLabel: name}}
}

// mirror is the peer by which `keyward mirror` asks, as docs/migration.md labels its pods.
func mirror() peer {
	return peer{PodSelector: &selector{MatchLabels: map[string]string{"app": "ratelimit-mirror"}}}
}

// envoys returns the Envoys among the workloads of the file, each once. Those whose namespace cannot be known are left out.
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
			continue // a peer without a namespace means the release's, which is the workload's
		}
		if !slices.ContainsFunc(found, func(q peer) bool { return q.String() == p.String() }) {
			found = append(found, p)
		}
	}
	return found
}

// runsEnvoy reports whether a container is Envoy: by its image, that of Istio included, or by its command.
func runsEnvoy(c *yaml.Node) bool {
	image, _, _ := strings.Cut(text(at(c, "image")), "@")
	base, _, _ := strings.Cut(image[strings.LastIndexByte(image, '/')+1:], ":")
	if base == "envoy" || base == "proxyv2" || strings.Contains(image, "envoyproxy/envoy") {
		return true
	}
	command := items(at(c, "command"))
	return len(command) > 0 && (command[0].Value == "envoy" || strings.HasSuffix(command[0].Value, "/envoy"))
}

// podLabels selects the pods of a workload: by its own selector, or else by their labels. It is nil when they have none.
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

// String returns what a peer selects, in words.
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

// policy names who may ask the new service: the mirror and the Envoys of the file. Where the file has none, fillIn is in their place.
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

// envoysStep names the Envoys before anything is installed.
func (d *Deployment) envoysStep() MigrationStep {
	s := MigrationStep{
		Title: "First name the Envoys. The chart closes the rate-limit ports to pods that networkPolicy.envoyFrom does not name. With failure_mode_deny: false, Envoy's default, an Envoy that cannot ask lets requests through, uncounted.",
		Do:    []string{"keyward migrate " + d.source() + " --values values.yaml"},
		Back:  []string{"# nothing to undo"},
	}
	if found := d.envoys(); len(found) > 0 {
		for _, p := range found {
			s.Do = append(s.Do, "# networkPolicy.envoyFrom in values.yaml names Envoys: "+p.String())
		}
		s.Do = append(s.Do, "# add any other Envoys that ask the old service")
	} else {
		s.Do = append(s.Do, "# fill in networkPolicy.envoyFrom in values.yaml: no Envoy was found. Until you do, Helm refuses the values")
	}
	s.Do = append(s.Do,
		"# it also names the mirror of the steps below: "+mirror().String(),
		"kubectl get pods --all-namespaces --show-labels | grep -i envoy   # lists candidates")
	return s
}
