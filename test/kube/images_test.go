package kube

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

// The images that pods run. There is no registry: they are made of local files and imported, and nothing is pulled.
const (
	podImage     = "localhost/pod:1"
	keywardImage = "ghcr.io/keyward/keyward:test"
	envoyImage   = "docker.io/envoyproxy/envoy:test"
	moduleImage  = "ghcr.io/keyward/keyward-module:test" // as deploy/module/Dockerfile has it
)

// image is one layer of files and how the container starts.
type image struct {
	name       string
	files      map[string]string // path in the image: path on this machine
	links      map[string]string // path in the image: what it points to
	entrypoint []string
}

// library matches what ldd prints of one: its path.
var library = regexp.MustCompile(`/\S+`)

// pictures lists the images, with Envoy's libraries as this machine has them.
func pictures(ctx context.Context) ([]image, error) {
	envoy := os.Getenv("ENVOY_BIN")
	libraries, err := run(ctx, "ldd", envoy)
	if err != nil {
		return nil, err
	}
	envoyFiles := map[string]string{"usr/local/bin/envoy": envoy}
	for _, path := range library.FindAllString(libraries, -1) {
		envoyFiles[strings.TrimPrefix(path, "/")] = path
	}
	keyward := image{
		name: keywardImage, // as the Dockerfile has it
		files: map[string]string{
			"bin/sidecar": filepath.Join(images, "sidecar"), "bin/xds": filepath.Join(images, "xds"), "bin/keyward": filepath.Join(images, "keyward"),
		},
		links: map[string]string{"bin/ratelimit": "sidecar", "bin/ratelimit_config_check": "keyward"},
	}
	module := keyward
	module.name, module.files = moduleImage, maps.Clone(keyward.files)
	libraryFiles, err := filepath.Glob(filepath.Join(modules, "*.so"))
	if err != nil {
		return nil, err
	}
	for _, path := range libraryFiles {
		module.files["module/"+filepath.Base(path)] = path
	}
	return []image{
		{name: podImage, files: map[string]string{"pod": filepath.Join(images, "pod")}, entrypoint: []string{"/pod"}},
		keyward, module,
		{name: envoyImage, files: envoyFiles, entrypoint: []string{"/usr/local/bin/envoy"}},
	}, nil
}

// bringImages imports the images of all tests.
func bringImages() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	all, err := pictures(ctx)
	if err != nil {
		return err
	}
	return importImages(ctx, all)
}

// importImages imports images in one stream.
func importImages(ctx context.Context, all []image) error {
	cmd := exec.CommandContext(ctx, "ctr", "--address", crSocket, "--namespace", "k8s.io", "images", "import", "-")
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = writeArchive(in, all)
	in.Close()
	if ended := cmd.Wait(); ended != nil {
		return fmt.Errorf("ctr images import: %w\n%s", ended, said.String())
	}
	return err
}

// entry is one image in an archive's manifest.json, as docker save writes it.
type entry struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// writeArchive writes images as docker save does: https://github.com/moby/docker-image-spec, "Combined Image JSON + Filesystem Changeset Format".
func writeArchive(w io.Writer, all []image) error {
	out := tar.NewWriter(w)
	var manifest []entry
	for _, img := range all {
		var layer bytes.Buffer
		if err := writeLayer(&layer, img); err != nil {
			return err
		}
		sum := sha256.Sum256(layer.Bytes())
		digest := hex.EncodeToString(sum[:])
		config, err := json.Marshal(map[string]any{
			"architecture": runtime.GOARCH, "os": "linux",
			"config": map[string]any{"Entrypoint": img.entrypoint, "User": "65532:65532", "Env": []string{"PATH=/usr/local/bin:/usr/bin:/bin"}},
			"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest}},
		})
		if err != nil {
			return err
		}
		e := entry{Config: digest + ".json", RepoTags: []string{img.name}, Layers: []string{digest + "/layer.tar"}}
		if err := put(out, e.Layers[0], 0o644, layer.Bytes()); err != nil {
			return err
		}
		if err := put(out, e.Config, 0o644, config); err != nil {
			return err
		}
		manifest = append(manifest, e)
	}
	text, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	if err := put(out, "manifest.json", 0o644, text); err != nil {
		return err
	}
	return out.Close()
}

func put(out *tar.Writer, name string, mode int64, content []byte) error {
	if err := out.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err := out.Write(content)
	return err
}

// writeLayer writes the files and the folders that programs expect.
func writeLayer(w io.Writer, img image) error {
	out := tar.NewWriter(w)
	for _, dir := range []string{"tmp/", "run/", "run/keyward/", "etc/"} {
		h := &tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}
		if dir == "tmp/" || dir == "run/keyward/" {
			h.Mode = 0o1777
		}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
	}
	for _, name := range sorted(img.files) {
		content, err := os.ReadFile(img.files[name])
		if err != nil {
			return err
		}
		if err := put(out, name, 0o755, content); err != nil {
			return err
		}
	}
	for _, name := range sorted(img.links) {
		if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: img.links[name], Mode: 0o777}); err != nil {
			return err
		}
	}
	return out.Close()
}

func sorted(m map[string]string) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
