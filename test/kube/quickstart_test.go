package kube

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestQuickstart does what docs/quickstart.md says of a cluster, to the letter: a 429, every pod replaced, still a 429, a live board. Only
// where the images come from is added.
func TestQuickstart(t *testing.T) {
	dir := t.TempDir()
	for name, script := range map[string]string{
		"kubectl": `exec %[1]s/kubectl --kubeconfig %[2]s "$@"`,
		"helm": `case $1 in install) set -- "$@" --set tls.mode=generate,image.tag=test,envoy.image=docker.io/envoyproxy/envoy:test ;; esac
exec %[1]s/helm4 --kubeconfig %[2]s "$@"`,
	} {
		text := "#!/bin/sh\n" + fmt.Sprintf(script, binaries, file("kubeconfig")) + "\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil { //nolint:gosec // it is to be run
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { // the page leaves the namespace that it made
		if _, err := kubectl(context.Background(), "delete", "namespace", "keyward", "--timeout=60s", "--ignore-not-found"); err != nil {
			t.Error(err)
		}
	})
	walk := exec.CommandContext(t.Context(), "go", "run", "./test/walk", "docs/quickstart.md", "In a cluster")
	walk.Dir = filepath.Join("..", "..")
	walk.Env = append(os.Environ(), "PATH="+dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	out, err := walk.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, " took ") {
			t.Log(strings.TrimSpace(line))
		}
	}
}
