// Package release tests that the parts of a release agree: the workflow, its document, the files of the images and the
// licenses.
package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const root = "../../"

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func parse(t *testing.T, file string, into any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(read(t, file)), into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// bases returns the base images of a Dockerfile, without scratch and its own stages.
func bases(t *testing.T, file string) (all []string) {
	t.Helper()
	stages := []string{"scratch"}
	for line := range strings.Lines(read(t, file)) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "FROM" {
			continue
		}
		if !slices.Contains(stages, words[1]) {
			all = append(all, words[1])
		}
		if len(words) == 4 && words[2] == "AS" {
			stages = append(stages, words[3])
		}
	}
	return all
}

var pinned = regexp.MustCompile(`^[^@]+:[^@:]+@sha256:[0-9a-f]{64}$`)

// TestBases requires that each base image has a tag and a digest, that both images have the same base, and that the
// compiler has the version in go.mod.
func TestBases(t *testing.T) {
	own, release := bases(t, "Dockerfile"), bases(t, "Dockerfile.release")
	local, err := filepath.Glob(filepath.Join(root, "deploy", "*", "*", "*Dockerfile"))
	if err != nil || len(local) == 0 {
		t.Fatalf("no Dockerfiles in deploy: %v", err)
	}
	all := slices.Concat(own, release)
	for _, file := range local {
		all = append(all, bases(t, strings.TrimPrefix(file, root))...)
	}
	for _, base := range all {
		if !pinned.MatchString(base) {
			t.Errorf("base image %s: want NAME:TAG@sha256:DIGEST", base)
		}
	}
	if len(own) != 2 || len(release) != 1 || own[1] != release[0] {
		t.Errorf("the images' bases are %v and %v", own, release)
	}
	version := regexp.MustCompile(`(?m)^go (\S+)$`).FindStringSubmatch(read(t, "go.mod"))
	if !strings.HasPrefix(own[0], "golang:"+version[1]+"-") {
		t.Errorf("%s builds the image, go.mod wants Go %s", own[0], version[1])
	}
}

// TestLicensesAreShipped requires that archives, packages and images contain the output of scripts/licenses.
func TestLicensesAreShipped(t *testing.T) {
	var c struct {
		Before   struct{ Hooks []string }
		Archives []struct{ Files []any }
		Nfpms    []struct{ Contents []struct{ Src, Dst string } }
		Dockers  []struct {
			Tags  []string
			Extra []string `yaml:"extra_files"`
		} `yaml:"dockers_v2"`
	}
	parse(t, ".goreleaser.yaml", &c)
	if !slices.ContainsFunc(c.Before.Hooks, func(h string) bool { return strings.Contains(h, "scripts/licenses .image/licenses") }) {
		t.Errorf("no hook collects licenses: %q", c.Before.Hooks)
	}
	for _, a := range c.Archives {
		for _, want := range []any{"LICENSE", "NOTICE", map[string]any{"src": ".image/licenses/**/*", "dst": "licenses"}} {
			if !slices.ContainsFunc(a.Files, func(f any) bool { return equal(f, want) }) {
				t.Errorf("archives lack %v", want)
			}
		}
	}
	for _, p := range c.Nfpms {
		if !slices.ContainsFunc(p.Contents, func(f struct{ Src, Dst string }) bool { return f.Src == ".image/licenses" }) {
			t.Errorf("packages lack licenses: %v", p.Contents)
		}
	}
	if len(c.Archives) == 0 || len(c.Nfpms) == 0 || len(c.Dockers) == 0 || !slices.Contains(c.Dockers[0].Extra, ".image") {
		t.Error("archives, packages or images have an unexpected structure")
	}
	if !slices.Contains(c.Dockers[0].Tags, "v{{ .Version }}") {
		t.Errorf("the image's tags are %v, and the chart asks for v and the version", c.Dockers[0].Tags)
	}
	for file, want := range map[string]string{"Dockerfile": "COPY --from=build /out/licenses/ /licenses/\n", "Dockerfile.release": "COPY .image/licenses/ /licenses/\n"} {
		if !strings.Contains(read(t, file), want) {
			t.Errorf("%s lacks %q", file, want)
		}
	}
}

func equal(a, b any) bool {
	x, _ := yaml.Marshal(a)
	y, _ := yaml.Marshal(b)
	return string(x) == string(y)
}

// licenses runs scripts/licenses with a Go command.
func licenses(t *testing.T, dir, goCommand string) ([]byte, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "scripts", "licenses"), dir)
	cmd.Env = append(os.Environ(), "GO="+goCommand)
	return cmd.CombinedOutput()
}

// TestLicenses collects the licenses and checks those with special requirements. Then it adds a module without a
// license, which the script must refuse.
func TestLicenses(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some ten seconds of processor time")
	}
	tmp := t.TempDir()
	dir := filepath.Join(tmp, "licenses")
	if out, err := licenses(t, dir, "go"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for file, want := range map[string]string{
		"github.com/hashicorp/memberlist/LICENSE":       "Mozilla Public License",
		"github.com/hashicorp/go-multierror/LICENSE":    "Mozilla Public License",
		"github.com/hashicorp/memberlist/memberlist.go": "package memberlist", // its license requires the sources
		"golang.org/x/net/LICENSE":                      "Redistribution and use",
		"google.golang.org/protobuf/LICENSE":            "Redistribution and use",
		"google.golang.org/grpc/NOTICE.txt":             "gRPC",
		"go/LICENSE":                                    "Redistribution and use",
		"github.com/keyward/keyward/LICENSE":            "Apache License",
	} {
		b, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s: no %q: %v", file, want, err)
		}
	}
	fake := filepath.Join(tmp, "go")
	script := "#!/bin/sh\ncase $1 in\nlist) go \"$@\" && echo example.com/unlicensed ;;\ntool) cp -R " + dir + " " + dir + "2 ;;\n*) exec go \"$@\" ;;\nesac\n"
	if err := os.WriteFile(fake, []byte(script), 0o755); err != nil { //nolint:gosec // it is executed
		t.Fatal(err)
	}
	out, err := licenses(t, dir+"2", fake)
	if err == nil || !strings.Contains(string(out), "no license text for the linked module example.com/unlicensed") {
		t.Errorf("a module without a license: %v\n%s", err, out)
	}
}

// TestReleaseCheck requires that a tag with a version other than the chart's is refused.
func TestReleaseCheck(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), filepath.Join(root, "scripts", "release-check"), "v999.0.0").CombinedOutput()
	for _, key := range []string{"version", "appVersion"} {
		if want := "charts/keyward/Chart.yaml: " + key + " is "; err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%v: want %q\n%s", err, want, out)
		}
	}
}
