package migrate

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	yaml "go.yaml.in/yaml/v3"

	"github.com/keyward/keyward/internal/settings"
)

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s (-update writes it):\n%s", path, got)
	}
}

func manifest(t *testing.T, file, container string) *Manifest {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	m, err := ParseManifest(b, container)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Every variable of the service has a fate, which is the same as in settings.
func TestEveryVariableHasAFate(t *testing.T) {
	list := Env{}.Variables(true)
	if len(list) != len(settings.Table()) {
		t.Errorf("%d variables, settings has %d", len(list), len(settings.Table()))
	}
	for _, v := range settings.Table() {
		i := slices.IndexFunc(list, func(x VariableOutcome) bool { return x.Name == v.Name })
		if i < 0 {
			t.Errorf("%s is missing", v.Name)
			continue
		}
		honoured := v.Fate == settings.Honored || v.Fate == settings.Reread
		if got := list[i]; (got.Fate == native) != honoured || got.Note != v.Note || got.Set {
			t.Errorf("%+v, settings says %s", got, v.Fate)
		}
	}
	for _, name := range []string{
		"DOG_STATSD_MOGRIFIER_X_PATTERN", "DOG_STATSD_MOGRIFIER_X_NAME", "DOG_STATSD_MOGRIFIER_X_TAGS", "STATSD_PROTOCOL",
		"DD_ENTITY_ID", "DD_ENV", "DD_SERVICE", "DD_VERSION", "GOSTATS_FLUSH_INTERVAL_SECONDS", "GOSTATS_LOGGING_SINK_DISABLED", "OTEL_EXPORTER_OTLP_ENDPOINT",
	} {
		if fate, note := otherFate(name); fate == unknown || note == "" {
			t.Errorf("%s: %s %q", name, fate, note)
		}
	}
	for name, want := range map[string]string{"KEYWARD_JOIN": own, "POD_IP": own, "JAVA_OPTS": unknown, "DOG_STATSD_MOGRIFIER__X": unknown} {
		if got, _ := otherFate(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// deployment returns the deployment of the manifest in testdata.
func deployment(t *testing.T) *Deployment {
	t.Helper()
	m := manifest(t, "kubernetes.yaml", "")
	return &Deployment{Env: m.Env, Rules: m.Rules, Manifest: m, File: "kubernetes.yaml", Replicas: m.Replicas, Image: "ghcr.io/keyward/keyward:v1"}
}

func TestReport(t *testing.T) {
	d := deployment(t)
	if d.Manifest.Workload != "Deployment/ratelimit" || d.Replicas != 3 || len(d.Rules) != 1 || d.Manifest.Image != "envoyproxy/ratelimit:9d8d70a8" {
		t.Errorf("%+v", d.Manifest)
	}
	r := d.Plan(false)
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "report.json", append(b, '\n'))
	if bytes.Contains(b, []byte("hunter2")) {
		t.Error("the report contains a header's value")
	}
	fates := map[string]string{}
	for _, v := range r.Variables {
		fates[v.Name] = v.Fate
	}
	for name, want := range map[string]string{"LOG_LEVEL": native, "REDIS_AUTH": goesAway, "BACKEND_TYPE": noEffect, "JAVA_OPTS": unknown, "NEAR_LIMIT_RATIO": native} {
		if fates[name] != want {
			t.Errorf("%s: %q, want %s", name, fates[name], want)
		}
	}
	concerns := ""
	for _, x := range r.Differences {
		concerns += x.Concerns + " "
	}
	if !strings.Contains(concerns, "edge.tenant edge.tenant") { // a month, and a series for each value
		t.Errorf("differences concern %s", concerns)
	}
}

func TestPatched(t *testing.T) {
	for name, clean := range map[string]bool{"patched.yaml": false, "cleaned.yaml": true} {
		d := deployment(t)
		got, err := d.Manifest.Patched(d.Image, d.Replicas, clean)
		if err != nil {
			t.Fatal(err)
		}
		golden(t, name, got)
		if strings.Contains(string(got), "REDIS_") == clean {
			t.Errorf("%s: REDIS_ is there or not", name)
		}
		again, err := ParseManifest(got, "")
		if err != nil {
			t.Fatal(err)
		}
		if v, _ := again.Env.get("KEYWARD_JOIN"); v != "dns+ratelimit-gossip:7946" || again.Image != d.Image || again.object("Service", "edge", "ratelimit-gossip") == nil {
			t.Errorf("%s: join %q, image %s", name, v, again.Image)
		}
		twice, err := again.Patched(d.Image, d.Replicas, clean)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(twice), "KEYWARD_JOIN"); n != 1 {
			t.Errorf("patched twice it joins %d times", n)
		}
	}
}

// For one replica only the image changes.
func TestOneReplicaChangesItsImageOnly(t *testing.T) {
	before := deployment(t)
	same, err := before.Manifest.Patched("envoyproxy/ratelimit:9d8d70a8", 1, false)
	if err != nil {
		t.Fatal(err)
	}
	after, err := deployment(t).Manifest.Patched("ghcr.io/keyward/keyward:v1", 1, false)
	if err != nil {
		t.Fatal(err)
	}
	a, b := strings.Split(string(same), "\n"), strings.Split(string(after), "\n")
	changed := 0
	for i := range a {
		if a[i] != b[i] {
			changed++
		}
	}
	if len(a) != len(b) || changed != 1 {
		t.Errorf("%d lines became %d, of which %d changed", len(a), len(b), changed)
	}
}

func TestValues(t *testing.T) {
	d := deployment(t)
	got, err := d.Values()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "values.yaml", got)
	var v struct {
		ReplicaCount int               `yaml:"replicaCount"`
		Environment  map[string]string `yaml:"environment"`
		Rules        map[string]string `yaml:"rules"`
	}
	if err := yaml.Unmarshal(got, &v); err != nil {
		t.Fatal(err)
	}
	if v.Rules["config.yaml"] != string(d.Rules[0].Content) || v.ReplicaCount != 3 || v.Environment["NEAR_LIMIT_RATIO"] != "0.9" {
		t.Errorf("%+v", v)
	}
	for name := range v.Environment {
		if strings.HasPrefix(name, "REDIS_") || strings.HasPrefix(name, "RUNTIME_") {
			t.Errorf("%s is in the values", name)
		}
	}
}

func TestOtherFiles(t *testing.T) {
	m := manifest(t, "compose.yaml", "")
	if v, _ := m.Env.get("REDIS_URL"); v != "redis:6379" || len(m.Env) != 3 || m.Workload != "" {
		t.Errorf("compose: %+v", m.Env)
	}
	if _, err := m.Patched("x", 1, false); !errors.Is(err, errNoWorkload) {
		t.Errorf("compose is patched: %v", err)
	}
	m = manifest(t, "values.in.yaml", "")
	if v, _ := m.Env.get("BACKEND_TYPE"); v != "memcache" || len(m.Env) != 5 || m.Env[4].From != "Secret redis, key password" {
		t.Errorf("values: %+v", m.Env)
	}
	if _, err := ParseManifest([]byte("a: 1\n---\n- b\n"), ""); !errors.Is(err, errNoVariables) {
		t.Errorf("%v", err)
	}
	if _, err := ParseManifest([]byte("kind: Deployment\n"), "app"); err == nil {
		t.Error("a container that is not there")
	}
	list := "kind: List\nitems:\n  - kind: StatefulSet\n    metadata: {name: s}\n    spec: {template: {spec: {containers: [{name: x, image: a}, {name: y, image: b, command: [/bin/ratelimit]}]}}}\n"
	if m, err := ParseManifest([]byte(list), ""); err != nil || m.Workload != "StatefulSet/s" || m.Image != "b" || m.Replicas != 1 {
		t.Errorf("%+v %v", m, err)
	}
}

func TestEnvFile(t *testing.T) {
	e, err := ParseEnvFile("# old\n\nexport LOG_LEVEL=debug\nREDIS_AUTH='a=b'\nLOG_LEVEL=\"info\"\n")
	if v, _ := e.get("LOG_LEVEL"); err != nil || v != "info" || len(e) != 3 || e[1].Value != "a=b" {
		t.Errorf("%+v %v", e, err)
	}
	list := e.Variables(false)
	if len(list) != 2 || list[1].Value != "(not shown)" {
		t.Errorf("%+v", list)
	}
	if _, err := ParseEnvFile("LOG_LEVEL\n"); err == nil {
		t.Error("a line without =")
	}
}

func FuzzParseManifest(f *testing.F) {
	for _, name := range []string{"kubernetes.yaml", "compose.yaml", "values.in.yaml"} {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("kind: Pod\nspec: {containers: [{image: ratelimit, env: x, lifecycle: 3}]}"))
	f.Fuzz(func(_ *testing.T, b []byte) { // no file causes a panic
		m, err := ParseManifest(b, "")
		if err != nil {
			return
		}
		d := Deployment{Env: m.Env, Rules: m.Rules, Manifest: m, Replicas: 2}
		d.Plan(true)
		_, _ = d.Values()
		_, _ = m.Patched("x", 2, true)
	})
}
