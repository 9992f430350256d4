package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/keyward/keyward/envoy/snippet"
)

// builtModules returns a directory with a file for each ABI, as scripts/module writes them. Their content is their name.
func builtModules(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range snippet.ModuleFiles() {
		//nolint:gosec // the mode of what cargo builds
		if err := os.WriteFile(filepath.Join(dir, f.Name()), bytes.Repeat([]byte(f.Name()), 1<<14), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestModuleCopies requires that each version gets its file, complete and readable for Envoy's user, and that nothing else
// is left in the directory.
func TestModuleCopies(t *testing.T) {
	from := builtModules(t)
	for version, name := range map[string]string{
		"1.36.4": "libkeyward_abi_1_36.so", "1.38": "libkeyward_abi_v0_1_0.so", "v1.39.3": "libkeyward_abi_v0_1_0.so", "1.40.0": "libkeyward_abi_v0_2_0.so",
	} {
		to := t.TempDir()
		out, err := run(t, "module", "--envoy", version, "--to", to, "--from", from)
		if err != nil || !strings.HasPrefix(out, filepath.Join(to, name)+" is for Envoy 1.") {
			t.Errorf("%s: %q, %v", version, out, err)
		}
		files, err := os.ReadDir(to)
		if err != nil || len(files) != 1 || files[0].Name() != name {
			t.Fatalf("%s: %v, %v, want only %s", version, files, err, name)
		}
		got, err := os.ReadFile(filepath.Join(to, name))
		if err != nil || !bytes.Equal(got, bytes.Repeat([]byte(name), 1<<14)) {
			t.Errorf("%s: %d bytes of another file: %v", version, len(got), err)
		}
		if info, err := files[0].Info(); err != nil || info.Mode() != 0o644 {
			t.Errorf("%s: mode %v, %v, want 0644", version, info.Mode(), err)
		}
	}
}

// TestModuleReplaces requires that an Envoy which has loaded the former file keeps it: the new one has another inode.
func TestModuleReplaces(t *testing.T) {
	from, to := builtModules(t), t.TempDir()
	file := filepath.Join(to, "libkeyward_abi_v0_2_0.so")
	if err := os.WriteFile(file, []byte("former"), 0o444); err != nil {
		t.Fatal(err)
	}
	loaded, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer loaded.Close()
	if _, err := run(t, "module", "--envoy", "1.40", "--to", to, "--from", from); err != nil {
		t.Fatal(err)
	}
	former := make([]byte, 16)
	if n, _ := loaded.Read(former); string(former[:n]) != "former" {
		t.Errorf("the loaded file has changed to %q", former[:n])
	}
	if now, err := os.ReadFile(file); err != nil || !bytes.HasPrefix(now, []byte("libkeyward_abi_v0_2_0.so")) {
		t.Errorf("the new file is %.20q: %v", now, err)
	}
}

// TestModuleErrors requires that an error names the flag and what to do, and that the directory stays empty.
func TestModuleErrors(t *testing.T) {
	from, to, lacking := builtModules(t), t.TempDir(), t.TempDir()
	empty := filepath.Join(lacking, "libkeyward_abi_1_36.so")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(lacking, "libkeyward_abi_v0_1_0.so"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "want --envoy VERSION and --to DIR, or --list"},
		{[]string{"--envoy", "1.40"}, "want --envoy VERSION and --to DIR, or --list"},
		{[]string{"--envoy", "1.37.2", "--to", to}, "--envoy: there is no module for Envoy 1.37, only for 1.36, 1.38, 1.39 and 1.40"},
		{[]string{"--envoy", "latest", "--to", to}, `--envoy: envoy version "latest": want something like 1.40.0; there is a module for 1.36, 1.38, 1.39 and 1.40`},
		{[]string{"--envoy", "1.40", "--to", to, "--from", lacking}, "--from: open " + lacking + "/libkeyward_abi_v0_2_0.so: no such file or directory: scripts/module builds it, and the image of deploy/module has it in /module"},
		{[]string{"--envoy", "1.36", "--to", to, "--from", lacking}, "--from: " + empty + " is empty or no regular file"},
		{[]string{"--envoy", "1.38", "--to", to, "--from", lacking}, "--from: " + lacking + "/libkeyward_abi_v0_1_0.so is empty or no regular file"},
		{[]string{"--envoy", "1.40", "--to", filepath.Join(to, "absent"), "--from", from}, "no such file or directory"},
		{[]string{"--envoy", "1.40", "--to", empty, "--from", from}, "--to: " + empty + " is not a directory"},
		{[]string{"--list", "--envoy", "1.40"}, "if any flags in the group [list envoy] are set none of the others can be"},
	} {
		if _, err := run(t, append([]string{"module"}, c.args...)...); err == nil || !strings.Contains(err.Error(), c.want) || exitCode(err) != 1 {
			t.Errorf("%v:\n got %v\nwant %s", c.args, err, c.want)
		}
	}
	if files, err := os.ReadDir(to); err != nil || len(files) > 0 {
		t.Errorf("files are left: %v, %v", files, err)
	}
}

// TestModuleList requires that the list has every file and shows which ones are missing.
func TestModuleList(t *testing.T) {
	from := builtModules(t)
	if err := os.Remove(filepath.Join(from, "libkeyward_abi_v0_1_0.so")); err != nil {
		t.Fatal(err)
	}
	out, err := run(t, "module", "--list", "--from", from)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/commands/module.txt", strings.ReplaceAll(out, from, "DIR"))
}
