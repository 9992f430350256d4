package journal_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keyward/keyward/journal"
)

// helperVariable names what a second process of this test does; its arguments follow in helperDir.
const (
	helperVariable = "JOURNAL_TEST_HELPER"
	helperDir      = "JOURNAL_TEST_DIR"
)

func TestMain(m *testing.M) {
	switch os.Getenv(helperVariable) {
	case "":
		os.Exit(m.Run())
	case "open":
		boots, err := journal.Boots(journal.OS(), os.Getenv(helperDir), "shop")
		if err == nil && len(boots) == 1 {
			_, err = boots[0].Open()
		}
		report(err)
	case "limit":
		report(writeLimited(os.Getenv(helperDir)))
	}
}

// report ends a helper: it writes the error to the standard output.
func report(err error) {
	fmt.Fprintln(os.Stdout, err)
	os.Exit(0)
}

// helper runs this test as a second process and returns what it reports.
func helper(t *testing.T, task, dir string) string {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), helperVariable+"="+task, helperDir+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// osOptions returns the options of a journal on the operating system's disk.
func osOptions(dir string) journal.Options {
	return journal.Options{Dir: dir, Label: "shop", Scheme: 1, Member: "pod-0", Boot: 42, SegmentBytes: 1 << 16}
}

// start begins a generation on the operating system's disk.
func start(t testing.TB, o journal.Options) *journal.Journal {
	t.Helper()
	j := journal.New(o)
	t.Cleanup(func() { j.Close() })
	if err := j.Begin(time.Unix(1000, 0), nil); err != nil {
		t.Fatal(err)
	}
	return j
}

// TestOS requires that journals on a real disk work: modes, generations, reading, and removal.
func TestOS(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	j := journal.New(osOptions(dir))
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Error("New makes a directory")
	}
	j.Close()
	j = start(t, osOptions(dir))
	for generation := range 3 {
		if generation > 0 {
			must(t, j.Begin(time.Unix(2000, 0), nil))
		}
		for i := range 30 {
			must(t, j.Append(append(make([]byte, 5000), byte(i))))
		}
		must(t, j.Complete())
	}
	const pages = 5 + 30*2 + 1 // headers, blocks, end
	s := j.Status()
	if s.Segments != 5 || s.Generation != 3 || !s.Complete || s.Cleanup != nil || s.Current != pages*4096 {
		t.Errorf("%+v", s)
	}
	must(t, j.Stop())
	must(t, j.Close())
	for path, mode := range map[string]fs.FileMode{
		dir: 0o700, j.Dir(): 0o700, filepath.Join(j.Dir(), "LOCK"): 0o600,
		filepath.Join(j.Dir(), "00000003-00000000.seg"): 0o600,
	} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%v, %v", info, err)
		}
	}
	report, payloads, _ := readDir(t, journal.OS(), dir, "shop")
	if len(payloads) != 30 || !report.Clean || !report.Complete || report.Bytes != 30*5001 || report.Files != 5 {
		t.Errorf("%d, %+v", len(payloads), report)
	}
	if boots, err := journal.Boots(journal.OS(), dir, "other"); err != nil || len(boots) > 0 {
		t.Errorf("%v, %v", boots, err)
	}
	removeAll(t, dir)
}

// removeAll reads and removes the only boot's directory.
func removeAll(t *testing.T, dir string) {
	t.Helper()
	boots, err := journal.Boots(journal.OS(), dir, "shop")
	must(t, err)
	r, err := boots[0].Open()
	must(t, err)
	defer r.Close()
	if err := r.Remove(); !errors.Is(err, journal.ErrNotRead) {
		t.Errorf("removed before it was read: %v", err)
	}
	_, err = r.Read(func(journal.Block) error { return nil })
	must(t, err)
	must(t, r.Remove())
	must(t, r.Remove())
	if left, err := journal.Boots(journal.OS(), dir, "shop"); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestLock requires that a directory is read by one process only, and never while its boot runs.
func TestLock(t *testing.T) {
	dir := t.TempDir()
	j := start(t, osOptions(dir))
	boots, err := journal.Boots(journal.OS(), dir, "shop")
	must(t, err)
	if _, err := boots[0].Open(); !errors.Is(err, journal.ErrLocked) {
		t.Errorf("in the same process: %v", err)
	}
	want := fmt.Sprintf("lock %s: %v\n", filepath.Join(j.Dir(), "LOCK"), journal.ErrLocked)
	if got := helper(t, "open", dir); got != want {
		t.Errorf("while the boot runs: %q, not %q", got, want)
	}
	must(t, j.Close())
	if got := helper(t, "open", dir); got != "<nil>\n" {
		t.Errorf("after the boot has ended: %q", got)
	}
	r, err := boots[0].Open()
	must(t, err)
	if got := helper(t, "open", dir); got != want {
		t.Errorf("while another process reads: %q", got)
	}
	must(t, r.Close())
	must(t, r.Close())
	j = journal.New(osOptions(dir))
	defer j.Close()
	if err := j.Begin(time.Unix(1, 0), nil); !errors.Is(err, fs.ErrExist) {
		t.Errorf("the same boot writes again: %v", err)
	}
}

// TestUnwritable requires that a directory that cannot be written is an error of Begin, and can be read.
func TestUnwritable(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	j := journal.New(osOptions(filepath.Join(dir, "file")))
	defer j.Close()
	if err := j.Begin(time.Unix(1, 0), nil); err == nil || j.Status().Failed == nil {
		t.Error("a file is used as a directory")
	}
	if os.Geteuid() == 0 {
		return // root may write everywhere
	}
	must(t, os.Chmod(dir, 0o500))
	t.Cleanup(func() { os.Chmod(dir, 0o700) })
	j = journal.New(osOptions(dir))
	defer j.Close()
	if err := j.Begin(time.Unix(1, 0), nil); !errors.Is(err, fs.ErrPermission) {
		t.Error(err)
	}
}

// TestCopyWhileWriting requires that a copy of the files of a running boot has everything that was confirmed before.
func TestCopyWhileWriting(t *testing.T) {
	dir := t.TempDir()
	j := start(t, osOptions(dir))
	var confirmed, stop atomic.Int64
	done := make(chan error, 1)
	go func() {
		for i := int64(1); stop.Load() == 0; i++ {
			if err := j.Append(make([]byte, 3000+i%9000)); err != nil {
				done <- err
				return
			}
			if i%5 == 0 {
				if err := j.Sync(); err != nil {
					done <- err
					return
				}
				confirmed.Store(i)
			}
		}
		done <- nil
	}()
	for range 20 {
		least, to := confirmed.Load(), t.TempDir()
		must(t, os.CopyFS(to, os.DirFS(dir)))
		report, payloads, _ := readDir(t, journal.OS(), to, "shop")
		if int64(len(payloads)) < least || report.UnreadableFiles > 0 {
			t.Errorf("%d blocks, at least %d were confirmed: %+v", len(payloads), least, report)
		}
	}
	stop.Store(1)
	must(t, <-done)
}

// TestSharedDirectory requires that boots that begin at the same time below one directory, which does not exist, do not
// disturb each other.
func TestSharedDirectory(t *testing.T) {
	for round := range 50 {
		dir := filepath.Join(t.TempDir(), "a", "b")
		var wg sync.WaitGroup
		for boot := range uint64(6) {
			wg.Go(func() {
				j := journal.New(journal.Options{Dir: dir, Label: "shared", Boot: boot + 1, SegmentBytes: 1 << 16})
				defer j.Close()
				if err := errors.Join(j.Begin(time.Unix(0, 0), nil), j.Append([]byte("x")), j.Sync()); err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		wg.Wait()
		if boots, err := journal.Boots(journal.OS(), dir, "shared"); err != nil || len(boots) != 6 {
			t.Errorf("%d boots, %v", len(boots), err)
		}
	}
}
