package charts

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const everyone = "everyone"

// access is the expected access to each port in one rendering.
type access struct {
	set       []string // values
	namespace string   // of the release; empty: envoy-gateway-system, where every preset may be installed
	askers    []string // clients of 8081, 8082, 8080 and 18000, in addition to `helm test`
	http      bool     // 8080 is open to them, too
	metrics   []string // clients of 9090
	closed    bool     // the user's policies cover the ports of applications
	tests     bool     // a pod for `helm test` exists
}

// gatewayPeers maps a preset to its implied peers, as in the policies.
var gatewayPeers = map[string][]string{
	"envoy-gateway":    {inNamespace("envoy-gateway-system")},
	"envoy-ai-gateway": {inNamespace("envoy-gateway-system")},
	"istio":            {inNamespace("envoy-gateway-system")}, // the namespace of the release in this test
	"contour":          {inNamespace("projectcontour")},
	"kgateway":         {inNamespace("kgateway-system")},
}

// variants are combined with every mode and preset: each source of certificates, with and without the chart's own
// Envoys.
var variants = map[string][]string{
	"generate":     {"tls.mode=generate"},
	"demo":         {"tls.mode=generate", "envoy.enabled=true"},
	"off":          {"tls.mode=off", "envoy.enabled=true", "test.enabled=false"},
	"cert-manager": {"tls.mode=cert-manager", "tls.issuerRef.name=shared", "service.tls=true", "service.clientCertificates=true"},
	"secret":       {"tls.mode=secret", "tls.existingSecret=members", "tls.xdsSecret=xds", "tls.envoySecret=envoys"},
}

// cases returns all renderings of the test: every mode with every preset in every variant, the golden renderings, the
// commands in the documents, and the values for access.
func cases(t *testing.T) map[string]access {
	t.Helper()
	all := map[string]access{}
	for _, mode := range []string{"deployment", "sidecar", "daemonset"} {
		for _, preset := range []string{"envoy", "envoy-gateway", "envoy-ai-gateway", "istio", "contour", "kgateway"} {
			for name, set := range variants {
				all[mode+"/"+preset+"/"+name] = access{set: append([]string{"mode=" + mode, "preset=" + preset}, set...)}
			}
		}
	}
	for name, set := range renderings {
		all["golden/"+name] = access{set: append(slices.Clone(given), set...)}
	}
	for name, set := range documented(t) {
		all["document/"+name] = set
	}
	edge := `{"namespaceSelector":{"matchLabels":{"edge":"yes"}}}`
	all["openToCluster"] = access{set: []string{"networkPolicy.openToCluster=true"}, askers: []string{everyone}}
	all["sidecar/openToCluster"] = access{set: []string{"mode=sidecar", "networkPolicy.openToCluster=true"}, askers: []string{everyone}}
	all["none"] = access{set: []string{"tls.mode=off", "test.enabled=false"}}
	all["http"] = access{set: []string{"service.http=true", "networkPolicy.envoyFrom[0].namespaceSelector.matchLabels.edge=yes"}, askers: []string{edge}, http: true}
	all["sidecar/named"] = access{set: []string{"mode=sidecar", "networkPolicy.openAppPorts=false", "networkPolicy.envoyFrom[0].ipBlock.cidr=10.0.0.0/8"},
		askers: []string{`{"ipBlock":{"cidr":"10.0.0.0/8"}}`}, closed: true}
	all["regions"] = access{set: append([]string{"mode=sidecar", "federation.listen.enabled=true", "tls.mode=off", "networkPolicy.regionsFrom[0].ipBlock.cidr=10.2.0.0/16"}, regions...)}
	all["coordinator without regions"] = access{set: append([]string{"mode=coordinator", "coordinator.store.memory=true", "tls.mode=off"}, layout...)}
	all["metricsFrom"] = access{set: []string{"networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.edge=yes"}, metrics: []string{edge}}
	all["istio-ingress"] = access{set: []string{"preset=istio"}, namespace: "istio-ingress", askers: []string{inNamespace("istio-ingress")}}
	all["another Envoy Gateway"] = access{set: []string{"preset=envoy-gateway", "gateway.allowOtherNamespace=true"}, namespace: "eg", askers: []string{inNamespace("eg")}}
	all["gateway.namespaces"] = access{set: []string{"preset=kgateway", "gateway.namespaces={edge}"}}
	for name, a := range all {
		all[name] = a.complete()
	}
	return all
}

// complete adds the clients that the values imply.
func (a access) complete() access {
	has := func(s string) bool { return slices.Contains(a.set, s) }
	implied := []string{}
	for _, s := range a.set {
		if names, ok := strings.CutPrefix(s, "gateway.namespaces={"); ok {
			implied = append(implied, inNamespace(strings.TrimSuffix(names, "}")))
		}
	}
	for preset, peers := range gatewayPeers {
		if has("preset="+preset) && !slices.Contains(a.set, "gateway.namespaces={edge}") {
			if (preset == "istio" || preset == "envoy-gateway") && a.namespace != "" {
				peers = []string{inNamespace(a.namespace)}
			}
			implied = append(implied, peers...)
		}
	}
	if slices.Contains(a.set, "networkPolicy.envoyFrom[0].namespaceSelector.matchLabels.edge=yes") {
		implied = append(implied, `{"namespaceSelector":{"matchLabels":{"edge":"yes"}}}`)
	}
	name := "keyward"
	if has("fullnameOverride=limits") {
		name = "limits"
	}
	if has("mode=sidecar") {
		implied = append(implied, membersOf(name))
	} else if has("envoy.enabled=true") {
		implied = append(implied, component("envoy"))
	}
	if !slices.Contains(a.askers, everyone) {
		a.askers = append(a.askers, implied...)
	}
	a.tests = !has("test.enabled=false") && !has("preset=envoy-gateway") && !has("preset=envoy-ai-gateway") // without rules
	if a.metrics == nil {
		a.metrics = []string{everyone}
	}
	return a
}

func inNamespace(name string) string {
	return fmt.Sprintf(`{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":%q}}}`, name)
}

func membersOf(release string) string {
	return fmt.Sprintf(`{"podSelector":{"matchLabels":{"keyward.io/member":%q}}}`, release)
}

func component(name string) string {
	return fmt.Sprintf(`{"podSelector":{"matchLabels":{"app.kubernetes.io/component":%q,"app.kubernetes.io/instance":"keyward","app.kubernetes.io/name":"keyward"}}}`, name)
}

// TestPolicies renders every mode, preset and example. It fails if a port of Keyward is open to a pod that is not
// listed, if a port of an application is closed, or if a container reads another program's Secret.
func TestPolicies(t *testing.T) {
	found := helms(t)
	version := slices.Sorted(maps.Keys(found))[0] // TestRenderings requires equal output of all versions
	for name, a := range cases(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // Helm takes nearly all the time
			out, err := renderIn(t, found[version], a.namespace, a.set...)
			if err != nil {
				t.Fatal("does not render")
			}
			objects := documents(t, name, out)
			all := append(podsOf(t, objects), outsidePods(t, a, objects)...)
			if len(all) == 0 {
				t.Fatal("no pod is rendered")
			}
			for _, p := range all {
				a.checkPorts(t, p, policies(objects))
				checkSecrets(t, p)
			}
			checkRoles(t, objects)
		})
	}
}

// checkPorts compares the actual with the expected clients of each port of a pod.
func (a access) checkPorts(t *testing.T, p pod, all []policy) {
	t.Helper()
	for _, port := range p.ports() {
		got := reach(p, port, all)
		want := a.want(p, port)
		if !slices.Equal(got, want) {
			t.Errorf("%s: port %s is open to %v, want %v", p.name, port, got, want)
		}
	}
}

// want lists the expected clients of a port of a pod.
func (a access) want(p pod, port string) []string {
	release := p.labels["keyward.io/member"]
	member, xds := release != "", p.runs("/bin/xds")
	cluster := []string{membersOf(release), component("xds")}
	if xds {
		release = "keyward"
		if slices.Contains(a.set, "fullnameOverride=limits") {
			release = "limits"
		}
		cluster = []string{membersOf(release), component("xds")}
	}
	var who []string
	switch {
	case port == "TCP/9090" && (member || xds), port == "TCP/19001" && member:
		who = a.metrics
	case port == "TCP/7946" && (member || xds), port == "UDP/7946" && (member || xds), port == "TCP/7947" && member:
		who = cluster
	case port == "TCP/8082" && member, port == "TCP/8081" && member && (!p.sidecar() || slices.Contains(a.set, "preset=envoy-gateway")), port == "TCP/8080" && member && a.http:
		who = slices.Clone(a.askers)
		if a.tests && !slices.Contains(who, everyone) {
			who = append(who, component("test"))
		}
	case port == "TCP/7948" && (member || p.runs("/bin/coordinator")):
		if slices.Contains(a.set, "networkPolicy.regionsFrom[0].ipBlock.cidr=10.2.0.0/16") {
			who = []string{`{"ipBlock":{"cidr":"10.2.0.0/16"}}`}
		}
	case port == "TCP/9090" && p.runs("/bin/coordinator"):
		who = a.metrics
	case port == "TCP/18000" && xds:
		who = slices.Clone(a.askers)
		if !slices.Contains(who, everyone) {
			who = append(who, membersOf(release))
		}
	case slices.Contains(p.appPorts, port) && !a.closed:
		who = []string{everyone}
	}
	slices.Sort(who)
	return slices.Compact(who)
}

// documented returns every `helm install` of this chart in the documents.
func documented(t *testing.T) map[string]access {
	t.Helper()
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(rules, read(t, "keyward/files/example.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	var pages []string
	for _, pattern := range []string{"../*.md", "../docs/*.md", "../docs/gateways/*.md", "keyward/README.md"} {
		files, _ := filepath.Glob(pattern)
		pages = append(pages, files...)
	}
	all := map[string]access{}
	for _, page := range pages {
		if filepath.Base(page) == "CHANGELOG.md" {
			continue
		}
		text := strings.ReplaceAll(string(read(t, page)), "\\\n", " ")
		for line := range strings.Lines(text) {
			command, _, _ := strings.Cut(line, "#")
			words := strings.Fields(command)
			if len(words) < 4 || words[0] != "helm" || words[1] != "install" || words[3] != "charts/keyward" {
				continue
			}
			all[filepath.Base(page)+fmt.Sprint(len(all))] = flagsOf(t, words[4:], rules)
		}
	}
	if len(all) < 8 {
		t.Errorf("only %d commands found in the documents", len(all))
	}
	return all
}

// flagsOf reads the flags of a command.
func flagsOf(t *testing.T, words []string, rules string) (a access) {
	t.Helper()
	for i := 0; i < len(words); i++ {
		value := func() string { i++; return strings.Trim(words[i], `'"`) }
		switch words[i] {
		case "--namespace", "-n":
			a.namespace = value()
		case "--set":
			a.set = append(a.set, strings.Split(value(), ",")...)
		case "--set-file":
			key, _, _ := strings.Cut(value(), "=")
			a.set = append(a.set, "file:"+strings.ReplaceAll(key, `\\`, `\`)+"="+rules)
		case "--values":
			value()
			a.set = append(a.set, layout...)
		case "--timeout":
			value()
		case "--create-namespace", "--wait":
		default:
			t.Errorf("the documents have the flag %s, which this test does not know", words[i])
		}
	}
	return a
}
