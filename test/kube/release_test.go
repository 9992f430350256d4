package kube

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

const chart = "../../charts/keyward"

// release is the chart, installed in a namespace of its own that admits restricted pods alone.
type release struct {
	helm      string // helm3 or helm4
	namespace string
	values    []string // --set and --values of every install and upgrade
}

// newNamespace makes one that is named for the test and gone when the test ends; when it fails, its pods' logs are kept before.
func newNamespace(t *testing.T) string {
	t.Helper()
	name := strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(strings.TrimPrefix(t.Name(), "Test")))
	must(t, "create", "namespace", name)
	must(t, "label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
	t.Cleanup(func() {
		if t.Failed() {
			keep(t, name)
		}
		_, err := kubectl(context.Background(), "delete", "namespace", name, "--wait=false")
		if err != nil {
			t.Error(err)
		}
	})
	return name
}

// must runs kubectl and returns its output.
func must(t testing.TB, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	out, err := kubectl(ctx, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// keep writes how the namespace's objects are to the working directory, which stays when tests fail; the first time counts.
func keep(t *testing.T, namespace string) {
	dir := file("failed", namespace)
	if exists(dir) {
		return
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Error(err)
		return
	}
	for name, args := range map[string][]string{
		"objects.yaml": {"get", "all,configmap,networkpolicy", "-o", "yaml"},
		"pods.txt":     {"describe", "pods"},
		"events.txt":   {"get", "events", "--sort-by=.lastTimestamp"},
	} {
		out, err := kubectl(context.Background(), append([]string{"--namespace", namespace}, args...)...)
		_ = os.WriteFile(filepath.Join(dir, name), []byte(out+errorText(err)), 0o644)
	}
	t.Logf("state is in %s, what all pods said in %s", dir, file("logs"))
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// install installs the chart and waits until everything is ready.
func install(t *testing.T, helm string, set ...string) *release {
	t.Helper()
	r := &release{helm: helm, namespace: newNamespace(t)}
	r.values = []string{"--values", "testdata/values.yaml", "--set-file", "envoy.config=" + patient(t, r.namespace, set)}
	for _, s := range set {
		r.values = append(r.values, "--set", s)
	}
	begin := time.Now()
	r.run(t, "install", append([]string{"keyward", chart, "--wait", "--timeout", "2m"}, r.values...)...)
	t.Logf("%s install --wait took %.1f s", helm, time.Since(begin).Seconds())
	return r
}

// patient writes the chart's configuration of Envoy with times for a machine on which everything shares a few cores: when the first try of
// a request comes too late, an owner has counted it and its successor counts it again.
func patient(t *testing.T, namespace string, set []string) (path string) {
	t.Helper()
	shape := "owner-direct"
	if slices.Contains(set, "envoy.shape=plain") {
		shape = "plain"
	}
	b, err := os.ReadFile(filepath.Join(chart, "files", "envoy", shape+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer(" timeout: 0.1s", " timeout: 2s", "max_interval: 0.04s", "max_interval: 0.8s",
		"xds.keyward.invalid", "keyward-xds."+namespace+".svc", "rls.keyward.invalid", "127.0.0.1").Replace(string(b))
	if !strings.Contains(text, " timeout: 2s") {
		t.Fatalf("the timeout of %s.yaml is not what it was", shape)
	}
	path = filepath.Join(t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// run runs helm in the release's namespace.
func (r *release) run(t testing.TB, command string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	out, err := run(ctx, append([]string{tool(r.helm), "--kubeconfig", file("kubeconfig"), "--namespace", r.namespace, command}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// upgrade changes values on top of those of the installation and waits until all pods are replaced.
func (r *release) upgrade(t testing.TB, what string, set ...string) {
	t.Helper()
	args := append([]string{"keyward", chart, "--wait", "--timeout", "3m"}, r.values...)
	for _, s := range set {
		args = append(args, "--set", s)
	}
	begin := time.Now()
	r.run(t, "upgrade", args...)
	t.Logf("%s took %.1f s", what, time.Since(begin).Seconds())
}

// uninstall removes the release and wants nothing of it to be left.
func (r *release) uninstall(t *testing.T) {
	t.Helper()
	if t.Failed() {
		keep(t, r.namespace)
	}
	r.run(t, "uninstall", "keyward", "--wait", "--timeout", "2m")
	kinds := strings.Fields(must(t, "api-resources", "--namespaced", "--verbs=list", "--output=name"))
	kinds = slices.DeleteFunc(kinds, func(k string) bool { return strings.HasPrefix(k, "events") || strings.HasSuffix(k, "metrics.k8s.io") })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := await(ctx, "nothing to be left", func(ctx context.Context) error { // pods and EndpointSlices are deleted a moment later
		out, err := kubectl(ctx, "get", strings.Join(kinds, ","), "--namespace", r.namespace, "--output=name", "--ignore-not-found")
		if err != nil {
			return err
		}
		left := slices.DeleteFunc(strings.Fields(out), func(o string) bool { return o == "configmap/kube-root-ca.crt" || o == "serviceaccount/default" })
		if len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// members are the release's pods with a sidecar.
func (r *release) members(ctx context.Context) ([]object, error) {
	return pods(ctx, r.namespace, "keyward.io/member=keyward")
}

// agree waits until n members and all xDS servers hold one ring of them and the same rules, with nothing left to handoff.
func (r *release) agree(t testing.TB, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := await(ctx, fmt.Sprintf("%d members to agree", n), func(ctx context.Context) error {
		members, err := r.members(ctx)
		if err != nil {
			return err
		}
		if len(members) != n {
			return fmt.Errorf("there are %d", len(members))
		}
		xds, err := pods(ctx, r.namespace, "app.kubernetes.io/component=xds")
		if err != nil {
			return err
		}
		prints := map[string]bool{}
		for _, p := range append(members, xds...) {
			v, err := lab.Cluster(ctx, p.Status.PodIP+":9090")
			if err != nil {
				return err
			}
			if len(v.Ring.Members) != n || !v.Joined || v.Ring.Disagreement+v.Rules.Disagreement > 0 {
				return fmt.Errorf("%s: joined %v, ring of %v, %d disagree on it, %d on the rules", p.Metadata.Name, v.Joined, v.Ring.Members, v.Ring.Disagreement, v.Rules.Disagreement)
			}
			prints[v.Ring.Fingerprint] = true
		}
		if len(prints) != 1 {
			return fmt.Errorf("%d rings", len(prints))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// oneOf is a pod with these labels.
func (r *release) oneOf(t testing.TB, labels string) object {
	t.Helper()
	list, err := pods(t.Context(), r.namespace, labels)
	if err != nil || len(list) == 0 {
		t.Fatalf("pods with %s: %d, %v", labels, len(list), err)
	}
	return list[0]
}

// eventually waits until a pod of the release is so.
func (r *release) eventually(t testing.TB, what, name string, so func(object) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := await(ctx, what, func(ctx context.Context) error {
		list, err := pods(ctx, r.namespace, "")
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(list, func(p object) bool { return p.Metadata.Name == name && so(p) }) {
			return fmt.Errorf("pods: %+v", list)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
