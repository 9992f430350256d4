// Package module tests that the image of the dynamic module, the script that builds its files, and the documents have the
// files of keyward module.
package module

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/keyward/keyward/envoy/snippet"
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

// instructions returns the lines of the Dockerfile without comments, in words.
func instructions(t *testing.T) (all [][]string) {
	t.Helper()
	for line := range strings.Lines(read(t, "deploy/module/Dockerfile")) {
		if words := strings.Fields(line); len(words) > 0 && words[0] != "#" {
			all = append(all, words)
		}
	}
	return all
}

// TestDockerfile requires that the image is the base, which has /bin/keyward, with the module's files where keyward module
// looks for them, and that its build runs nothing, so that it needs no network.
func TestDockerfile(t *testing.T) {
	var kinds []string
	copies := map[string]string{}
	for _, words := range instructions(t) {
		kinds = append(kinds, words[0])
		switch words[0] {
		case "COPY":
			for _, from := range words[1 : len(words)-1] {
				copies[from] = words[len(words)-1]
				// bin/module is built first; the rest is in the repository.
				if _, err := os.Stat(filepath.Join(root, from)); err != nil && from != "bin/module/" {
					t.Error(err)
				}
			}
		case "CMD":
			var command []string
			if err := json.Unmarshal([]byte(strings.Join(words[1:], " ")), &command); err != nil || command[0] != "/bin/keyward" {
				t.Fatalf("CMD %q: %v", command, err)
			}
		}
	}
	if want := []string{"ARG", "FROM", "COPY", "COPY", "CMD"}; !slices.Equal(kinds, want) {
		t.Errorf("instructions %v, want %v", kinds, want)
	}
	if all := instructions(t); all[0][1] != "KEYWARD_IMAGE=keyward:local" || all[1][1] != "${KEYWARD_IMAGE}" {
		t.Errorf("the base is %q and %q", all[0], all[1])
	}
	if copies["bin/module/"] != "/module/" || copies["LICENSE"] != "/licenses/" || copies["NOTICE"] != "/licenses/" {
		t.Errorf("copies %v", copies)
	}
	if from := `StringVar(&from, "from", "/module", `; !strings.Contains(read(t, "cmd/keyward/module.go"), from) {
		t.Errorf("the default of keyward module --from is not /module")
	}
	if !strings.Contains(read(t, "docker-compose.yml"), ":-keyward:local}") {
		t.Error("docker-compose.yml does not build the base under that name")
	}
	// Docker reads the files from the folder of the repository, of which .dockerignore leaves out bin.
	if ignore := strings.Fields(read(t, ".dockerignore")); slices.Index(ignore, "!bin/module") < slices.Index(ignore, "bin") {
		t.Errorf(".dockerignore leaves out bin/module: %v", ignore)
	}
	if !regexp.MustCompile(`(?m)^COPY --from=build /out/bin/ /bin/$`).MatchString(read(t, "Dockerfile")) {
		t.Error("the base has no /bin/keyward")
	}
}

// TestBuiltFiles requires that scripts/module builds the file of keyward module for each version of Envoy, all of them with
// all, and no other. Cargo is replaced, because it would compile for minutes: test/module loads the real files.
func TestBuiltFiles(t *testing.T) {
	var names []string
	for _, f := range snippet.ModuleFiles() {
		names = append(names, f.Name())
		for _, version := range f.Envoys() {
			for _, v := range []string{version, version + ".0"} {
				if got := build(t, v); !slices.Equal(got, []string{f.Name()}) {
					t.Errorf("scripts/module %s builds %v, want %s", v, got, f.Name())
				}
			}
		}
	}
	if got := build(t, "all"); !slices.Equal(got, names) {
		t.Errorf("scripts/module all builds %v, want %v", got, names)
	}
	for _, v := range []string{"1.35.0", "1.37.0", "1.41.0"} {
		if got := build(t, v); got != nil {
			t.Errorf("scripts/module %s builds %v, and keyward module refuses the version", v, got)
		}
	}
}

// build runs a copy of scripts/module with a cargo that writes an empty file, and returns the names of what it has built.
func build(t *testing.T, version string) (names []string) {
	t.Helper()
	dir := t.TempDir()
	cargo := "#!/bin/sh\nwhile [ \"$1\" != --target-dir ]; do shift; done\nmkdir -p \"$2/release\"\n: >\"$2/release/libkeyward.so\"\n"
	for file, text := range map[string]string{"scripts/module": read(t, "scripts/module"), "path/cargo": cargo} {
		file = filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil { //nolint:gosec // it is executed
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "scripts", "module"), version)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "path")+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil && !strings.Contains(string(out), "no module for Envoy "+version) {
		t.Fatalf("scripts/module %s: %v: %s", version, err, out)
	}
	files, _ := os.ReadDir(filepath.Join(dir, "bin", "module"))
	for _, f := range files {
		names = append(names, f.Name())
	}
	return names
}

// TestDocumentedFiles requires that the table of files names each of them with its versions of Envoy.
func TestDocumentedFiles(t *testing.T) {
	page := read(t, "envoy/module/rust/README.md")
	for _, f := range snippet.ModuleFiles() {
		if row := "| `" + f.Name() + "` | " + strings.Join(f.Envoys(), ", ") + " |"; !strings.Contains(page, row) {
			t.Errorf("the table of ABIs has no row %s", row)
		}
	}
}
