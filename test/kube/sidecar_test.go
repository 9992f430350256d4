package kube

import (
	"strings"
	"testing"
	"time"
)

// TestSidecar installs sidecars in the pods of Envoys with Helm 4, and wants their pods to live as they should.
func TestSidecar(t *testing.T) {
	r := install(t, "helm4", "mode=sidecar")
	r.agree(t, 3)
	r.run(t, "test", "keyward", "--timeout", "1m")
	t.Run("Changes", func(t *testing.T) { changes(t, r, "resources.requests.cpu=60m", 7) }) // of members, and so of their Envoys
	t.Run("Order", func(t *testing.T) { order(t, r) })
	t.Run("Crash", func(t *testing.T) { crash(t, r) })
	t.Run("Job", func(t *testing.T) { job(t, r) })
	r.uninstall(t)
}

// TestDeployment installs a rate-limit service of its own with Helm 3, and Envoys that ask it. Then it kills all members, which have an
// emptyDir.
func TestDeployment(t *testing.T) {
	r := install(t, "helm3", "mode=deployment", "workload=Deployment")
	r.agree(t, 3)
	r.run(t, "test", "keyward", "--timeout", "1m")
	t.Run("Changes", func(t *testing.T) { // of members and of xDS servers, at the same time
		changes(t, r, "resources.requests.cpu=60m,xds.resources.requests.cpu=15m", 4)
	})
	t.Run("CountsOutliveContainers", func(t *testing.T) { outliveContainers(t, r, 4) })
	r.uninstall(t)
}

// changes sets values that have pods replaced, all members among them, and scales up from three, under load: no request is lost, and limits
// are exact. So many Envoys are to be seen meanwhile.
func changes(t *testing.T, r *release, replacing string, seen int) {
	e := watchEnvoys(t, r.namespace)
	l := startLoad(t, "http://keyward-envoy."+r.namespace+".svc.cluster.local/", 60)
	l.begin("first")
	time.Sleep(2 * time.Second)
	l.begin("rolled")
	r.upgrade(t, "replacing three members", replacing)
	r.agree(t, 3)
	l.begin("scaled")
	r.upgrade(t, "scaling from three to four", replacing, "replicaCount=4", "expect=3")
	r.agree(t, 4)
	l.begin("settled")
	time.Sleep(2 * time.Second)
	l.finish(t)
	exact(t, l, e, seen)
}

// order wants a pod's containers to start one after the other, the sidecar first, and to end in the opposite order.
func order(t *testing.T, r *release) {
	p := r.oneOf(t, "app.kubernetes.io/component=envoy")
	must(t, "delete", "pod", p.Metadata.Name, "--namespace", r.namespace, "--wait")
	begun, ended := events(t, p, "/tasks/start"), events(t, p, "/tasks/exit")
	if got := strings.Join(begun.names(), ", "); got != "keyward, envoy, app" {
		t.Errorf("started in the order %s", got)
	}
	if got := strings.Join(ended.names(), ", "); got != "app, envoy, keyward" {
		t.Errorf("ended in the order %s", got)
	}
	for _, e := range ended {
		if e.status != 0 {
			t.Errorf("%s ended with status %d", e.container, e.status)
		}
	}
	t.Logf("started %s; ended %s", begun, ended)
	r.agree(t, 4)
}

// crash kills a sidecar as the kernel would for want of memory: it alone is started again, and is a member again.
func crash(t *testing.T, r *release) {
	p := r.oneOf(t, "app.kubernetes.io/component=envoy")
	for _, c := range p.containers() {
		if c.Name == "keyward" {
			if _, err := ctr(t.Context(), "tasks", "kill", "--signal", "SIGKILL", c.id()); err != nil {
				t.Fatal(err)
			}
		}
	}
	begin := time.Now()
	r.eventually(t, "the sidecar alone to be started again", p.Metadata.Name, func(p object) bool {
		return p.restarts("keyward") == 1 && p.restarts("envoy") == 0 && p.restarts("app") == 0 && p.ready()
	})
	t.Logf("ready again after %.1f s", time.Since(begin).Seconds())
	r.agree(t, 4)
}
