package kube

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// job runs two Jobs at once, one with the sidecar of the library chart, one with that of `keyward inject`: both complete although a sidecar
// would run for ever, and what they counted stays with the others.
func job(t *testing.T, r *release) {
	begin := time.Now()
	r.run(t, "install", "job", withLibrary(t), "--set", "image="+keywardImage)
	injected, err := run(t.Context(), filepath.Join(images, "keyward"), "inject", "--filename", "testdata/injected.yaml", "--image", keywardImage)
	if err != nil {
		t.Fatal(err)
	}
	manifest := filepath.Join(t.TempDir(), "injected.yaml")
	if err := os.WriteFile(manifest, []byte(injected), 0o600); err != nil {
		t.Fatal(err)
	}
	must(t, "apply", "--namespace", r.namespace, "--filename", manifest)
	for name, key := range map[string]string{"asks": "of-a-job", "injected": "of-an-injected-job"} {
		must(t, "wait", "job/"+name, "--namespace", r.namespace, "--for=condition=complete", "--timeout=90s")
		t.Logf("%s is complete after %.1f s", name, time.Since(begin).Seconds())
		said := must(t, "logs", "job/"+name, "--namespace", r.namespace, "--container", "asks")
		if strings.Count(said, "OK") != 3 {
			t.Errorf("%s got:\n%s", name, said)
		}
		stays := r.oneOf(t, "app.kubernetes.io/component=envoy") // the pods of Jobs are members, too, and may be gone before this is read
		c, err := lab.CounterOf(t.Context(), stays.Status.PodIP+":9090", "example", "api_key", key)
		if err != nil || c.Count != 3 {
			t.Errorf("%d hits are counted of the 3 of %s, %v", c.Count, name, err)
		}
	}
	r.agree(t, 4)
	must(t, "delete", "--namespace", r.namespace, "--filename", manifest)
	r.run(t, "uninstall", "job", "--wait")
}

// withLibrary is a copy of testdata/job with the library chart in it.
func withLibrary(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for from, to := range map[string]string{"testdata/job": dir, filepath.Join(chart, "charts", "keyward-lib"): filepath.Join(dir, "charts", "keyward-lib")} {
		if err := os.CopyFS(to, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
