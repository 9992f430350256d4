package gateways

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/keyward/keyward/internal/lab"
)

// podded is a gateway whose pods can be given a sidecar and the dynamic module.
type podded interface {
	extensible

	// manifest returns the manifest that describes the pods of Envoy, and further arguments of keyward inject for it.
	manifest() (object, []string)

	// restartEnvoy replaces Envoy's pod by one that the changed manifest describes, or the former one if there is none. folders has
	// the folders of the volumes that are added, by name.
	restartEnvoy(changed object, folders map[string]string) error

	// envoyHost returns the host of Envoy's pod.
	envoyHost() string
}

// moduleVersion is the version of the Envoys of the gateways.
var moduleVersion = os.Getenv("KEYWARD_GATEWAYS_ENVOY_VERSION")

// moduleFolders runs what the init container runs, and returns the folders of the pod's volumes for the module. It skips the test if
// there is no file.
func moduleFolders(t *testing.T) map[string]string {
	t.Helper()
	from := os.Getenv("KEYWARD_MODULES")
	if from == "" {
		t.Skip("no dynamic module: scripts/gateways builds it with cargo")
	}
	folders := map[string]string{"keyward-modules": file("files", "modules"), "keyward-module": file("files", "module-socket")}
	for _, dir := range folders {
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.Chown(dir, keywardUser, keywardUser)); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command(filepath.Join(programs, "keyward"), "module", "--envoy", moduleVersion, "--from", from, "--to", folders["keyward-modules"]).CombinedOutput()
	if err != nil {
		t.Fatalf("keyward module: %v: %s", err, out)
	}
	return folders
}

// keywardUser is the user of the sidecar's container.
const keywardUser = 65532

// injected returns a manifest with what keyward inject adds.
func injected(manifest object, args ...string) (changed object, err error) {
	text, err := yaml.Marshal(manifest)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(filepath.Join(programs, "keyward"), append([]string{"inject", "-f", "-", "--release", noCallRelease, "--module", moduleVersion}, args...)...)
	cmd.Stdin = strings.NewReader(string(text))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, errors.Join(err, errors.New(stderr.String()))
	}
	return changed, yaml.Unmarshal(out, &changed)
}

// containerOf returns a container with this name anywhere in a manifest.
func containerOf(v any, name string) (c container, ok bool) {
	switch v := v.(type) {
	case object:
		if v["name"] == name && v["volumeMounts"] != nil {
			return c, decode(v, &c) == nil
		}
		for _, below := range v {
			if c, ok = containerOf(below, name); ok {
				return c, true
			}
		}
	case []any:
		for _, below := range v {
			if c, ok = containerOf(below, name); ok {
				return c, true
			}
		}
	}
	return c, false
}

// testModule has the gateway's Envoy spend leases of a sidecar in its pod through the dynamic module, by the resources as the tool
// prints them with --module-as and the pod as keyward inject makes it. No window gets more than the limit, and most hits need no call.
func testModule(t *testing.T, s *suite, g podded, as string) {
	folders := moduleFolders(t)
	objects, err := printNoCall(g, "--shape", "module", "--module-as", as)
	if err != nil {
		t.Fatal(err)
	}
	manifest, args := g.manifest()
	changed, err := injected(manifest, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.restartEnvoy(nil, nil); err != nil {
			t.Error(err)
		}
	})
	if err := g.restartEnvoy(changed, folders); err != nil {
		t.Fatal(err)
	}
	members := s.startWithSidecar(t, g, changed, folders)
	s.extendRoute(t, g, objects)
	s.awaitAnswer(t, "calls to the sidecar", "new-*", func(a answer) bool { return a.limit() == "400" })
	const windows, uncounted = 3, ".ratelimit.failure_mode_allowed"
	before, err := g.stat(t.Context(), uncounted)
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now().Truncate(noCallWindow).Add(noCallWindow)
	l := startWindows(s, begin, windows)
	l.wait()
	after, err := g.stat(t.Context(), uncounted)
	if err != nil {
		t.Fatal(err)
	}
	if l.uncounted = int(after - before); l.uncounted > 0 {
		t.Logf("Envoy admitted %d requests whose call failed", l.uncounted)
	}
	l.check(t, 0, windows)
	taken, err := members.sum(t.Context(), "keyward_module_taken_hits_total")
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for w, n := range l.admitted {
		total += n + l.turns[w]
	}
	if int(taken) < total/2 {
		t.Errorf("%v of %d admitted requests made no call", taken, total)
	}
	s.figure(t, "%d requests: %v admitted in windows of %d, %v of them without a call", l.sent, l.admitted, noCallLimit, taken)
}

// startWithSidecar starts two members of the release in pods of their own, and one in the pod of Envoy, as the manifest describes it.
func (s *suite) startWithSidecar(t *testing.T, g podded, manifest object, folders map[string]string) *cluster {
	t.Helper()
	w, volumes := s.limits(t, g)
	sidecar, ok := containerOf(manifest, "keyward")
	if !ok {
		t.Fatal("keyward inject has added no sidecar")
	}
	c := &cluster{workload: w, service: noCallRelease, volumes: volumes, programs: programs}
	t.Cleanup(func() { c.stopAll(t) })
	for range 2 {
		if _, err := c.add(); err != nil {
			t.Fatal(err)
		}
	}
	inPod := *c
	inPod.service, inPod.gossip, inPod.found, inPod.members = "unused", "unused-gossip", nil, nil
	inPod.env, inPod.extra, inPod.mounts = slices.Clone(w.env), []string{"PORT=18080"}, map[string]string{} // the gateway may listen on 8080
	for _, v := range sidecar.Env {
		if strings.HasPrefix(v.Name, "KEYWARD_MODULE_") {
			inPod.env = append(inPod.env, v)
		}
	}
	for _, m := range sidecar.VolumeMounts {
		inPod.mounts[m.MountPath] = m.Name
		if dir, ok := folders[m.Name]; ok {
			inPod.volumes[m.Name] = dir
		}
	}
	m, err := inPod.addTo(noCallRelease+"-sidecar", g.envoyHost())
	if err != nil {
		t.Fatal(err)
	}
	c.members = append(c.members, m)
	if err := errors.Join(c.publish(), c.awaitReady(t.Context())); err != nil {
		t.Fatal(err)
	}
	return c
}

// manifest implements podded: the Deployment of Istio's chart gateway, whose container Istio's webhook completes.
func (g *istio) manifest() (object, []string) {
	return object{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": object{"name": "istio-ingressgateway", "namespace": g.namespace},
		"spec": object{"template": object{"spec": object{"containers": []any{object{"name": "istio-proxy", "image": "auto"}}}}},
	}, []string{"--module-envoy", "istio-proxy"}
}

// restartEnvoy implements podded.
func (g *istio) restartEnvoy(changed object, folders map[string]string) error {
	g.podEnv, g.podMounts = nil, map[string]string{}
	if c, ok := containerOf(changed, "istio-proxy"); ok {
		for _, v := range c.Env {
			g.podEnv = append(g.podEnv, v.Name+"="+v.Value)
		}
		for _, m := range c.VolumeMounts {
			g.podMounts[m.MountPath] = folders[m.Name]
		}
	}
	err := g.data.stop(20 * time.Second)
	if err != nil {
		return err
	}
	g.data, err = g.startEnvoy(context.Background(), g.envoyHost()) // also when the test has ended
	return err
}

func (g *istio) envoyHost() string { return g.host.Load().(string) }

// manifest implements podded: the EnvoyProxy of the Gateway.
func (g *envoyGatewayKube) manifest() (object, []string) { return g.envoyProxy, nil }

// restartEnvoy implements podded. The control plane changes the Deployment of Envoy.
func (g *envoyGatewayKube) restartEnvoy(changed object, folders map[string]string) error {
	g.podFolders = folders
	if changed == nil {
		changed = g.envoyProxy
	}
	for _, name := range []string{noCallRelease + "-gossip", noCallRelease + "-tls"} { // of the sidecar, which the test starts with its own
		if err := g.kube.apply(object{"apiVersion": "v1", "kind": "Secret", "metadata": object{"name": name, "namespace": envoyGatewayNamespace}}); err != nil {
			return err
		}
	}
	if err := g.kube.apply(changed); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // also when the test has ended
	defer cancel()
	if err := lab.Await(ctx, "the changed Deployment of Envoy", func(ctx context.Context) error {
		c, _, err := g.deployment(ctx, envoyDeployment, "envoy")
		has := slices.ContainsFunc(c.Env, func(v envVar) bool { return v.Name == "ENVOY_DYNAMIC_MODULES_SEARCH_PATH" })
		if err == nil && has != (folders != nil) {
			err = fmt.Errorf("Envoy has the variables %v", c.Env)
		}
		return err
	}); err != nil {
		return err
	}
	err := g.data.stop(20 * time.Second)
	if err != nil {
		return err
	}
	g.data, err = g.startEnvoy(ctx, g.envoyHost())
	return err
}

func (g *envoyGatewayKube) envoyHost() string { return g.host.Load().(string) }
