package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// TestModuleCannotWrite requires that the error about a volume of another user names the user of the process, and that
// the former file stays.
func TestModuleCannotWrite(t *testing.T) {
	from, to := builtModules(t), t.TempDir()
	file := filepath.Join(to, "libkeyward_abi_v0_2_0.so")
	// Another user may search the folders, which are those of one test.
	if err := errors.Join(os.Chmod(filepath.Dir(to), 0o755), os.Chmod(from, 0o755)); err != nil { //nolint:gosec // for another user
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(file, []byte("former"), 0o644), os.Chmod(to, 0o555)); err != nil { //nolint:gosec // for another user
		t.Fatal(err)
	}
	if os.Getuid() == 0 { // root may write everywhere: this thread accesses files as another user
		runtime.LockOSThread()
		if err := syscall.Setfsuid(65534); err != nil {
			t.Fatal(err)
		}
	}
	_, err := run(t, "module", "--envoy", "1.40", "--to", to, "--from", from)
	if os.Getuid() == 0 {
		if err := syscall.Setfsuid(0); err != nil {
			t.Fatal(err)
		}
		runtime.UnlockOSThread()
	}
	if !errors.Is(err, fs.ErrPermission) || !strings.HasPrefix(err.Error(), "--to: ") || !strings.Contains(err.Error(), ": the user ") {
		t.Errorf("%v", err)
	}
	if former, err := os.ReadFile(file); err != nil || string(former) != "former" {
		t.Errorf("the former file is now %q: %v", former, err)
	}
}
