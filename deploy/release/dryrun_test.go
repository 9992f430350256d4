package release

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/keyward/keyward/envoy/snippet"
)

// dist is the folder of a dry run.
type dist string

// TestDryRun makes a release for one platform, without pushing and signing, and checks what it contains. The dry run
// itself starts the programs of the archive and of the image, which it pulls from a registry on loopback.
func TestDryRun(t *testing.T) {
	if testing.Short() || runtime.GOOS != "linux" {
		t.Skip("links and compresses all programs: half a minute of processor time")
	}
	dir := t.TempDir()
	notices := filepath.Join(dir, "licenses")
	if out, err := licenses(t, notices, "go"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Run("licenses", func(t *testing.T) { testLicenses(t, notices) })
	d := dist(filepath.Join(dir, "dist"))
	tag := "v" + chartVersion(t)
	flags := []string{}
	if hasModule() {
		modules := filepath.Join(dir, "modules")
		if out, err := exec.CommandContext(t.Context(), filepath.Join(root, "scripts", "module"), "release", modules).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		flags = append(flags, "-modules="+modules)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "scripts", "release-dry-run"), append([]string{tag,
		"-platforms=linux/" + runtime.GOARCH, "-licenses=" + notices, "-out=" + string(d)}, flags...)...)
	cmd.Env = append(os.Environ(), "KEYWARD_NO_VULN=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	base := fmt.Sprintf("keyward_%s_linux_%s", tag[1:], runtime.GOARCH)
	t.Run("files", func(t *testing.T) { d.testFiles(t, base, tag[1:]) })
	t.Run("archive", func(t *testing.T) { d.testArchive(t, base) })
	t.Run("image", d.testImage)
	if hasModule() {
		t.Run("module", d.testModuleImage)
	}
	t.Run("names", func(t *testing.T) { d.testNames(t, tag) })
	t.Run("provenance", func(t *testing.T) { d.testProvenance(t, tag) })
	t.Run("repeat", func(t *testing.T) { d.testRepeat(t, notices) })
}

// chartVersion returns the version in the chart's Chart.yaml.
func chartVersion(t *testing.T) string {
	t.Helper()
	var c struct{ Version string }
	parse(t, "charts/keyward/Chart.yaml", &c)
	return c.Version
}

func (d dist) path(name ...string) string {
	return filepath.Join(append([]string{string(d)}, name...)...)
}

func (d dist) read(t *testing.T, name ...string) []byte {
	t.Helper()
	b, err := os.ReadFile(d.path(name...))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// hasModule reports whether the dry run builds the dynamic module.
func hasModule() bool {
	_, err := exec.LookPath("cargo")
	return err == nil
}

// testFiles requires exactly the files of a release of one platform, notes, and a bill of materials with all programs.
func (d dist) testFiles(t *testing.T, base, version string) {
	list, err := os.ReadDir(filepath.Join(string(d), "files"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range list {
		got = append(got, f.Name())
	}
	want := []string{"checksums.txt", "images.txt", "keyward-" + version + ".tgz", "keyward-lib-" + version + ".tgz", base + ".cdx.json", base + ".deb", base + ".rpm", base + ".tar.gz"}
	if hasModule() {
		want = append(want, strings.Replace(base, "keyward_", "keyward-module_", 1)+".tar.gz")
		slices.Sort(want)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the files are %q, want %q", got, want)
	}
	if len(d.read(t, "notes.md")) == 0 {
		t.Error("there are no notes")
	}
	materials := unmarshal[struct {
		Format   string `json:"bomFormat"`
		Metadata struct {
			Component struct {
				Components []struct{ Name, Version string }
			}
		}
	}](t, d.path("files", base+".cdx.json"))
	var programs []string
	for _, c := range materials.Metadata.Component.Components {
		programs = append(programs, c.Name+" "+c.Version)
	}
	if want := []string{"coordinator v" + version, "keyward v" + version, "sidecar v" + version, "xds v" + version}; materials.Format != "CycloneDX" || !slices.Equal(programs, want) {
		t.Errorf("%s: %v", materials.Format, programs)
	}
}

// listed matches a line of tar's verbose listing: permissions, owner, path, and the target of a link.
var listed = regexp.MustCompile(`^(\S+) +(\d+/\d+) .* \d\d:\d\d(?::\d\d)? (\S+)(?: -> (\S+))?$`)

// contents lists an archive: permissions and owners of files, and targets of links.
func contents(t *testing.T, file string) map[string]string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "tar", "--numeric-owner", "-tvzf", file).Output() // the race detector would take a minute for it
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for line := range strings.Lines(string(out)) {
		m := listed.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			t.Fatalf("%s: %q", file, line)
		}
		if all[m[3]] = m[1] + " " + m[2]; m[4] != "" {
			all[m[3]] = "-> " + m[4]
		}
	}
	return all
}

func (d dist) testArchive(t *testing.T, base string) {
	all := contents(t, d.path("files", base+".tar.gz"))
	for name, want := range map[string]string{
		"sidecar": "-rwxr-xr-x 0/0", "xds": "-rwxr-xr-x 0/0", "keyward": "-rwxr-xr-x 0/0", "coordinator": "-rwxr-xr-x 0/0", "ratelimit": "-> sidecar", "LICENSE": "-rw-r--r-- 0/0", "NOTICE": "-rw-r--r-- 0/0", "README.md": "-rw-r--r-- 0/0",
		"man/keyward.1": "-rw-r--r-- 0/0", "licenses/LICENSE": "-rw-r--r-- 0/0", "licenses/github.com/hashicorp/memberlist/memberlist.go": "-rw-r--r-- 0/0",
	} {
		if got := all[base+"/"+name]; got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// descriptor and manifest are parts of OCI's formats.
type descriptor struct {
	Digest, MediaType string
	Platform          struct{ OS, Architecture string }
}

type manifest struct {
	Manifests, Layers []descriptor
	Config            descriptor
}

func (d dist) blob(of descriptor) string {
	return d.path("oci", "keyward", "blobs", "sha256", strings.TrimPrefix(of.Digest, "sha256:"))
}

func unmarshal[T any](t *testing.T, file string) (v T) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(b, &v)
	}
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return v
}

// testImage requires that the image equals the one that Dockerfile describes: user, ports, command, links and folders.
func (d dist) testImage(t *testing.T) {
	layout := unmarshal[manifest](t, d.path("oci", "keyward", "index.json"))
	index := unmarshal[manifest](t, d.blob(layout.Manifests[0]))
	if len(index.Manifests) != 1 || index.Manifests[0].Platform.Architecture != runtime.GOARCH || index.Manifests[0].Platform.OS != "linux" {
		t.Fatalf("the images are %+v", index.Manifests)
	}
	image := unmarshal[manifest](t, d.blob(index.Manifests[0]))
	config := unmarshal[struct {
		Config struct {
			User         string
			Cmd          []string
			Entrypoint   []string
			ExposedPorts map[string]any
		}
	}](t, d.blob(image.Config)).Config
	file := read(t, "Dockerfile")
	var ports []string
	for _, port := range strings.Fields(regexp.MustCompile(`(?m)^EXPOSE (.*)$`).FindStringSubmatch(file)[1]) {
		if !strings.Contains(port, "/") {
			port += "/tcp"
		}
		ports = append(ports, port)
	}
	slices.Sort(ports)
	user := regexp.MustCompile(`(?m)^USER (.*)$`).FindStringSubmatch(file)[1]
	if got := slices.Sorted(maps.Keys(config.ExposedPorts)); !slices.Equal(got, ports) || config.User != user || !slices.Equal(config.Cmd, []string{"/bin/sidecar"}) || config.Entrypoint != nil {
		t.Errorf("the image has %+v, Dockerfile ports %v and user %s", config, ports, user)
	}
	all := map[string]string{}
	for _, l := range image.Layers {
		maps.Copy(all, contents(t, d.blob(l)))
	}
	for name, want := range map[string]string{
		"bin/sidecar": "-rwxr-xr-x 0/0", "bin/xds": "-rwxr-xr-x 0/0", "bin/keyward": "-rwxr-xr-x 0/0", "bin/coordinator": "-rwxr-xr-x 0/0", "bin/ratelimit": "-> sidecar", "bin/ratelimit_config_check": "-> keyward",
		"sidecar": "-> /bin/sidecar", "xds": "-> /bin/xds", "keyward": "-> /bin/keyward", "coordinator": "-> /bin/coordinator", "certs/": "drwxr-xr-x 65532/65532", "run/keyward/": "drwxr-xr-x 65532/65532",
		"var/lib/keyward/": "drwxr-xr-x 65532/65532", "tmp/": "drwxrwxrwt 0/0", "etc/passwd": "-rw-r--r-- 0/0", "etc/ssl/certs/ca-certificates.crt": "-rw-r--r-- 0/0", "usr/share/zoneinfo/Europe/Berlin": "-rw-r--r-- 0/0",
		"licenses/LICENSE": "-rw-r--r-- 0/0", "licenses/golang.org/x/crypto/x509roots/fallback/LICENSE": "-rw-r--r-- 0/0",
	} {
		if got := all[name]; got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// testModuleImage requires that the module's image is that of the members with the module's files, which its command lists.
func (d dist) testModuleImage(t *testing.T) {
	blob := func(of descriptor) string {
		return d.path("oci", "keyward-module", "blobs", "sha256", strings.TrimPrefix(of.Digest, "sha256:"))
	}
	layout := unmarshal[manifest](t, d.path("oci", "keyward-module", "index.json"))
	image := unmarshal[manifest](t, blob(unmarshal[manifest](t, blob(layout.Manifests[0])).Manifests[0]))
	config := unmarshal[struct{ Config struct{ Cmd []string } }](t, blob(image.Config)).Config
	if want := []string{"/bin/keyward", "module", "--list"}; !slices.Equal(config.Cmd, want) || !strings.Contains(read(t, "deploy/module/Dockerfile"), `CMD ["/bin/keyward", "module", "--list"]`) {
		t.Errorf("the command is %v, want %v", config.Cmd, want)
	}
	all := map[string]string{}
	for _, l := range image.Layers {
		maps.Copy(all, contents(t, blob(l)))
	}
	for _, f := range snippet.ModuleFiles() {
		if got := all["module/"+f.Name()]; got != "-rw-r--r-- 0/0" {
			t.Errorf("%s: %q", f.Name(), got)
		}
	}
	if all["bin/keyward"] == "" || !slices.ContainsFunc(slices.Collect(maps.Keys(all)), func(name string) bool { return strings.HasPrefix(name, "licenses/crates.io/rustix-") }) {
		t.Error("no keyward, or no license of rustix")
	}
}

// published matches names in the registry.
var published = regexp.MustCompile(`ghcr\.io/keyward/[a-z/-]*[a-z]`)

// testNames requires that README.md names the image and the chart that are published, with the tag.
func (d dist) testNames(t *testing.T, tag string) {
	var names []string
	for image := range strings.Lines(string(d.read(t, "files", "images.txt"))) {
		name, _, _ := strings.Cut(image, "@")
		names = append(names, name)
	}
	want := []string{"ghcr.io/keyward/charts/keyward", "ghcr.io/keyward/charts/keyward-lib", "ghcr.io/keyward/keyward", "ghcr.io/keyward/keyward-module"}
	if !hasModule() {
		want = want[:3]
	}
	if !slices.Equal(names, want) {
		t.Errorf("published are %q, want %q", names, want)
	}
	if !hasModule() {
		names = append(names, "ghcr.io/keyward/keyward-module") // the pages name it all the same
	}
	for _, page := range []string{"README.md", "docs/releasing.md", "charts/keyward/README.md", "charts/keyward/Chart.yaml"} {
		for _, name := range published.FindAllString(read(t, page), -1) {
			if name != "ghcr.io/keyward/charts" && !slices.Contains(names, name) {
				t.Errorf("%s names %s, which is not published", page, name)
			}
		}
	}
	for _, want := range []string{"`ghcr.io/keyward/keyward:" + tag + "`", "`helm install keyward oci://ghcr.io/keyward/charts/keyward --version " + tag[1:] + "`"} {
		if !strings.Contains(read(t, "README.md"), want) {
			t.Errorf("README.md does not name %s", want)
		}
	}
}

// testProvenance requires a statement about every file and every image, whose digests are right, and its commit.
func (d dist) testProvenance(t *testing.T, tag string) {
	s := unmarshal[struct {
		Type    string `json:"_type"`
		Subject []struct {
			Name   string
			Digest map[string]string
		}
		Predicate struct {
			BuildDefinition struct {
				ResolvedDependencies []struct {
					URI    string
					Digest map[string]string
				}
			}
		}
	}](t, d.path("provenance.intoto.json"))
	names := map[string]bool{}
	for _, sub := range s.Subject {
		names[sub.Name] = true
		if strings.Contains(sub.Name, "/") {
			continue
		}
		if sum := sha256.Sum256(d.read(t, "files", sub.Name)); hex.EncodeToString(sum[:]) != sub.Digest["sha256"] {
			t.Errorf("%s has another digest", sub.Name)
		}
	}
	for image := range strings.Lines(string(d.read(t, "files", "images.txt"))) {
		if name, _, _ := strings.Cut(image, "@"); !names[name] {
			t.Errorf("there is no provenance of %s", name)
		}
	}
	list, err := os.ReadDir(filepath.Join(string(d), "files"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		if !names[f.Name()] {
			t.Errorf("there is no provenance of %s", f.Name())
		}
	}
	commit, err := exec.CommandContext(t.Context(), "git", "rev-parse", "HEAD").Output()
	if err != nil {
		t.Fatal(err)
	}
	from := s.Predicate.BuildDefinition.ResolvedDependencies[0]
	if s.Type != "https://in-toto.io/Statement/v1" || from.Digest["gitCommit"] != strings.TrimSpace(string(commit)) || !strings.HasSuffix(from.URI, "@refs/tags/"+tag) {
		t.Errorf("%s of %v", s.Type, from)
	}
}

// testRepeat requires the same bytes of a release that is made again from a copy of the sources in another folder, with another umask,
// time zone, home folder and locale. Only with KEYWARD_LONG are its programs and the module linked and its licenses collected again;
// make reproduce builds one program twice.
func (d dist) testRepeat(t *testing.T, notices string) {
	args := []string{string(d)}
	if os.Getenv("KEYWARD_LONG") == "" {
		args = append(args, "-programs="+d.path("work", "programs"), "-licenses="+notices)
		if hasModule() {
			args = append(args, "-modules="+d.path("..", "modules"))
		}
	}
	if out, err := exec.CommandContext(t.Context(), filepath.Join(root, "scripts", "release-again"), args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
