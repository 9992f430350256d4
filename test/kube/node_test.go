package kube

import (
	"testing"
	"time"
)

// TestNode runs one pod.
func TestNode(t *testing.T) {
	out, err := kubectl(t.Context(), "run", "first", "--image="+podImage, "--image-pull-policy=Never", "--", "serve", ":8000")
	t.Log(out, err)
	begin := time.Now()
	out, err = kubectl(t.Context(), "wait", "pod/first", "--for=condition=Ready", "--timeout=30s")
	t.Log(out, err, time.Since(begin))
	out, err = kubectl(t.Context(), "get", "pod", "-o", "wide")
	t.Log(out, err)
	out, err = kubectl(t.Context(), "logs", "first")
	t.Log(out, err)
}
