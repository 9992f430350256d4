package charts

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/keyward/keyward/envoy/snippet"
	"github.com/keyward/keyward/internal/ops/inject"
)

// moduleValues are those of a demo Envoy with the dynamic module.
var moduleValues = append(slices.Clone(given), renderings["sidecar-module"]...)

// initContainer returns a container of a template that starts before others.
func initContainer(t *testing.T, spec any, name string) any {
	t.Helper()
	all, _ := at(spec, "initContainers").([]any)
	for _, c := range all {
		if at(c, "name") == name {
			return c
		}
	}
	t.Fatalf("no init container %s", name)
	return nil
}

// mountsOf returns the directories of a container, by the volume that is mounted there.
func mountsOf(c any) map[string]string {
	dirs := map[string]string{}
	list, _ := at(c, "volumeMounts").([]any)
	for _, m := range list {
		dirs[at(m, "name").(string)] = at(m, "mountPath").(string)
	}
	return dirs
}

// envOf returns the variables of a container that have a value.
func envOf(c any) map[string]string {
	values := map[string]string{}
	list, _ := at(c, "env").([]any)
	for _, e := range list {
		if v, ok := at(e, "value").(string); ok {
			values[at(e, "name").(string)] = v
		}
	}
	return values
}

// checkModulePod requires that the pod's Envoy finds the file for its version and opens the sidecar's socket, in a volume which only
// the two have, and that it cannot give orders to the sidecar.
func checkModulePod(t *testing.T, name string, spec any, envoyConfig, version string) {
	t.Helper()
	setup, sidecar, envoy := initContainer(t, spec, "keyward-module"), initContainer(t, spec, "keyward"), initContainer(t, spec, "envoy")
	if at(setup, "restartPolicy") != nil || at(setup, "image") != "registry.example/keyward-module:v1" {
		t.Errorf("%s: the init container does not end, or has another image: %v", name, setup)
	}
	words, _ := at(setup, "command").([]any)
	dir := mountsOf(setup)["keyward-modules"]
	if want := []any{"/bin/keyward", "module", "--envoy", version, "--to", dir}; !slices.Equal(words, want) || dir == "" {
		t.Errorf("%s: command %v, want %v", name, words, want)
	}
	if search := envOf(envoy)["ENVOY_DYNAMIC_MODULES_SEARCH_PATH"]; search == "" || search != mountsOf(envoy)["keyward-modules"] {
		t.Errorf("%s: Envoy looks for modules in %q and has them in %q", name, search, mountsOf(envoy)["keyward-modules"])
	}
	file, err := snippet.ModuleFor(version)
	if library := strings.TrimSuffix(strings.TrimPrefix(file.Name(), "lib"), ".so"); err != nil || !strings.Contains(envoyConfig, "{name: "+library+", ") {
		t.Errorf("%s: Envoy's configuration does not load %s: %v", name, library, err)
	}
	socket := envOf(sidecar)["KEYWARD_MODULE_SOCKET"]
	if filepath.Dir(socket) != mountsOf(sidecar)["keyward-module"] || envOf(sidecar)["KEYWARD_MODULE_SOCKET_MODE"] != "0666" {
		t.Errorf("%s: the sidecar's socket is %q with mode %q", name, socket, envOf(sidecar)["KEYWARD_MODULE_SOCKET_MODE"])
	}
	seen := filepath.Join(mountsOf(envoy)["keyward-module"], filepath.Base(socket))
	if !strings.Contains(envoyConfig, `\"socket\":\"`+seen+`\"`) {
		t.Errorf("%s: Envoy's configuration does not connect to %s", name, seen)
	}
	if mountsOf(envoy)["keyward-run"] != "" {
		t.Errorf("%s: Envoy has the sidecar's admin socket", name)
	}
	checkModuleVolumes(t, name, spec)
}

// checkModuleVolumes requires that the pod has the volumes, and that no other container mounts them.
func checkModuleVolumes(t *testing.T, name string, spec any) {
	t.Helper()
	volumes, _ := at(spec, "volumes").([]any)
	for _, volume := range []string{"keyward-module", "keyward-modules"} {
		if !slices.ContainsFunc(volumes, func(v any) bool { return at(v, "name") == volume && at(v, "emptyDir") != nil }) {
			t.Errorf("%s: no volume %s", name, volume)
		}
	}
	others, _ := at(spec, "containers").([]any)
	for _, c := range others {
		if dirs := mountsOf(c); dirs["keyward-module"] != "" || dirs["keyward-modules"] != "" || envOf(c)["ENVOY_DYNAMIC_MODULES_SEARCH_PATH"] != "" {
			t.Errorf("%s: container %v mounts %v", name, at(c, "name"), dirs)
		}
	}
}

// TestModuleDemo checks the pods of the demo Envoy with the module: by default, and with another version of Envoy.
func TestModuleDemo(t *testing.T) {
	own, err := os.ReadFile("../envoy/snippet/testdata/module-several.yaml") // for 1.38
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(config, own, 0o600); err != nil {
		t.Fatal(err)
	}
	for version, binary := range helms(t) {
		for envoy, set := range map[string][]string{
			"1.40":   {"workload=Deployment"},
			"1.38.3": {"workload=Deployment", "module.envoyVersion=1.38.3", "envoy.image=envoyproxy/envoy:distroless-v1.38.3", "file:envoy.config=" + config},
		} {
			out, err := render(t, binary, append(slices.Clone(moduleValues), set...)...)
			if err != nil {
				t.Fatal(err)
			}
			objects := documents(t, version, out)
			text, _ := at(object(t, objects, "ConfigMap", "keyward-envoy"), "data", "envoy.yaml").(string)
			checkModulePod(t, version+", Envoy "+envoy, at(object(t, objects, "Deployment", "keyward-envoy"), "spec", "template", "spec"), text, envoy)
		}
	}
}

// TestInjectModule requires that keyward inject adds the same for the module as the chart's template.
func TestInjectModule(t *testing.T) {
	var want any
	for _, d := range documents(t, "", read(t, "testdata/sidecar-module.yaml")) {
		if d["kind"] == "StatefulSet" {
			want = at(d, "spec", "template", "spec")
		}
	}
	out, _, err := inject.Inject([]byte("{kind: Pod, metadata: {name: a}, spec: {containers: [{name: envoy}]}}"), inject.Options{
		Image: "ghcr.io/keyward/keyward:v0.1.0", Module: "1.40", ModuleImage: "registry.example/keyward-module:v1", TLS: true,
		EnvoyAdmin: "127.0.0.1:9901", CPU: "50m", MemoryRequest: "128Mi", Memory: "512Mi",
	})
	if err != nil {
		t.Fatal(err)
	}
	pod := documents(t, "", out)[0]["spec"]
	for _, name := range []string{"keyward-module", "keyward"} {
		if got, want := initContainer(t, pod, name), initContainer(t, want, name); !reflect.DeepEqual(got, want) {
			t.Errorf("the container is\n%v\nthe chart's\n%v", got, want)
		}
	}
	envoy, ours := at(pod, "containers").([]any)[0], initContainer(t, want, "envoy")
	for volume, dir := range mountsOf(envoy) {
		if mountsOf(ours)[volume] != dir {
			t.Errorf("Envoy mounts %s at %s, the chart's at %s", volume, dir, mountsOf(ours)[volume])
		}
	}
	const variable = "ENVOY_DYNAMIC_MODULES_SEARCH_PATH"
	if len(mountsOf(envoy)) != 2 || envOf(envoy)[variable] != envOf(ours)[variable] {
		t.Errorf("Envoy has %v and %v", mountsOf(envoy), envOf(envoy))
	}
	volumes, _ := at(want, "volumes").([]any)
	for _, v := range at(pod, "volumes").([]any) {
		if !slices.ContainsFunc(volumes, func(w any) bool { return reflect.DeepEqual(v, w) }) {
			t.Errorf("the chart has no volume %v", v)
		}
	}
}

// TestModuleLibrary renders the example for users' own charts in the library's comment.
func TestModuleLibrary(t *testing.T) {
	comment := string(read(t, "keyward/charts/keyward-lib/templates/_sidecar.tpl"))
	_, example, ok := strings.Cut(comment, "with the same dict everywhere:\n\n")
	example, _, end := strings.Cut(example, "*/}}")
	if !ok || !end {
		t.Fatal("the comment of the library has no example")
	}
	dir := filepath.Join(t.TempDir(), "shop")
	if err := os.CopyFS(filepath.Join(dir, "charts", "keyward-lib"), os.DirFS("keyward/charts/keyward-lib")); err != nil {
		t.Fatal(err)
	}
	pod := strings.Replace(example, "      initContainers:", "apiVersion: v1\nkind: Pod\nmetadata: {name: shop}\nspec:\n      containers: [{name: shop}]\n      initContainers:", 1)
	for file, text := range map[string]string{
		"Chart.yaml":         "{apiVersion: v2, name: shop, version: 0.1.0}",
		"templates/pod.yaml": pod,
	} {
		file = filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found := helms(t)
	for _, version := range slices.Sorted(maps.Keys(found)) {
		out, err := helm(t, found[version], "template", "keyward", dir)
		if err != nil {
			t.Fatalf("%v\n%s", err, pod)
		}
		var object map[string]any
		if err := yaml.Unmarshal(out, &object); err != nil {
			t.Fatal(err)
		}
		checkModulePod(t, "the library with "+version, object["spec"], string(read(t, "keyward/files/envoy/module.yaml")), "1.40")
		for fault, c := range map[string][2]string{
			"want a version in quotes": {`"moduleEnvoy" "1.40"`, `"moduleEnvoy" 1.40`},
		} {
			if err := os.WriteFile(filepath.Join(dir, "templates", "pod.yaml"), []byte(strings.Replace(pod, c[0], c[1], 1)), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := helm(t, found[version], "template", "keyward", dir); err == nil || !strings.Contains(err.Error(), fault) {
				t.Errorf("%s: %v, want %s", version, err, fault)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "templates", "pod.yaml"), []byte(pod), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
