package migrate

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	yaml "go.yaml.in/yaml/v3"
)

// of returns a deployment with the given manifest.
func of(t *testing.T, text string) *Deployment {
	t.Helper()
	m, err := ParseManifest([]byte(text), "")
	if err != nil {
		t.Fatal(err)
	}
	return &Deployment{Env: m.Env, Manifest: m, File: "f.yaml", Replicas: 1, Image: "x"}
}

const ratelimitPod = "kind: Pod\nmetadata: {name: ratelimit%s}\nspec: {containers: [{name: r, image: envoyproxy/ratelimit:1}]}\n---\n"

// TestEnvoysMayCall checks that the values open the ports to the Envoys in the file, and not to its other pods.
func TestEnvoysMayCall(t *testing.T) {
	for name, c := range map[string]struct {
		ours, envoy string // namespace of the service; the workload
		want        []string
	}{
		"selector":        {"edge", `{kind: Deployment, metadata: {namespace: in}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b, v: "1"}}, spec: {containers: [{image: "envoyproxy/envoy:v1@sha256:0"}]}}}}`, []string{"pods a=b of namespace in"}},
		"labels":          {"edge", `{kind: StatefulSet, metadata: {namespace: in}, spec: {selector: {matchExpressions: []}, template: {metadata: {labels: {a: b, v: "1"}}, spec: {containers: [{image: app}, {image: localhost:5000/envoy}]}}}}`, []string{"pods a=b,v=1 of namespace in"}},
		"pod, init":       {"edge", `{kind: Pod, metadata: {namespace: in, labels: {a: b}}, spec: {initContainers: [{image: app, command: [/usr/local/bin/envoy, -c]}]}}`, []string{"pods a=b of namespace in"}},
		"no labels":       {"edge", `{kind: Pod, metadata: {namespace: in}, spec: {containers: [{image: "istio/proxyv2:1"}]}}`, []string{"all pods of namespace in"}},
		"namespaceless":   {"", `{kind: Pod, metadata: {labels: {a: b}}, spec: {containers: [{image: envoy}]}}`, []string{"pods a=b of the release's namespace"}},
		"unknown where":   {"edge", `{kind: Pod, metadata: {labels: {a: b}}, spec: {containers: [{image: envoy}]}}`, nil},
		"all of anywhere": {"", `{kind: Pod, metadata: {}, spec: {containers: [{image: envoy}]}}`, nil},
		"another's":       {"edge", `{kind: Pod, metadata: {namespace: in}, spec: {containers: [{image: "envoyproxy/gateway:v1"}, {image: "envoyproxy/ratelimit:1"}, {image: "x/envoy-metrics:1"}]}}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			ours := ""
			if c.ours != "" {
				ours = ", namespace: " + c.ours
			}
			text := strings.Replace(ratelimitPod, "%s", ours, 1) + c.envoy + "\n---\n" + c.envoy
			var got []string
			for _, p := range of(t, text).envoys() {
				got = append(got, p.String())
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestUnknownEnvoysAreToBeFilledIn checks that values without an Envoy cannot be installed, and that the first step
// states that.
func TestUnknownEnvoysAreToBeFilledIn(t *testing.T) {
	for name, d := range map[string]*Deployment{
		"manifest": of(t, strings.Replace(ratelimitPod, "%s", ", namespace: edge", 1)), "environment": {EnvFile: "old.env", Replicas: 1},
	} {
		text, err := d.Values()
		if err != nil {
			t.Fatal(err)
		}
		if name == "environment" {
			golden(t, "unknown.yaml", text)
		}
		var v struct {
			NetworkPolicy struct {
				EnvoyFrom []any `yaml:"envoyFrom"`
			} `yaml:"networkPolicy"`
		}
		if err := yaml.Unmarshal(text, &v); err != nil {
			t.Fatal(err)
		}
		from := v.NetworkPolicy.EnvoyFrom
		if len(from) != 2 {
			t.Fatalf("%s: %+v may ask", name, from)
		}
		if _, text := from[0].(string); !text || typeOfPeers(t) != "object" {
			t.Errorf("%s: the chart's schema wants an %v, and takes %v for one", name, typeOfPeers(t), from[0])
		}
		first := d.steps()[0]
		if all := first.Title + strings.Join(first.Do, "\n"); !strings.Contains(all, "fill in networkPolicy.envoyFrom") || !strings.Contains(all, "failure_mode_deny: false") {
			t.Errorf("%s: the first step is %+v", name, first)
		}
	}
}

// typeOfPeers returns the type of a peer in networkPolicy.envoyFrom in the chart's schema.
func typeOfPeers(t *testing.T) any {
	t.Helper()
	b, err := os.ReadFile("../../../charts/keyward/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	type schema struct {
		Type       any
		Items      *schema
		Properties map[string]*schema
	}
	var s schema
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"networkPolicy", "envoyFrom"} {
		if s.Properties[name] == nil {
			t.Fatalf("the schema has no %s", name)
		}
		s = *s.Properties[name]
	}
	return s.Items.Type
}

// TestMirrorMayCall checks that `keyward mirror` can call the new service.
func TestMirrorMayCall(t *testing.T) {
	d := deployment(t)
	from, want := d.policy().EnvoyFrom, []string{"pods app=envoy of namespace ingress", "pods app=ratelimit-mirror of the release's namespace"}
	if fmt.Sprint(from) != fmt.Sprint(want) {
		t.Errorf("%v may call, want %v", from, want)
	}
	steps := d.steps()
	if !slices.Contains(steps[0].Do, "# networkPolicy.envoyFrom in values.yaml names Envoys: "+want[0]) {
		t.Errorf("the first step is %+v", steps[0])
	}
	for _, s := range steps {
		if i := slices.Index(s.Do, "helm -n edge install keyward charts/keyward -f values.yaml"); i >= 0 && strings.Contains(strings.Join(s.Do, "\n"), "labeled app=ratelimit-mirror") {
			return
		}
	}
	t.Errorf("no step installs the release where the mirror is: %+v", steps)
}
