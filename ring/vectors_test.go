package ring

import (
	"os"
	"path/filepath"
	"testing"
)

// files are the recorded vectors.
func files(t testing.TB) []string {
	t.Helper()
	paths, err := filepath.Glob("testdata/envoy-ring/*.json")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no vectors: %v", err)
	}
	return paths
}

func parseFile(t testing.TB, path string) *Vectors {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	v, err := ParseVectors(data)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return v
}

func TestVectors(t *testing.T) {
	for _, path := range files(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			v := parseFile(t, path)
			res := v.Check()
			if res.Failed != 0 || res.Passed != len(v.Requests) || res.Passed == 0 {
				t.Errorf("%d passed, %d failed of %d: %q", res.Passed, res.Failed, len(v.Requests), res.Failures)
			}
		})
	}
}
