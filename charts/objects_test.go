package charts

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/keyward/keyward/internal/ops/inject"
)

// pod is a pod or a pod template in a rendering.
type pod struct {
	name       string
	labels     map[string]string
	containers []container
	volumes    map[string]volume
	token      bool     // an API server token is mounted
	appPorts   []string // application ports, PROTOCOL/PORT, open to all
}

type container struct {
	name    string
	command string
	args    []string
	mounts  []string // names of volumes
	secrets []string // Secrets used in environment variables
	ports   []string
}

// volume lists the Secrets of a volume.
type volume struct{ secrets []string }

// reserved are the ports on which the programs of the image may listen, declared or not.
var reserved = []string{"TCP/6070", "TCP/7946", "UDP/7946", "TCP/7947", "TCP/8080", "TCP/8081", "TCP/8082", "TCP/9090", "TCP/18000"}

// ports returns the ports to check: declared ports, and reserved ports if a program of the image runs.
func (p pod) ports() []string {
	set := map[string]bool{}
	for _, c := range p.containers {
		for _, port := range c.ports {
			set[port] = true
		}
		if c.command == "/bin/sidecar" || c.command == "/bin/xds" || c.command == "/bin/ratelimit" {
			for _, port := range reserved {
				set[port] = true
			}
		}
	}
	for _, port := range p.appPorts {
		set[port] = true
	}
	return slices.Sorted(maps.Keys(set))
}

func (p pod) runs(command string) bool {
	return slices.ContainsFunc(p.containers, func(c container) bool { return c.command == command })
}

// sidecar reports whether the pod has a member next to other containers.
func (p pod) sidecar() bool { return p.runs("/bin/sidecar") && len(p.containers) > 1 }

// podsOf lists the pods of a rendering's objects.
func podsOf(t *testing.T, objects []map[string]any) (all []pod) {
	t.Helper()
	for _, o := range objects {
		var template any
		switch o["kind"] {
		case "Pod":
			template = o
		case "Deployment", "StatefulSet", "DaemonSet", "Job":
			template = at(o, "spec", "template")
		case "CronJob":
			template = at(o, "spec", "jobTemplate", "spec", "template")
		default:
			continue
		}
		p := podOf(t, fmt.Sprintf("%v/%v", o["kind"], at(o, "metadata", "name")), template)
		for _, c := range p.containers {
			if c.name == "envoy" { // the demo Envoy represents the application
				p.appPorts = c.ports
			}
		}
		all = append(all, p)
	}
	return all
}

// podOf reads a pod template.
func podOf(t *testing.T, name string, template any) pod {
	t.Helper()
	var read struct {
		Metadata struct{ Labels map[string]string }
		Spec     struct {
			AutomountServiceAccountToken *bool          `yaml:"automountServiceAccountToken"`
			InitContainers               []rawContainer `yaml:"initContainers"`
			Containers                   []rawContainer
			Volumes                      []rawVolume
		}
	}
	remarshal(t, template, &read)
	p := pod{name: name, labels: read.Metadata.Labels, volumes: map[string]volume{}}
	p.token = read.Spec.AutomountServiceAccountToken == nil || *read.Spec.AutomountServiceAccountToken
	for _, v := range read.Spec.Volumes {
		p.volumes[v.Name] = v.read()
		p.token = p.token || slices.ContainsFunc(v.Projected.Sources, func(s rawSource) bool { return s.Token != nil })
	}
	for _, c := range append(read.Spec.InitContainers, read.Spec.Containers...) {
		p.containers = append(p.containers, c.read())
	}
	return p
}

type rawContainer struct {
	Name          string
	Command, Args []string
	Ports         []struct {
		ContainerPort int `yaml:"containerPort"`
		Protocol      string
	}
	VolumeMounts []struct{ Name string } `yaml:"volumeMounts"`
	Env          []struct {
		ValueFrom struct {
			SecretKeyRef struct{ Name string } `yaml:"secretKeyRef"`
		} `yaml:"valueFrom"`
	}
	EnvFrom []struct {
		SecretRef struct{ Name string } `yaml:"secretRef"`
	} `yaml:"envFrom"`
}

func (c rawContainer) read() container {
	out := container{name: c.Name, command: strings.Join(c.Command[:min(1, len(c.Command))], ""), args: c.Args}
	if len(c.Command) > 1 {
		out.args = append(slices.Clone(c.Command[1:]), c.Args...)
	}
	for _, p := range c.Ports {
		protocol := p.Protocol
		if protocol == "" {
			protocol = "TCP"
		}
		out.ports = append(out.ports, protocol+"/"+strconv.Itoa(p.ContainerPort))
	}
	for _, m := range c.VolumeMounts {
		out.mounts = append(out.mounts, m.Name)
	}
	for _, e := range c.Env {
		out.secrets = append(out.secrets, e.ValueFrom.SecretKeyRef.Name)
	}
	for _, e := range c.EnvFrom {
		out.secrets = append(out.secrets, e.SecretRef.Name)
	}
	out.secrets = slices.DeleteFunc(out.secrets, func(s string) bool { return s == "" })
	return out
}

type rawVolume struct {
	Name   string
	Secret struct {
		SecretName string `yaml:"secretName"`
	}
	Projected struct{ Sources []rawSource }
}

type rawSource struct {
	Secret struct{ Name string }
	Token  map[string]any `yaml:"serviceAccountToken"`
}

func (v rawVolume) read() (out volume) {
	names := []string{v.Secret.SecretName}
	for _, s := range v.Projected.Sources {
		names = append(names, s.Secret.Name)
	}
	out.secrets = slices.DeleteFunc(names, func(s string) bool { return s == "" })
	return out
}

// outsidePods returns the pods with members that are not objects of the chart: those of Envoy Gateway, and user pods
// with an injected sidecar.
func outsidePods(t *testing.T, a access, objects []map[string]any) (all []pod) {
	t.Helper()
	for _, o := range objects {
		if text, ok := at(o, "data", "values.yaml").(string); ok {
			var values map[string]any
			if err := yaml.Unmarshal([]byte(text), &values); err != nil {
				t.Fatal(err)
			}
			deployment := at(values, "config", "envoyGateway", "provider", "kubernetes", "rateLimitDeployment")
			c := maps.Clone(at(deployment, "container").(map[string]any))
			c["name"], c["command"], c["ports"] = "envoy-ratelimit", []string{"/bin/ratelimit"}, []any{map[string]any{"containerPort": 19001}}
			p := podOf(t, "Envoy Gateway's members", map[string]any{
				"metadata": map[string]any{"labels": at(deployment, "pod", "labels")},
				"spec":     map[string]any{"automountServiceAccountToken": false, "volumes": at(deployment, "pod", "volumes"), "containers": []any{c}},
			})
			all = append(all, p)
		}
	}
	if len(all) == 0 && slices.Contains(a.set, "mode=sidecar") {
		all = append(all, injected(t, a))
	}
	return all
}

// injected returns a user pod changed by keyward inject.
func injected(t *testing.T, a access) pod {
	t.Helper()
	secret := func(key string) string {
		for _, s := range a.set {
			if v, ok := strings.CutPrefix(s, key+"="); ok {
				return v
			}
		}
		return ""
	}
	out, _, err := inject.Inject([]byte("{kind: Pod, metadata: {name: shop}, spec: {automountServiceAccountToken: false, containers: [{name: shop, ports: [{containerPort: 3000}]}]}}"),
		inject.Options{Image: "keyward", TLS: !slices.Contains(a.set, "tls.mode=off"), TLSSecret: secret("tls.existingSecret")})
	if err != nil {
		t.Fatal(err)
	}
	p := podOf(t, "a pod with an injected sidecar", documents(t, "", out)[0])
	p.appPorts = []string{"TCP/3000", "TCP/80", "TCP/65535", "UDP/53"}
	if slices.ContainsFunc(a.set, func(s string) bool { return strings.HasPrefix(s, "networkPolicy.appPorts=") }) {
		p.appPorts = []string{"TCP/10000"}
		p.containers[1].ports = nil
	}
	return p
}

func remarshal(t *testing.T, from, into any) {
	t.Helper()
	b, err := yaml.Marshal(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(b, into); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
}

// policy is a NetworkPolicy.
type policy struct {
	selector map[string]string
	rules    []rule
}

type rule struct {
	From  []map[string]any
	Ports []struct {
		Port     any
		EndPort  int `yaml:"endPort"`
		Protocol string
	}
}

func policies(objects []map[string]any) (all []policy) {
	for _, o := range objects {
		if o["kind"] != "NetworkPolicy" {
			continue
		}
		var read struct {
			Spec struct {
				PodSelector struct {
					MatchLabels map[string]string `yaml:"matchLabels"`
				} `yaml:"podSelector"`
				PolicyTypes []string `yaml:"policyTypes"`
				Ingress     []rule
			}
		}
		b, _ := yaml.Marshal(o)
		if err := yaml.Unmarshal(b, &read); err != nil || !slices.Contains(read.Spec.PolicyTypes, "Ingress") {
			continue
		}
		all = append(all, policy{read.Spec.PodSelector.MatchLabels, read.Spec.Ingress})
	}
	return all
}

// reach lists the peers that may connect to a port by the rules of Kubernetes: all if no policy selects the pod,
// otherwise the union of what the selecting policies allow. It may be empty.
func reach(p pod, port string, all []policy) (who []string) {
	selected := false
	for _, policy := range all {
		if !matches(policy.selector, p.labels) {
			continue
		}
		selected = true
		for _, r := range policy.rules {
			if !r.has(port) {
				continue
			}
			if len(r.From) == 0 {
				return []string{everyone}
			}
			for _, peer := range r.From {
				who = append(who, canonicalJSON(peer))
			}
		}
	}
	if !selected {
		return []string{everyone}
	}
	slices.Sort(who)
	return slices.Compact(who)
}

// has reports whether the rule covers a port. A rule without ports covers all.
func (r rule) has(port string) bool {
	protocol, number, _ := strings.Cut(port, "/")
	n, _ := strconv.Atoi(number)
	for _, p := range r.Ports {
		first, ok := p.Port.(int)
		last := max(first, p.EndPort)
		if (p.Protocol == protocol || p.Protocol == "" && protocol == "TCP") && (!ok || first <= n && n <= last) {
			return true
		}
	}
	return len(r.Ports) == 0
}

func matches(selector, labels map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return true
}

// canonicalJSON returns a peer as JSON with sorted keys.
func canonicalJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
