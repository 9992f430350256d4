package charts

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestDefinitions writes the projects' definitions to the folder KEYWARD_DEFINITIONS, for the API server of test/kube.
func TestDefinitions(t *testing.T) {
	dir := os.Getenv("KEYWARD_DEFINITIONS")
	if dir == "" {
		t.Skip("KEYWARD_DEFINITIONS is not set: scripts/kube does it")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	eachDefinition(t, func(i int, f string, b []byte) {
		name := filepath.Join(dir, fmt.Sprintf("%d-%s", i, filepath.Base(f)))
		if err := os.WriteFile(name, templated.ReplaceAll(b, nil), 0o644); err != nil {
			t.Fatal(err)
		}
	})
}
