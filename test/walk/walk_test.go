package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const page = "# A page\n\n```sh\necho begin > out\n```\n\n## One\n\n```sh\nx=1 # stays set\n```\ntext\n```yaml\n## no chapter\n```\n```sh no-run\nexit 7\n```\n\n## Two\n\n```sh\ntest $x = 1 && echo end >> out\n```\n"

func TestWalkRunsBlocksInOneShell(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("p.md", []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := walk("p.md", ""); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile("out"); string(b) != "begin\nend\n" {
		t.Errorf("it left %q", b)
	}
	if err := walk("p.md", "Two"); err == nil {
		t.Error("chapter Two passes without what chapter One sets")
	}
	if err := walk("p.md", "Three"); err == nil || !strings.Contains(err.Error(), "nothing to run") {
		t.Errorf("error %v", err)
	}
}

// TestPagesCanBeRead requires that every block of the documentation ends.
func TestPagesCanBeRead(t *testing.T) {
	pages, _ := filepath.Glob("../../docs/*.md")
	more, _ := filepath.Glob("../../docs/*/*.md")
	for _, name := range append(pages, more...) {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := blocks(f); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		f.Close()
	}
}
