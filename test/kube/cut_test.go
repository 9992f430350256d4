package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// TestCut cuts one pod of three off the others, though not off its clients: every request is answered, what is admitted stays within the bound
// that `keyward bounds` states, and when the cut is over limits are exact again.
func TestCut(t *testing.T) {
	r := install(t, "helm4", "mode=sidecar", "envoy.shape=plain")
	r.agree(t, 3)
	e := watchEnvoys(t, r.namespace)
	const rate = 120
	l := startLoad(t, "http://keyward-envoy."+r.namespace+".svc.cluster.local/", rate)
	l.begin("before")
	time.Sleep(2 * time.Second)
	p := r.oneOf(t, "app.kubernetes.io/component=envoy")
	cut(t, p, "-A")
	l.begin("during")
	given := time.Now()
	r.givenUp(t, p)
	t.Logf("the others gave the pod up after %.1f s", time.Since(given).Seconds())
	time.Sleep(3 * time.Second)
	l.begin("parted")
	time.Sleep(3 * time.Second)
	cut(t, p, "-D")
	begin := time.Now()
	r.agree(t, 3)
	t.Logf("one ring again %.1f s after the cut", time.Since(begin).Seconds())
	l.finish(t)
	l.audit(t, bound(t, r, "the cluster is partitioned (share)"))
	e.audit(t, 3)

	healed := startLoad(t, l.url, rate)
	healed.begin("after")
	time.Sleep(2 * time.Second)
	healed.finish(t)
	if missing := healed.audit(t, 0); missing != 0 {
		t.Errorf("after the cut %d hits of the limits are missing", missing)
	}
	r.uninstall(t)
}

// givenUp waits until the others' ring is without the pod, and wants the pod itself still to run.
func (r *release) givenUp(t *testing.T, lost object) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err := await(ctx, "the others to give the pod up", func(ctx context.Context) error {
		members, err := r.members(ctx)
		if err != nil {
			return err
		}
		if len(members) != 3 {
			return fmt.Errorf("%d members run", len(members))
		}
		for _, p := range members {
			v, err := lab.Cluster(ctx, p.Status.PodIP+":9090")
			if err != nil {
				return err
			}
			if p.Metadata.UID != lost.Metadata.UID && slices.Contains(v.Ring.Members, lost.Metadata.Name) {
				return fmt.Errorf("%s has a ring of %v", p.Metadata.Name, v.Ring.Members)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// cut adds (-A) or deletes (-D) the rules in the pod's network namespace that drop what comes from other pods and from Services; the node,
// where the kubelet and the clients are, stays in reach.
func cut(t *testing.T, p object, action string) {
	t.Helper()
	for _, rule := range [][]string{
		{"INPUT", "--source", podGateway, "--jump", "ACCEPT"},
		{"INPUT", "--source", podRange + "," + serviceNet, "--jump", "DROP"},
		{"OUTPUT", "--destination", podGateway, "--jump", "ACCEPT"},
		{"OUTPUT", "--destination", podRange + "," + serviceNet, "--jump", "DROP"},
	} {
		if _, err := inside(t.Context(), p, append([]string{"iptables", "--wait", action}, rule...)...); err != nil {
			t.Fatal(err)
		}
	}
}

// bound is a row of the output of `keyward bounds` for the rules of the release: the most hits above the limit that this event may add.
func bound(t *testing.T, r *release, event string) int {
	t.Helper()
	rules := filepath.Join(t.TempDir(), "shop.yaml")
	text := must(t, "get", "configmap", "keyward-rules", "--namespace", r.namespace, "--output", `jsonpath={.data.shop\.yaml}`)
	if err := os.WriteFile(rules, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	const perKey = "120" // all of the load
	out, err := run(t.Context(), filepath.Join(images, "keyward"), "bounds", rules, "--members", "3", "--rate", perKey, "--output", "json")
	if err != nil {
		t.Fatal(err)
	}
	var table struct {
		Rules []struct {
			Bounds []struct {
				Event string
				Over  int
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &table); err != nil {
		t.Fatal(err)
	}
	for _, b := range table.Rules[0].Bounds {
		if b.Event == event {
			t.Logf("bound of %q: %d", event, b.Over)
			return b.Over
		}
	}
	t.Fatalf("keyward bounds knows no %q", event)
	return 0
}
