package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/lab"
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

// keep writes what the namespace's pods said and how they are to the working directory, which stays when tests fail.
func keep(t *testing.T, namespace string) {
	dir := file("failed", namespace)
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
	if err := os.CopyFS(filepath.Join(dir, "logs"), os.DirFS("/var/log/pods")); err != nil { // of all namespaces, also of pods that are gone
		t.Log(err)
	}
	t.Logf("state and logs are in %s", dir)
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
	r := &release{helm: helm, namespace: newNamespace(t), values: []string{"--values", "testdata/values.yaml"}}
	for _, s := range set {
		r.values = append(r.values, "--set", s)
	}
	begin := time.Now()
	r.run(t, "install", append([]string{"keyward", chart, "--wait", "--timeout", "2m"}, r.values...)...)
	t.Logf("%s install --wait took %.1f s", helm, time.Since(begin).Seconds())
	return r
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
	r.run(t, "uninstall", "keyward", "--wait", "--timeout", "2m")
	kinds := strings.Fields(must(t, "api-resources", "--namespaced", "--verbs=list", "--output=name"))
	kinds = slices.DeleteFunc(kinds, func(k string) bool { return strings.HasPrefix(k, "events") || strings.HasSuffix(k, "metrics.k8s.io") })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := lab.Await(ctx, "nothing to be left", func(ctx context.Context) error { // pods and EndpointSlices go by themselves, a moment later
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

// object is what the tests read of a pod.
type object struct {
	Metadata struct {
		Name              string
		UID               string
		DeletionTimestamp string
		Labels            map[string]string
	}
	Status struct {
		Phase                 string
		PodIP                 string
		InitContainerStatuses []containerStatus
		ContainerStatuses     []containerStatus
	}
}

type containerStatus struct {
	Name         string
	ContainerID  string // containerd://ID
	RestartCount int
}

// pods lists the namespace's pods with these labels (`a=b,c=d`) that are not told to end.
func pods(ctx context.Context, namespace, labels string) ([]object, error) {
	out, err := kubectl(ctx, "get", "pods", "--namespace", namespace, "--selector", labels, "--output=json")
	if err != nil {
		return nil, err
	}
	list, err := readPods(out)
	return slices.DeleteFunc(list, func(p object) bool { return p.Metadata.DeletionTimestamp != "" || p.Status.PodIP == "" }), err
}

func readPods(text string) ([]object, error) {
	var list struct{ Items []object }
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, fmt.Errorf("read pods: %w", err)
	}
	return list.Items, nil
}

// members are the release's pods with a sidecar.
func (r *release) members(ctx context.Context) ([]object, error) {
	return pods(ctx, r.namespace, "keyward.io/member=keyward")
}

// agree waits until n members and all xDS servers hold one ring of them and the same rules, with nothing left to hand over.
func (r *release) agree(t testing.TB, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := lab.Await(ctx, fmt.Sprintf("%d members to agree", n), func(ctx context.Context) error {
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
