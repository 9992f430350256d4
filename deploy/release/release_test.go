// Package release tests what a release publishes, and that its parts agree: the workflow, the dry run, their document,
// the image and the licenses.
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

// TestBases requires that each base image has a tag and a digest, and that the compiler has the version in go.mod.
func TestBases(t *testing.T) {
	own := bases(t, "Dockerfile")
	local, err := filepath.Glob(filepath.Join(root, "deploy", "*", "*", "*Dockerfile"))
	if err != nil || len(local) == 0 {
		t.Fatalf("no Dockerfiles in deploy: %v", err)
	}
	all := slices.Clone(own)
	for _, file := range local {
		all = append(all, bases(t, strings.TrimPrefix(file, root))...)
	}
	for _, base := range all {
		if !pinned.MatchString(base) {
			t.Errorf("base image %s: want NAME:TAG@sha256:DIGEST", base)
		}
	}
	version := regexp.MustCompile(`(?m)^go (\S+)$`).FindStringSubmatch(read(t, "go.mod"))
	if !strings.HasPrefix(own[0], "golang:"+version[1]+"-") {
		t.Errorf("%s builds the image, go.mod wants Go %s", own[0], version[1])
	}
}

// licenses runs scripts/licenses with a Go command.
func licenses(t *testing.T, dir, goCommand string) ([]byte, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "scripts", "licenses"), dir)
	cmd.Env = append(os.Environ(), "GO="+goCommand)
	return cmd.CombinedOutput()
}

// testLicenses checks the licenses with special requirements in what scripts/licenses has collected. Then it adds a
// module without a license, which the script must refuse.
func testLicenses(t *testing.T, dir string) {
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
	fake := filepath.Join(t.TempDir(), "go")
	script := "#!/bin/sh\ncase $1 in\nlist) go \"$@\" && echo example.com/unlicensed ;;\ntool) cp -R " + dir + " " + dir + "2 ;;\n*) exec go \"$@\" ;;\nesac\n"
	if err := os.WriteFile(fake, []byte(script), 0o755); err != nil { //nolint:gosec // it is executed
		t.Fatal(err)
	}
	out, err := licenses(t, dir+"2", fake)
	if err == nil || !strings.Contains(string(out), "no license text for the linked module example.com/unlicensed") {
		t.Errorf("a module without a license: %v\n%s", err, out)
	}
}

// TestReleaseCheck requires that a tag with a version other than that of the charts and the pages is refused.
func TestReleaseCheck(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), filepath.Join(root, "scripts", "release-check"), "v999.0.0").CombinedOutput()
	for _, want := range []string{
		"charts/keyward/Chart.yaml: version is ", "charts/keyward/Chart.yaml: appVersion is ", "charts/keyward/charts/keyward-lib/Chart.yaml: version is ",
		"oci://ghcr.io/keyward/charts/keyward --version ", "ghcr.io/keyward/keyward:v",
	} {
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%v: want %q\n%s", err, want, out)
		}
	}
}
