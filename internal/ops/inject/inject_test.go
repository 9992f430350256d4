package inject

import (
	"bytes"
	"flag"
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "write the golden file")

var options = Options{Image: "ghcr.io/keyward/keyward:v0.1.0", TLS: true, EnvoyAdmin: "127.0.0.1:9901"}

func TestGolden(t *testing.T) {
	in, err := os.ReadFile("testdata/many.yaml")
	if err != nil {
		t.Fatal(err)
	}
	out, notes, err := Inject(in, options)
	if err != nil {
		t.Fatal(err)
	}
	const file = "testdata/many.golden.yaml"
	if *update {
		if err := os.WriteFile(file, out, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out, want) {
		t.Errorf("%s differs (go test ./internal/ops/inject -update):\n%s", file, out)
	}
	for _, want := range []string{
		"Deployment shop: terminationGracePeriodSeconds is now 60 instead of 30", "container app listens on 9090, which the sidecar uses for metrics",
		"CronJob report: sidecar added", "Pod lone: sidecar added", "Pod lone: with hostNetwork",
	} {
		if !strings.Contains(strings.Join(notes, "\n"), want) {
			t.Errorf("no note %q in %q", want, notes)
		}
	}

	again, _, err := Inject(out, options)
	if err != nil || !bytes.Equal(again, out) {
		t.Errorf("the second time: %v\n%s", err, again)
	}
}

// TestKept checks that documents without pods stay unchanged, and that the others keep their comments.
func TestKept(t *testing.T) {
	in, err := os.ReadFile("testdata/many.yaml")
	if err != nil {
		t.Fatal(err)
	}
	out, _, err := Inject(in, options)
	if err != nil {
		t.Fatal(err)
	}
	service, _, _ := bytes.Cut(in, []byte("\n---\n"))
	if !bytes.HasPrefix(out, service) || !bytes.HasSuffix(out, []byte("# nothing but a comment\n")) {
		t.Error("a document without pods was changed")
	}
	for _, comment := range []string{"# Envoy is in front", "# one a zone", "# migrates the database", "# pinned by the pipeline"} {
		if !bytes.Contains(out, []byte(comment)) {
			t.Errorf("lost: %s", comment)
		}
	}
	if a, b := bytes.Index(out, []byte("- name: keyward\n")), bytes.Index(out, []byte("- name: migrate")); a < 0 || a > b {
		t.Error("the sidecar is not the first init container")
	}
}

// TestUpdate checks that a new image replaces the old one, and that nothing else changes.
func TestUpdate(t *testing.T) {
	in, _ := os.ReadFile("testdata/many.golden.yaml")
	o := options
	o.Image = "ghcr.io/keyward/keyward:v0.2.0"
	out, _, err := Inject(in, o)
	if err != nil || !bytes.Equal(out, bytes.ReplaceAll(in, []byte("keyward:v0.1.0"), []byte("keyward:v0.2.0"))) {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestFaults(t *testing.T) {
	deployment := "kind: Deployment\nmetadata: {name: a}\nspec: {template: {spec: {containers: []}}}\n"
	for text, o := range map[string]Options{
		"kind: Deployment\nmetadata: {name: a}\n": options,
		"a: [":                  options,
		"kind: Pod\nspec: text": options,
		deployment:              {},
		deployment + "# two":    {Image: "x", Memory: "many"},
		deployment + "# three":  {Image: "x", Memory: "5Xi"},
		deployment + "# four":   {Image: "x", DataVolume: "pvc"},
	} {
		if out, _, err := Inject([]byte(text), o); err == nil {
			t.Errorf("%q: no error, %s", text, out)
		}
	}
	if out, notes, err := Inject([]byte("# nothing\n"), options); err != nil || len(notes) > 0 || string(out) != "# nothing\n" {
		t.Errorf("an empty file: %q, %v, %v", out, notes, err)
	}
}

// TestPorts checks the warnings about ports that the sidecar uses, or that the chart's NetworkPolicy blocks.
func TestPorts(t *testing.T) {
	for port, want := range map[string]string{"8081": "which the sidecar uses for the rate limit service", "18000": "list the pod's ports in networkPolicy.appPorts", "3000": ""} {
		_, notes, err := Inject([]byte("{kind: Pod, metadata: {name: a}, spec: {containers: [{name: app, ports: [{containerPort: "+port+"}]}]}}"), options)
		all := strings.Join(notes, "\n")
		if err != nil || strings.Contains(all, "WARNING") != (want != "") || !strings.Contains(all, want) {
			t.Errorf("port %s: %v\n%s", port, err, all)
		}
	}
}

// TestJournal checks where the sidecar keeps its journal, also if it was somewhere else before.
func TestJournal(t *testing.T) {
	const mount, flag, volume = "{name: keyward-data, mountPath: /var/lib/keyward}", "{name: KEYWARD_DATA, value: /var/lib/keyward}", "- name: keyward-data\n"
	pod := []byte("kind: Pod\nmetadata:\n  name: a\nspec:\n  containers: []\n")
	for _, c := range []struct {
		o      Options
		source string // of the volume; empty: the pod has none
		writes bool
	}{
		{Options{}, "emptyDir: {sizeLimit: 2Gi}", true},
		{Options{DataSize: "512Mi"}, "emptyDir: {sizeLimit: 512Mi}", true},
		{Options{DataVolume: "hostPath", DataPath: "/srv/keyward"}, `hostPath: {path: "/srv/keyward", type: Directory}`, true},
		{Options{DataVolume: "claim"}, "", true},
		{Options{DataVolume: "none"}, "", false},
	} {
		c.o.Image = "keyward"
		out, _, err := Inject(pod, c.o)
		if err != nil {
			t.Fatal(err)
		}
		pod = out // the next one replaces it
		text := string(out)
		if strings.Contains(text, mount) != c.writes || strings.Contains(text, flag) != c.writes {
			t.Errorf("%+v: want a journal: %v\n%s", c.o, c.writes, text)
		}
		if !strings.Contains(text, c.source) || strings.Count(text, volume) != min(1, len(c.source)) {
			t.Errorf("%+v: want the volume %q\n%s", c.o, c.source, text)
		}
	}
}

// TestModule checks that pods get the module and lose it again, in Deployments and in the EnvoyProxy of Envoy Gateway.
func TestModule(t *testing.T) {
	with := options
	with.Module, with.ModuleImage = "1.40", "ghcr.io/keyward/keyward-module:v0.1.0"
	for name, in := range map[string]string{
		"Deployment":                 "kind: Deployment\nmetadata:\n  name: gateway\nspec:\n  template:\n    spec:\n      containers:\n      - name: envoy\n        env:\n        - {name: A, value: b}\n",
		"EnvoyProxy":                 "apiVersion: gateway.envoyproxy.io/v1alpha1\nkind: EnvoyProxy\nmetadata:\n  name: eg\n",
		"DaemonSet of an EnvoyProxy": "apiVersion: gateway.envoyproxy.io/v1alpha1\nkind: EnvoyProxy\nmetadata:\n  name: eg\nspec:\n  provider:\n    kubernetes:\n      envoyDaemonSet:\n        name: edge\n",
	} {
		out, _, err := Inject([]byte(in), with)
		if err != nil {
			t.Fatal(err)
		}
		for part, want := range map[string]int{
			"name: keyward-module\n": 2, "keyward, module, --envoy, \"1.40\", --to, /modules]": 1, "value: /run/keyward-module/module.sock": 1,
			"{name: ENVOY_DYNAMIC_MODULES_SEARCH_PATH, value: /modules}": 1, "{name: keyward-modules, mountPath: /modules, readOnly: true}": 1,
			"{name: keyward-module, mountPath: /run/keyward, readOnly: true}": 1, "{name: keyward-module, mountPath: /run/keyward-module}": 1,
		} {
			if n := strings.Count(string(out), part); n != want {
				t.Errorf("%s: %d times %q, want %d\n%s", name, n, part, want, out)
			}
		}
		if strings.Index(string(out), "name: keyward-module\n") > strings.Index(string(out), "name: keyward\n") {
			t.Errorf("%s: the module's file is copied after the sidecar has started\n%s", name, out)
		}
		again, _, err := Inject(out, with)
		if err != nil || !bytes.Equal(again, out) {
			t.Errorf("%s, the second time: %v\n%s", name, err, again)
		}
		without, _, err := Inject(out, options)
		if err != nil || strings.Contains(string(without), "odule") {
			t.Errorf("%s, without the module again: %v\n%s", name, err, without)
		}
	}
	other := with
	other.ModuleEnvoy = "istio-proxy"
	for want, o := range map[string]Options{"has no container istio-proxy": other, "no image of the module": {Image: "x", Module: "1.40"}} {
		if _, _, err := Inject([]byte("kind: Pod\nspec: {containers: [{name: envoy}]}"), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// FuzzInject checks that Inject either fails or is idempotent for any YAML.
func FuzzInject(f *testing.F) {
	in, _ := os.ReadFile("testdata/many.yaml")
	f.Add(string(in))
	f.Add("kind: Pod\nspec: {volumes: [a], initContainers: [[]]}\n--- # x\nkind: Job\nspec: {template: {metadata: {labels: 3}, spec: {}}}")
	f.Fuzz(func(t *testing.T, text string) {
		once, _, err := Inject([]byte(text), options)
		if err != nil {
			return
		}
		twice, _, err := Inject(once, options)
		if err != nil {
			t.Fatalf("%v of\n%s", err, once)
		}
		var a, b yaml.Node
		if yaml.Unmarshal(once, &a) != nil || yaml.Unmarshal(twice, &b) != nil {
			t.Fatalf("no longer YAML:\n%s", twice)
		}
	})
}
