package kube

import (
	"testing"
	"time"
)

// TestSidecar installs sidecars in the pods of Envoys, replaces all pods and scales up under load: no request is lost, and each limit is
// admitted to the hit.
func TestSidecar(t *testing.T) {
	r := install(t, "helm4", "mode=sidecar")
	r.agree(t, 3)
	e := watchEnvoys(t, r.namespace)
	l := startLoad(t, "http://keyward-envoy."+r.namespace+".svc.cluster.local/", 150)
	l.begin("first")
	time.Sleep(2 * time.Second)
	l.begin("rolled")
	r.upgrade(t, "replacing three pods", "podAnnotations.round=second")
	r.agree(t, 3)
	l.begin("scaled")
	r.upgrade(t, "scaling from three to four", "podAnnotations.round=second", "replicaCount=4", "expect=3")
	r.agree(t, 4)
	l.begin("settled")
	time.Sleep(2 * time.Second)
	l.finish(t)
	l.audit(t, 0)
	e.audit(t, 7)
	r.uninstall(t)
}
