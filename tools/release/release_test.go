package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const changelog = `# Changelog

## Unreleased

## 1.2.3 (2026-01-31)

* [FIX] One.

### Details

Two.

## v1.2.2

* Three.
`

// TestNotes requires the section of a version, and an error if it is missing or empty.
func TestNotes(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, "CHANGELOG.md"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(changelog)
	for _, c := range []struct {
		tag       string
		dryRun    bool
		want, err string
	}{
		{"v1.2.3", false, "* [FIX] One.\n\n### Details\n\nTwo.\n", ""},
		{"v1.2.2", false, "* Three.\n", ""},
		{"v1.2", false, "", "no section 1.2"},
		{"v1.3.0", false, "", "no section 1.3.0"},
		{"v1.3.0", true, "", "the section Unreleased is empty"},
	} {
		got, err := notes(dir, c.tag, c.dryRun)
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %q, %v; want %q, %q", c.tag, got, err, c.want, c.err)
		}
	}
	write(strings.Replace(changelog, "## Unreleased\n", "## Unreleased\n\n* Next.\n", 1))
	if got, err := notes(dir, "v1.3.0", true); got != "* Next.\n" || err != nil {
		t.Errorf("Unreleased: %q, %v", got, err)
	}
	if _, err := notes(dir, "v1.3.0", false); err == nil {
		t.Error("a release took the notes of Unreleased")
	}
}

// TestImageTags requires that a pre-release does not become the latest one.
func TestImageTags(t *testing.T) {
	for tag, want := range map[string][]string{"v1.2.3": {"v1.2.3", "1.2.3", "1.2", "latest"}, "v1.2.3-rc.1": {"v1.2.3-rc.1", "1.2.3-rc.1"}} {
		if got := imageTags(tag); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", tag, got, want)
		}
	}
	for _, tag := range []string{"1.2.3", "v1.2", "v1.2.3+build", "v1.2.3 x"} {
		if tagged.MatchString(tag) {
			t.Errorf("%q is accepted", tag)
		}
	}
}

var commit = time.Unix(1_700_000_000, 0).UTC()

func sample() tree {
	t := tree{}
	t.file("usr/lib/keyward/sidecar", 0o755, []byte("program"))
	t.file("usr/share/doc/keyward/LICENSE", 0o644, []byte("odd"))
	t.link("usr/bin/keyward", "/usr/lib/keyward/keyward")
	t.dir("var/lib/keyward", 0o755, nonroot)
	return t
}

// TestTree requires that archives have folders before files, the owners and modes of the tree, and the time given.
func TestTree(t *testing.T) {
	body, err := sample().tarGz("x/", commit)
	if err != nil {
		t.Fatal(err)
	}
	again, _ := sample().tarGz("x/", commit)
	if !bytes.Equal(body, again) {
		t.Error("the same tree gives other bytes")
	}
	plain, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	in := tar.NewReader(plain)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if !h.ModTime.Equal(commit) {
			t.Errorf("%s: %s", h.Name, h.ModTime)
		}
		if h.Name == "x/var/lib/keyward/" && h.Uid != nonroot || h.Name == "x/usr/lib/keyward/sidecar" && h.Mode != 0o755 {
			t.Errorf("%+v", h)
		}
		names = append(names, h.Name)
	}
	want := "x/usr/ x/usr/bin/ x/usr/bin/keyward x/usr/lib/ x/usr/lib/keyward/ x/usr/lib/keyward/sidecar x/usr/share/ x/usr/share/doc/ " +
		"x/usr/share/doc/keyward/ x/usr/share/doc/keyward/LICENSE x/var/ x/var/lib/ x/var/lib/keyward/"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestPackages requires that dpkg and rpm read the packages, and that they are reproducible.
func TestPackages(t *testing.T) {
	r := &release{Tag: "v1.2.3-rc.1", Version: "1.2.3-rc.1", Time: commit}
	for kind, c := range map[string]struct {
		make func(string, tree) ([]byte, error)
		read []string
		want []string
	}{
		"deb": {r.deb, []string{"dpkg-deb", "--info", "FILE"}, []string{"Package: keyward", "Version: 1.2.3~rc.1", "Architecture: arm64"}},
		"rpm": {r.rpm, []string{"rpm", "-qip", "FILE"}, []string{"Version     : 1.2.3~rc.1", "Architecture: aarch64"}},
	} {
		t.Run(kind, func(t *testing.T) {
			body, err := c.make("arm64", sample())
			if err != nil {
				t.Fatal(err)
			}
			if again, _ := c.make("arm64", sample()); !bytes.Equal(body, again) {
				t.Error("the same tree gives other bytes")
			}
			if _, err := exec.LookPath(c.read[0]); err != nil {
				t.Skip(err)
			}
			file := filepath.Join(t.TempDir(), "p."+kind)
			if err := os.WriteFile(file, body, 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.CommandContext(t.Context(), c.read[0], append(c.read[1:len(c.read)-1:len(c.read)-1], file)...).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, want := range c.want {
				if !strings.Contains(string(out), want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
		})
	}
}

// TestIgnored requires the meaning that Helm gives the patterns of the chart's .helmignore.
func TestIgnored(t *testing.T) {
	patterns := []string{"*.orig", "testdata/"}
	for name, want := range map[string]bool{"a.orig": true, "x/testdata/y": true, "templates/a.yaml": false, "files/testdata.yaml": false} {
		if isIgnored(patterns, name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

// TestPredicate requires that the builder is the workflow in GitHub Actions and the dry run elsewhere.
func TestPredicate(t *testing.T) {
	r := &release{Tag: "v1.2.3", Commit: "abc", Go: "1.26.8"}
	env := map[string]string{}
	p := r.predicate(func(name string) string { return env[name] })
	if id := p.RunDetails.Builder["id"]; !strings.HasSuffix(id, "#dry-run") {
		t.Error(id)
	}
	env = map[string]string{
		"GITHUB_ACTIONS": "true", "GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "keyward/keyward", "GITHUB_RUN_ID": "7", "GITHUB_RUN_ATTEMPT": "1",
		"GITHUB_WORKFLOW_REF": "keyward/keyward/.github/workflows/release.yml@refs/tags/v1.2.3",
	}
	p = r.predicate(func(name string) string { return env[name] })
	if id := p.RunDetails.Builder["id"]; id != "https://github.com/keyward/keyward/.github/workflows/release.yml@refs/tags/v1.2.3" {
		t.Error(id)
	}
	if id := p.RunDetails.Metadata["invocationId"]; id != "https://github.com/keyward/keyward/actions/runs/7/attempts/1" {
		t.Error(id)
	}
	if d := p.BuildDefinition.ResolvedDependencies[0]; d.Digest["gitCommit"] != "abc" {
		t.Error(d)
	}
}

// TestAuthorities requires certificates, and none twice.
func TestAuthorities(t *testing.T) {
	if n := bytes.Count(authorities(), []byte("BEGIN CERTIFICATE")); n < 100 {
		t.Errorf("%d certificates", n)
	}
}

// TestClearFolder requires that only folders of releases are deleted.
func TestClearFolder(t *testing.T) {
	for _, c := range []struct {
		entries []string
		deleted bool
	}{
		{nil, true},
		{[]string{"files", "work"}, true},
		{[]string{"files", "oci", "notes.md", "release.json", "provenance.json"}, true},
		{[]string{".git", "files"}, false},
		{[]string{"thesis.txt"}, false},
	} {
		dir := filepath.Join(t.TempDir(), "dist")
		for _, name := range c.entries {
			if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		err := clearFolder(dir)
		if left, _ := os.ReadDir(dir); (err == nil) != c.deleted || !c.deleted && len(left) != len(c.entries) || c.deleted && len(left) != 0 {
			t.Errorf("%q: %d entries are left, %v", c.entries, len(left), err)
		}
	}
}
