package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// try uses what build has made, as users do: it pushes everything to a registry on loopback, pulls it from there by
// digest, starts the programs for this machine, and gets the charts with Helm.
func try(ctx context.Context, o options) error {
	r, err := load(o)
	if err != nil {
		return err
	}
	if err := r.tryArchive(ctx); err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	address, stop, err := serveRegistry()
	if err != nil {
		return err
	}
	defer stop()
	prefix := address + "/" + project
	if err := r.pushAll(ctx, prefix, remote.WithContext(ctx)); err != nil {
		return err
	}
	for _, name := range []string{imageName, moduleImageName} {
		if err := r.tryImage(ctx, prefix, name); err != nil {
			return fmt.Errorf("image %s: %w", name, err)
		}
	}
	if o.helm == "" {
		fmt.Fprintln(os.Stderr, "NOT TRIED: no Helm; scripts/release-dry-run finds the one of test/kube/tools/build helm")
		return r.tryCharts(prefix)
	}
	for helm := range strings.SplitSeq(o.helm, ",") {
		if err := r.tryHelm(ctx, helm, prefix); err != nil {
			return fmt.Errorf("%s: %w", helm, err)
		}
	}
	return nil
}

// serveRegistry starts a registry in memory.
func serveRegistry() (address string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	s := &http.Server{Handler: registry.New(registry.Logger(log.New(io.Discard, "", 0))), ReadHeaderTimeout: time.Minute}
	go func() { _ = s.Serve(l) }()
	return l.Addr().String(), func() { s.Close() }, nil
}

// tryArchive starts each program of this machine's archive.
func (r *release) tryArchive(ctx context.Context) error {
	here := platform{runtime.GOOS, runtime.GOARCH}
	if !slices.Contains(r.Platforms, here) {
		return nil
	}
	base := fmt.Sprintf("%s_%s_%s", project, r.Version, here)
	f, err := os.Open(r.files(base + ".tar.gz"))
	if err != nil {
		return err
	}
	defer f.Close()
	plain, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	return r.tryPrograms(ctx, plain, base+"/")
}

// tryPrograms unpacks the programs of an archive and requires that each one's --version prints the tag.
func (r *release) tryPrograms(ctx context.Context, archive io.Reader, folder string) error {
	dir, err := os.MkdirTemp("", "release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	in := tar.NewReader(archive)
	found := map[string]bool{}
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		program, inside := strings.CutPrefix(clean(h.Name), clean(folder)+"/")
		if !inside || h.Typeflag != tar.TypeReg || !slices.Contains(programs, program) {
			continue
		}
		body, err := io.ReadAll(in)
		if err != nil {
			return err
		}
		if err := r.tryProgram(ctx, filepath.Join(dir, program), body); err != nil {
			return err
		}
		found[program] = true
	}
	if len(found) != len(programs) {
		return fmt.Errorf("its programs are %v, want %v", sortedKeys(found), programs)
	}
	return nil
}

func (r *release) tryProgram(ctx context.Context, file string, body []byte) error {
	if err := os.WriteFile(file, body, 0o700); err != nil { //nolint:gosec // it is executed
		return err
	}
	out, err := exec.CommandContext(ctx, file, "--version").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s --version: %w\n%s", filepath.Base(file), err, out)
	}
	if want := filepath.Base(file) + " version " + r.Tag + "\n"; string(out) != want {
		return fmt.Errorf("--version prints %q, want %q", out, want)
	}
	return nil
}

// tryImage pulls the index by its digest and by its tags, checks all digests in it, and starts the programs of this
// machine's image.
func (r *release) tryImage(ctx context.Context, prefix, repository string) error {
	digest, ok := r.Digests[repository]
	if !ok {
		return nil
	}
	ref, err := name.NewDigest(prefix + "/" + repository + "@" + digest)
	if err != nil {
		return err
	}
	index, err := remote.Index(ref, remote.WithContext(ctx))
	if err != nil {
		return err
	}
	if err := validate.Index(index); err != nil {
		return err
	}
	for _, tag := range imageTags(r.Tag) {
		d, err := remote.Head(ref.Context().Tag(tag), remote.WithContext(ctx))
		if err != nil {
			return err
		}
		if d.Digest.String() != digest {
			return fmt.Errorf("the tag %s is %s, want %s", tag, d.Digest, digest)
		}
	}
	if !slices.Contains(r.Platforms, platform{"linux", runtime.GOARCH}) || runtime.GOOS != "linux" {
		return nil
	}
	img, err := remote.Image(ref, remote.WithContext(ctx), remote.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}))
	if err != nil {
		return err
	}
	files := mutate.Extract(img)
	defer files.Close()
	if repository == moduleImageName {
		return r.tryModule(ctx, files)
	}
	return r.tryPrograms(ctx, files, "bin/")
}

// tryCharts pulls the charts without Helm.
func (r *release) tryCharts(prefix string) error {
	for repository := range chartFolders {
		ref, err := name.NewDigest(prefix + "/" + repository + "@" + r.Digests[repository])
		if err != nil {
			return err
		}
		if _, err := remote.Image(ref); err != nil {
			return err
		}
	}
	return nil
}

// tryHelm gets the charts as users do, and requires that the chart asks for the published image.
func (r *release) tryHelm(ctx context.Context, helm, prefix string) error {
	dir, err := os.MkdirTemp("", "release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	run := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, helm, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "HELM_CACHE_HOME="+dir, "HELM_CONFIG_HOME="+dir, "HELM_DATA_HOME="+dir)
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("helm %s: %w\n%s", strings.Join(args, " "), err, out)
		}
		return string(out), err
	}
	for repository := range chartFolders {
		if _, err := run("pull", "oci://"+prefix+"/"+repository, "--version", r.Version, "--plain-http"); err != nil {
			return err
		}
		file := fmt.Sprintf("%s-%s.tgz", filepath.Base(repository), r.Version)
		pulled, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return err
		}
		made, err := os.ReadFile(r.files(file))
		if err != nil {
			return err
		}
		if sum(pulled) != sum(made) {
			return fmt.Errorf("helm pull got another %s", file)
		}
	}
	out, err := run("template", "keyward", "oci://"+prefix+"/charts/keyward", "--version", r.Version, "--plain-http")
	if err != nil {
		return err
	}
	if want := "image: " + defaultRegistry + "/" + imageName + ":" + r.Tag; !strings.Contains(out, want) {
		return fmt.Errorf("the chart does not ask for the image that is published: no %q", want)
	}
	return nil
}
