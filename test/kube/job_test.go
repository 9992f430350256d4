package kube

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/lab"
)

// job runs a Job whose pod has the sidecar of the library chart: it completes although the sidecar would run for ever, and what it
// counted stays with the others.
func job(t *testing.T, r *release) {
	dir := t.TempDir()
	for from, to := range map[string]string{"testdata/job": dir, filepath.Join(chart, "charts", "keyward-lib"): filepath.Join(dir, "charts", "keyward-lib")} {
		if err := os.CopyFS(to, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	begin := time.Now()
	r.run(t, "install", "job", dir, "--set", "image="+keywardImage)
	must(t, "wait", "job/asks", "--namespace", r.namespace, "--for=condition=complete", "--timeout=90s")
	t.Logf("complete after %.1f s", time.Since(begin).Seconds())
	said := must(t, "logs", "job/asks", "--namespace", r.namespace, "--container", "asks")
	if strings.Count(said, "OK") != 3 {
		t.Errorf("the job was told:\n%s", said)
	}
	r.agree(t, 4)
	members, err := r.members(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, err := lab.CounterOf(t.Context(), members[0].Status.PodIP+":9090", "example", "api_key", "of-a-job")
	if err != nil || c.Count != 3 {
		t.Errorf("%d hits are counted of the job's 3, %v", c.Count, err)
	}
	r.run(t, "uninstall", "job", "--wait")
}
