package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// publish makes the files of a platform: an archive, its bill of materials and, for Linux, packages.
func (r *release) publish(ctx context.Context, p platform) error {
	built, err := r.compiled(p, "")
	if err != nil {
		return err
	}
	base := fmt.Sprintf("%s_%s_%s", project, r.Version, p)
	if err := r.archive(p, base, built); err != nil {
		return err
	}
	if err := r.materials(ctx, p, base+".cdx.json"); err != nil {
		return err
	}
	if p.OS != "linux" {
		return nil
	}
	if err := r.moduleArchive(p); err != nil {
		return err
	}
	content := r.packageTree(built)
	deb, err := r.deb(p.Arch, content)
	if err != nil {
		return err
	}
	rpm, err := r.rpm(p.Arch, content)
	if err != nil {
		return err
	}
	if err := os.WriteFile(r.files(base+".deb"), deb, 0o644); err != nil {
		return err
	}
	return os.WriteFile(r.files(base+".rpm"), rpm, 0o644)
}

// archive writes the .tar.gz of a platform. Everything in it is in one folder.
func (r *release) archive(p platform, base string, built tree) error {
	content := r.licenses.with(r.manuals, built)
	for _, name := range []string{"LICENSE", "NOTICE", "README.md", "CHANGELOG.md", "SECURITY.md"} {
		if err := content.copyFile(name, filepath.Join(r.root, name)); err != nil {
			return err
		}
	}
	content.link("ratelimit", "sidecar")
	body, err := content.tarGz(base+"/", r.Time)
	if err != nil {
		return err
	}
	return os.WriteFile(r.files(base+".tar.gz"), body, 0o644)
}

// materials writes the bill of materials of a platform's programs, from what the linker wrote into them.
func (r *release) materials(ctx context.Context, p platform, name string) error {
	args := []string{r.Tag}
	for _, program := range programs {
		args = append(args, filepath.Join(r.programs, p.String(), program))
	}
	cmd := exec.CommandContext(ctx, filepath.Join(r.root, "scripts", "sbom"), args...)
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("scripts/sbom: %w", err)
	}
	return os.WriteFile(r.files(name), text, 0o644)
}

// packageTree returns the files that deb and rpm packages install. "sidecar" and "xds" are too common for /usr/bin: only the tool is
// there.
func (r *release) packageTree(built tree) tree {
	t := tree{}
	for name, e := range built {
		t["usr/lib/keyward/"+name] = e
	}
	t.link("usr/lib/keyward/ratelimit", "sidecar")
	t.link("usr/bin/keyward", "/usr/lib/keyward/keyward")
	for name, e := range r.manuals {
		t["usr/share/man/man1/"+filepath.Base(name)] = e
	}
	for name, e := range r.licenses {
		t["usr/share/doc/keyward/"+name] = e
	}
	return t
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
