package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// release describes what build has made. It is dist/release.json, which the other commands read.
type release struct {
	Tag       string            `json:"tag"`     // v1.2.3
	Version   string            `json:"version"` // 1.2.3
	Commit    string            `json:"commit"`
	Time      time.Time         `json:"time"` // of the commit
	Go        string            `json:"go"`
	DryRun    bool              `json:"dryRun"`
	Platforms []platform        `json:"platforms"`
	Digests   map[string]string `json:"digests"`   // of images and charts, by name in the registry
	Manifests map[string]string `json:"manifests"` // of the image, by platform

	root, out string
	programs  string // folder of the compiled programs, with a folder for each platform
	modules   string // folder of the dynamic module's files, with a folder for each platform; empty: there is no module
	licenses  tree
	manuals   tree
}

// The folders and files in dist.
func (r *release) files(name ...string) string {
	return filepath.Join(append([]string{r.out, "files"}, name...)...)
}

func (r *release) work(name ...string) string {
	return filepath.Join(append([]string{r.out, "work"}, name...)...)
}

func (r *release) layout(name string) string { return filepath.Join(r.out, "oci", name) }

func build(ctx context.Context, o options) error {
	r, err := start(ctx, o)
	if err != nil {
		return err
	}
	text, err := notes(r.root, r.Tag, o.dryRun)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(r.out, "notes.md"), []byte(text), 0o644); err != nil {
		return err
	}
	if o.programs == "" {
		for _, p := range r.Platforms {
			if err := r.compile(ctx, p); err != nil {
				return fmt.Errorf("%s: %w", p, err)
			}
		}
	}
	if err := r.collect(ctx, o.licenses); err != nil {
		return err
	}
	for _, p := range r.Platforms {
		if err := r.publish(ctx, p); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	if err := r.images(ctx); err != nil {
		return fmt.Errorf("image: %w", err)
	}
	if err := r.charts(ctx); err != nil {
		return err
	}
	if err := r.listDigests(); err != nil {
		return err
	}
	if err := r.checksums(); err != nil {
		return err
	}
	return r.save()
}

// start checks what the release is made of and empties dist.
func start(ctx context.Context, o options) (*release, error) {
	m := tagged.FindStringSubmatch(o.tag)
	if m == nil {
		return nil, fmt.Errorf("tag %q: want v1.2.3 or v1.2.3-rc.1", o.tag)
	}
	r := &release{Tag: o.tag, Version: m[1], DryRun: o.dryRun, Digests: map[string]string{}, Manifests: map[string]string{}, root: o.root, out: o.out}
	if r.modules = o.modules; r.modules == "" && !o.dryRun {
		return nil, errors.New("-modules is missing: scripts/module release DIR builds the dynamic module")
	}
	if r.programs = o.programs; r.programs == "" {
		r.programs = r.work("programs")
	}
	var err error
	if r.Platforms, err = parsePlatforms(o.platforms); err != nil {
		return nil, err
	}
	if err := r.readCommit(ctx); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(r.root, "go.mod"))
	if err != nil {
		return nil, err
	}
	version := regexp.MustCompile(`(?m)^go (\S+)$`).FindSubmatch(text)
	if version == nil {
		return nil, errors.New("go.mod names no version of Go")
	}
	r.Go = string(version[1])
	if err := clearFolder(r.out); err != nil {
		return nil, err
	}
	return r, os.MkdirAll(r.files(), 0o755)
}

// clearFolder deletes the folder of an earlier release, complete or interrupted. It returns an error for any other folder with
// files.
func clearFolder(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if !slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == "release.json" }) {
		for _, e := range entries {
			if !slices.Contains([]string{"files", "work", "oci", "notes.md"}, e.Name()) {
				return fmt.Errorf("%s has %s, which no release has made: choose another -out, or empty it", dir, e.Name())
			}
		}
	}
	return os.RemoveAll(dir)
}

// readCommit reads the commit and its time, and requires that it has the tag and that no file is changed.
func (r *release) readCommit(ctx context.Context) error {
	line, err := r.git(ctx, "log", "-1", "--format=%H %ct")
	if err != nil {
		return err
	}
	commit, seconds, _ := strings.Cut(line, " ")
	at, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return err
	}
	r.Commit, r.Time = commit, time.Unix(at, 0).UTC()
	if r.DryRun {
		return nil
	}
	tags, err := r.git(ctx, "tag", "--points-at", "HEAD")
	if err != nil {
		return err
	}
	if !slices.Contains(strings.Fields(tags), r.Tag) {
		return fmt.Errorf("%s is not a tag of the commit %s", r.Tag, commit)
	}
	changed, err := r.git(ctx, "status", "--porcelain")
	if err == nil && changed != "" {
		err = fmt.Errorf("files differ from the commit:\n%s", changed)
	}
	return err
}

// collect gathers what every archive contains: licenses and manual pages.
func (r *release) collect(ctx context.Context, dir string) error {
	if dir == "" {
		dir = r.work("licenses")
		if err := r.command(ctx, filepath.Join(r.root, "scripts", "licenses"), dir); err != nil {
			return err
		}
	}
	r.licenses, r.manuals = tree{}, tree{}
	if err := r.licenses.copyDir("licenses", dir); err != nil {
		return err
	}
	for _, name := range []string{"LICENSE", "NOTICE"} {
		if err := r.licenses.copyFile("licenses/"+name, filepath.Join(r.root, name)); err != nil {
			return err
		}
	}
	if err := r.writeManuals(ctx, r.work("man")); err != nil {
		return err
	}
	return r.manuals.copyDir("man", r.work("man"))
}

// writeManuals runs the keyward of this machine's platform, or builds one.
func (r *release) writeManuals(ctx context.Context, dir string) error {
	here := platform{runtime.GOOS, runtime.GOARCH}
	if slices.Contains(r.Platforms, here) {
		return r.command(ctx, filepath.Join(r.programs, here.String(), "keyward"), "man", "--dir", dir)
	}
	ldflags := "-X main.version=" + r.Tag
	return r.goCommand(ctx, nil, "run", "-trimpath", "-buildvcs=false", "-ldflags", ldflags, "./cmd/keyward", "man", "--dir", dir)
}

// compile builds all programs for a platform.
func (r *release) compile(ctx context.Context, p platform) error {
	dir := filepath.Join(r.programs, p.String())
	env := []string{"GOOS=" + p.OS, "GOARCH=" + p.Arch, "GOAMD64=v1", "GOARM64=v8.0"}
	ldflags := fmt.Sprintf("-s -w -X main.version=%s -X %s=%s", r.Tag, versionVariable, r.Tag)
	args := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags", ldflags, "-o", dir + "/"}
	for _, program := range programs {
		args = append(args, "./cmd/"+program)
	}
	return r.goCommand(ctx, env, args...)
}

// compiled returns the programs of a platform.
func (r *release) compiled(p platform, folder string) (tree, error) {
	t := tree{}
	return t, t.copyDir(folder, filepath.Join(r.programs, p.String()))
}

// goOutput returns what a go command prints.
func (r *release) goOutput(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOTOOLCHAIN=go"+r.Go)
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w", args[0], err)
	}
	return strings.TrimSpace(string(out)), nil
}

// goCommand runs the Go version of go.mod, without the settings of the machine that change what it builds.
func (r *release) goCommand(ctx context.Context, env []string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = r.root, os.Stderr, os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOEXPERIMENT=", "GOWORK=off", "GOTOOLCHAIN=go"+r.Go)
	cmd.Env = append(cmd.Env, env...)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go %s: %w", args[0], err)
	}
	return nil
}

func (r *release) command(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = r.root, os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (r *release) git(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir, cmd.Stderr = r.root, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
	return strings.TrimSpace(string(out)), nil
}

// listDigests writes images.txt, so that the checksums, which are signed, include the digests of images and charts.
func (r *release) listDigests() error {
	var b strings.Builder
	for _, name := range sortedKeys(r.Digests) {
		fmt.Fprintf(&b, "%s/%s@%s\n", defaultRegistry, name, r.Digests[name])
	}
	return os.WriteFile(r.files("images.txt"), []byte(b.String()), 0o644)
}

// checksums writes checksums.txt in the format of sha256sum.
func (r *release) checksums() error {
	list, err := os.ReadDir(r.files())
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, f := range list {
		body, err := os.ReadFile(r.files(f.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s  %s\n", sum(body), f.Name())
	}
	return os.WriteFile(r.files("checksums.txt"), []byte(b.String()), 0o644)
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

func (r *release) save() error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, "release.json"), append(text, '\n'), 0o644)
}

// load reads what build has made.
func load(o options) (*release, error) {
	text, err := os.ReadFile(filepath.Join(o.out, "release.json"))
	if err != nil {
		return nil, fmt.Errorf("%w: run build first", err)
	}
	r := &release{root: o.root, out: o.out}
	return r, json.Unmarshal(text, r)
}
