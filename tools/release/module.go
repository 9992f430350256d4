package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// moduleABIs are the interfaces of Envoy for which there is a file of the dynamic module.
var moduleABIs = []string{"1_36", "v0_1_0", "v0_2_0"}

// moduleFiles returns the dynamic module's files of a platform in a folder, and the licenses of the crates in them. It returns an empty
// tree if the release has no module, or if a dry run has none for the platform, and an error if a file is missing.
func (r *release) moduleFiles(p platform, folder string) (tree, error) {
	t := tree{}
	if r.modules == "" {
		return t, nil
	}
	if _, err := os.Stat(filepath.Join(r.modules, p.String())); r.DryRun && errors.Is(err, os.ErrNotExist) {
		fmt.Fprintf(os.Stderr, "NOT BUILT: the dynamic module for %s, because rustc has no such target\n", p)
		return t, nil
	}
	for _, abi := range moduleABIs {
		file := "libkeyward_abi_" + abi + ".so"
		body, err := os.ReadFile(filepath.Join(r.modules, p.String(), file))
		if err != nil {
			return nil, fmt.Errorf("dynamic module: %w", err)
		}
		t.file(folder+file, 0o644, body)
	}
	if err := t.copyDir("licenses/crates.io", filepath.Join(r.modules, "licenses")); err != nil {
		return nil, err
	}
	return t, nil
}

// moduleArchive writes the dynamic module's files of a platform, for Envoys outside containers.
func (r *release) moduleArchive(p platform) error {
	content, err := r.moduleFiles(p, "")
	if err != nil || len(content) == 0 {
		return err
	}
	for _, name := range []string{"LICENSE", "NOTICE"} {
		if err := content.copyFile(name, filepath.Join(r.root, name)); err != nil {
			return err
		}
	}
	base := fmt.Sprintf("%s_%s_%s", moduleImageName, r.Version, p)
	body, err := content.tarGz(base+"/", r.Time)
	if err != nil {
		return err
	}
	return os.WriteFile(r.files(base+".tar.gz"), body, 0o644)
}

// tryModule has the keyward of an image copy the file for an Envoy, as an init container does.
func (r *release) tryModule(ctx context.Context, image io.Reader) error {
	dir, err := os.MkdirTemp("", "release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	in := tar.NewReader(image)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		name := clean(h.Name)
		if h.Typeflag != tar.TypeReg || name != "bin/keyward" && !strings.HasPrefix(name, "module/") {
			continue
		}
		body, err := io.ReadAll(in)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), body, 0o755); err != nil { //nolint:gosec // keyward is executed
			return err
		}
	}
	for _, envoy := range []string{"1.36", "1.39", "1.40"} {
		out, err := exec.CommandContext(ctx, filepath.Join(dir, "bin/keyward"), "module", "--envoy", envoy, "--from", filepath.Join(dir, "module"), "--to", dir).CombinedOutput()
		if err != nil {
			return fmt.Errorf("keyward module --envoy %s: %w: %s", envoy, err, out)
		}
	}
	return nil
}
