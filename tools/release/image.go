package main

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// nonroot is the user and group of the programs in the image, and the owner of its writable folders.
const nonroot = 65532

// listeners are the ports of the image: RLS; RLS of other pods' Envoys; JSON and health; debug; gossip; peers; coordinators;
// metrics; xDS. Dockerfile explains them too.
var listeners = []string{"8081", "8082", "8080", "6070", "7946/tcp", "7946/udp", "7947", "7948", "9090", "18000"}

// links are what the image has besides the programs: the names of envoyproxy/ratelimit's programs, and all programs in /.
var links = map[string]string{
	"bin/ratelimit": "sidecar", "bin/ratelimit_config_check": "keyward",
	"sidecar": "/bin/sidecar", "xds": "/bin/xds", "keyward": "/bin/keyward", "coordinator": "/bin/coordinator",
}

// labels are the annotations of an image, its configuration and its index.
func (r *release) labels() map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":       project,
		"org.opencontainers.image.description": description,
		"org.opencontainers.image.source":      source,
		"org.opencontainers.image.version":     r.Version,
		"org.opencontainers.image.revision":    r.Commit,
		"org.opencontainers.image.licenses":    license,
		"org.opencontainers.image.created":     r.Time.Format("2006-01-02T15:04:05Z"),
	}
}

// images builds an image for each Linux platform, and the index of them, in the OCI layout dist/oci/keyward, and the same with the
// dynamic module in dist/oci/keyward-module. They have no base image, so that all of its content is in the sources and in the modules of go.sum.
func (r *release) images(ctx context.Context) error {
	system, err := r.system(ctx)
	if err != nil {
		return err
	}
	notices := r.licenses.with()
	if err := r.rootsLicense(ctx, notices); err != nil {
		return err
	}
	if err := r.index(imageName, func(p platform) (v1.Image, error) { return r.image(p, system, notices) }); err != nil || r.modules == "" {
		return err
	}
	return r.index(moduleImageName, func(p platform) (v1.Image, error) {
		files, err := r.moduleFiles(p, "module/")
		if err != nil || len(files) == 0 {
			return nil, err
		}
		return r.image(p, system, notices, files)
	})
}

// index writes the index of the images that build returns for the Linux platforms. It leaves out those without an image.
func (r *release) index(name string, build func(platform) (v1.Image, error)) error {
	var all []mutate.IndexAddendum
	for _, p := range r.Platforms {
		if p.OS != "linux" {
			continue
		}
		img, err := build(p)
		if err != nil {
			return err
		}
		if img == nil {
			continue
		}
		digest, err := img.Digest()
		if err != nil {
			return err
		}
		if name == imageName {
			r.Manifests[p.String()] = digest.String()
		}
		d := v1.Descriptor{Platform: &v1.Platform{OS: p.OS, Architecture: p.Arch}}
		all = append(all, mutate.IndexAddendum{Add: img, Descriptor: d})
	}
	if len(all) == 0 {
		return nil
	}
	index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), all...)
	index = mutate.Annotations(index, r.labels()).(v1.ImageIndex) //nolint:errcheck // it returns what it got
	return r.writeLayout(name, index)
}

// image builds the image of one platform from the programs and these trees: system files, licenses and, in the module's image, the
// module's files. The module's image prints its files if it has no command.
func (r *release) image(p platform, trees ...tree) (v1.Image, error) {
	built, err := r.compiled(p, "bin")
	if err != nil {
		return nil, err
	}
	for name, to := range links {
		built.link(name, to)
	}
	comments := []string{"system files", "licenses", "programs", "module"}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	created := v1.Time{Time: r.Time}
	for i, t := range slices.Insert(slices.Clone(trees), 2, built) {
		layer, err2 := r.layer(t)
		if err2 != nil {
			return nil, err2
		}
		h := v1.History{Created: created, CreatedBy: "tools/release", Comment: comments[i]}
		if img, err = mutate.Append(img, mutate.Addendum{Layer: layer, History: h}); err != nil {
			return nil, err
		}
	}
	c, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	c = c.DeepCopy()
	c.OS, c.Architecture, c.Created, c.Config = p.OS, p.Arch, created, r.config()
	if len(trees) == len(comments)-1 {
		c.Config.Cmd = []string{"/bin/keyward", "module", "--list"}
	}
	if img, err = mutate.ConfigFile(img, c); err != nil {
		return nil, err
	}
	return mutate.Annotations(img, r.labels()).(v1.Image), nil //nolint:errcheck // it returns what it got
}

// config is how containers start. There is no entrypoint, as in the image this one replaces: `command: /bin/ratelimit`
// works in every manifest.
func (r *release) config() v1.Config {
	ports := map[string]struct{}{}
	for _, port := range listeners {
		if !strings.Contains(port, "/") {
			port += "/tcp"
		}
		ports[port] = struct{}{}
	}
	return v1.Config{
		User: fmt.Sprintf("%d:%d", nonroot, nonroot), Cmd: []string{"/bin/sidecar"}, WorkingDir: "/home/nonroot", ExposedPorts: ports, Labels: r.labels(),
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"},
	}
}

func (r *release) layer(t tree) (v1.Layer, error) {
	body, err := t.tarGz("", r.Time)
	if err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
}

// system returns the files that programs without libraries expect: users, CA certificates, time zones, and the folders
// that they write. A new volume takes its owner from the folder that it is mounted on.
func (r *release) system(ctx context.Context) (tree, error) {
	t := tree{}
	t.file("etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n"))
	t.file("etc/group", 0o644, []byte("root:x:0:\nnonroot:x:65532:\n"))
	t.file("etc/nsswitch.conf", 0o644, []byte("hosts: files dns\n"))
	t.file("etc/ssl/certs/ca-certificates.crt", 0o644, authorities())
	t.dir("root", 0o700, 0)
	t.dir("tmp", 0o1777, 0)
	t.dir("var/tmp", 0o1777, 0)
	t.dir("home/nonroot", 0o700, nonroot)
	for _, name := range []string{"certs", "run/keyward", "var/lib/keyward"} {
		t.dir(name, 0o755, nonroot)
	}
	goroot, err := r.goOutput(ctx, r.root, "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	return t, zones(t, filepath.Join(goroot, "lib", "time", "zoneinfo.zip"))
}

// authorities returns Mozilla's CA certificates in PEM. Certificates of some authorities are trusted only if they were
// issued before a date. PEM cannot express this, so those authorities are left out.
func authorities() []byte {
	var b bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a buffer does not fail
		}
	}
	return b.Bytes()
}

// zones adds Go's copy of the time zone database.
func zones(t tree, archive string) error {
	z, err := zip.OpenReader(archive)
	if err != nil {
		return err
	}
	defer z.Close()
	for _, f := range z.File {
		if f.FileInfo().IsDir() {
			continue
		}
		in, err := f.Open()
		if err != nil {
			return err
		}
		body, err := io.ReadAll(in)
		if err != nil {
			return err
		}
		t.file("usr/share/zoneinfo/"+f.Name, 0o644, body)
	}
	return nil
}

// rootsLicense adds the license of the module with the CA certificates.
func (r *release) rootsLicense(ctx context.Context, t tree) error {
	const module = "golang.org/x/crypto/x509roots/fallback"
	dir, err := r.goOutput(ctx, filepath.Join(r.root, "tools", "release"), "list", "-m", "-f", "{{.Dir}}", module)
	if err != nil {
		return err
	}
	return t.copyFile("licenses/"+module+"/LICENSE", filepath.Join(dir, "LICENSE"))
}

// writeLayout writes an index or an artifact to an OCI layout of its own and notes its digest.
func (r *release) writeLayout(name string, what mutate.Appendable) error {
	digest, err := what.Digest()
	if err != nil {
		return err
	}
	r.Digests[name] = digest.String()
	dir := r.layout(name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if index, ok := what.(v1.ImageIndex); ok {
		return path.AppendIndex(index)
	}
	img, ok := what.(v1.Image)
	if !ok {
		return fmt.Errorf("%s is neither an image nor an index", name)
	}
	return path.AppendImage(img)
}
