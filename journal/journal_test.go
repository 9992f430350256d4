package journal_test

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/keyward/keyward/journal"
	"github.com/keyward/keyward/journal/modeldisk"
)

// rig is a journal on a model disk.
type rig struct {
	*testing.T
	disk *modeldisk.Disk
	o    journal.Options
	j    *journal.Journal
}

// newRig returns a journal with small segments that has begun no generation.
func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{T: t, disk: modeldisk.New(rand.New(rand.NewPCG(1, 1)))}
	r.o = journal.Options{
		FS: r.disk.FS(), Dir: "/data", Label: "shop", Scheme: 1, Member: "pod-0", Boot: 42, SegmentBytes: 16 << 10,
	}
	r.j = journal.New(r.o)
	t.Cleanup(func() { r.j.Close() })
	return r
}

// begin begins a generation.
func (r *rig) begin() {
	r.Helper()
	must(r, r.j.Begin(time.Unix(1000, 0), nil))
}

// write appends payloads and syncs.
func (r *rig) write(payloads ...string) {
	r.Helper()
	for _, p := range payloads {
		must(r, r.j.Append([]byte(p)))
	}
	must(r, r.j.Sync())
}

// load closes the journal and reads it.
func (r *rig) load() (journal.LoadReport, []string) {
	r.Helper()
	must(r, r.j.Close())
	report, payloads, _ := readAll(r, r.disk.FS(), "shop")
	return report, payloads
}

// file returns the path of a segment.
func (r *rig) file(name string) string { return filepath.Join(r.j.Dir(), name+".seg") }

// damage changes a byte of a segment.
func (r *rig) damage(name string, offset int) {
	b := r.disk.Bytes(r.file(name))
	b[offset] ^= 0x40
	r.disk.SetBytes(r.file(name), b)
}

// TestOrder requires that methods that have to come later are errors before, and that none writes after Stop or Close.
func TestOrder(t *testing.T) {
	r := newRig(t)
	for name, err := range map[string]error{
		"append": r.j.Append(nil), "sync": r.j.Sync(), "complete": r.j.Complete(), "stop": r.j.Stop(),
	} {
		if !errors.Is(err, journal.ErrNoGeneration) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if files := r.disk.Files("/"); len(files) > 0 || r.j.Status() != (journal.Status{}) {
		t.Errorf("%v, %+v", files, r.j.Status())
	}
	r.begin()
	r.write("a")
	must(t, r.j.Stop())
	if !r.j.Status().Stopped {
		t.Error("not stopped")
	}
	for name, err := range map[string]error{
		"begin": r.j.Begin(time.Unix(1, 0), nil), "append": r.j.Append(nil), "sync": r.j.Sync(), "stop": r.j.Stop(),
	} {
		if !errors.Is(err, journal.ErrStopped) {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, r.j.Close())
	must(t, r.j.Close())
	if err := r.j.Append(nil); !errors.Is(err, fs.ErrClosed) {
		t.Error(err)
	}
}

// TestTooLarge requires that a payload that does not fit is refused without harm.
func TestTooLarge(t *testing.T) {
	r := newRig(t)
	ring := make([]journal.RingMember, 1000)
	if err := r.j.Begin(time.Unix(1, 0), ring); !errors.Is(err, journal.ErrTooLarge) {
		t.Error(err)
	}
	r.begin()
	fits := strings.Repeat("x", 4096-32)
	for _, n := range []int{journal.MaxPayload + 1, journal.MaxPayload, len(fits) + 1} {
		if err := r.j.Append(make([]byte, n)); !errors.Is(err, journal.ErrTooLarge) {
			t.Errorf("%d: %v", n, err)
		}
	}
	r.write(fits, "y")
	if report, payloads := r.load(); !slices.Equal(payloads, []string{fits, "y"}) || report.Files != 2 {
		t.Errorf("%+v", report)
	}
}

// TestLargestPayload requires that a payload of the maximum length fits in a default segment.
func TestLargestPayload(t *testing.T) {
	r := newRig(t)
	r.o.SegmentBytes = 0
	r.j = journal.New(r.o)
	r.begin()
	large := string(bytes.Repeat([]byte("z"), journal.MaxPayload))
	r.write(large, large)
	if report, payloads := r.load(); !slices.Equal(payloads, []string{large, large}) || report.BadBlocks > 0 {
		t.Errorf("%+v", report)
	}
}

// TestFull requires that a full journal refuses blocks and generations without failing, and can still be completed.
func TestFull(t *testing.T) {
	r := newRig(t)
	r.o.MaxBytes = 40 << 10 // two segments
	r.j = journal.New(r.o)
	r.begin()
	r.write("a", "b")
	if err := r.j.Append([]byte("c")); !errors.Is(err, journal.ErrFull) {
		t.Error(err)
	}
	if err := r.j.Begin(time.Unix(1, 0), nil); !errors.Is(err, journal.ErrFull) {
		t.Error(err)
	}
	if s := r.j.Status(); s.Failed != nil || s.Segments != 2 || s.Bytes != 32<<10 || s.Current != 16<<10 || s.Complete {
		t.Errorf("%+v", s)
	}
	must(t, r.j.Complete())
	must(t, r.j.Complete())
	must(t, r.j.Stop())
	if report, payloads := r.load(); !slices.Equal(payloads, []string{"a", "b"}) || !report.Clean || !report.Complete {
		t.Errorf("%q, %+v", payloads, report)
	}
}

// TestFailedBeginsDoNotFillTheDisk requires that generations that fail at once leave no files.
func TestFailedBeginsDoNotFillTheDisk(t *testing.T) {
	r := newRig(t)
	r.o.MaxBytes = 40 << 10
	r.j = journal.New(r.o)
	r.begin()
	r.write("a")
	must(t, r.j.Complete())
	for range 10 {
		r.disk.Fail(modeldisk.Sync, syscall.EIO)
		if err := r.j.Begin(time.Unix(1, 0), nil); !errors.Is(err, syscall.EIO) || r.j.Status().Failed == nil {
			t.Error(err)
		}
		r.disk.Heal()
		r.begin()
		r.disk.Fail(modeldisk.Write, syscall.EIO)
		if err := r.j.Append(nil); !errors.Is(err, syscall.EIO) {
			t.Error(err)
		}
		if err := r.j.Sync(); !errors.Is(err, syscall.EIO) {
			t.Error(err)
		}
		r.disk.Heal()
	}
	if s := r.j.Status(); s.Segments != 2 || s.Failed == nil {
		t.Errorf("%+v", s)
	}
	r.begin()
	must(t, r.j.Complete())
	if s := r.j.Status(); s.Segments != 1 || s.Bytes != 16<<10 || s.Failed != nil {
		t.Errorf("%+v", s)
	}
}

// TestRefusedBegin requires that a disk that cannot be written is an error of Begin, and that a later Begin succeeds.
func TestRefusedBegin(t *testing.T) {
	r := newRig(t)
	r.disk.SetReadOnly(true)
	if err := r.j.Begin(time.Unix(1, 0), nil); !errors.Is(err, syscall.EROFS) {
		t.Error(err)
	}
	r.disk.Heal()
	r.disk.Fail(modeldisk.Create, fs.ErrPermission)
	if err := r.j.Begin(time.Unix(1, 0), nil); !errors.Is(err, fs.ErrPermission) {
		t.Error(err)
	}
	r.disk.Heal()
	r.disk.SetBudget(1000)
	for _, err := range []error{r.j.Begin(time.Unix(1, 0), nil), r.j.Append(nil)} {
		if !errors.Is(err, syscall.ENOSPC) {
			t.Error(err)
		}
	}
	if used := r.disk.Used("/"); used > 0 {
		t.Errorf("%d bytes remain", used)
	}
	r.disk.Heal()
	r.begin()
	r.write("a")
	if report, payloads := r.load(); !slices.Equal(payloads, []string{"a"}) || report.Files != 1 {
		t.Errorf("%q, %+v", payloads, report)
	}
}

// TestCleanup requires that files that cannot be removed are reported and removed later.
func TestCleanup(t *testing.T) {
	r := newRig(t)
	r.begin()
	must(t, r.j.Complete())
	r.begin()
	r.disk.Fail(modeldisk.Remove, syscall.EIO)
	must(t, r.j.Complete())
	if s := r.j.Status(); !errors.Is(s.Cleanup, syscall.EIO) || s.Segments != 2 || s.Failed != nil {
		t.Errorf("%+v", s)
	}
	r.disk.Heal()
	r.begin()
	if s := r.j.Status(); s.Cleanup != nil || s.Segments != 2 || s.Generation != 3 {
		t.Errorf("%+v", s)
	}
}

// TestStall requires that the status can be read while the disk stalls.
func TestStall(t *testing.T) {
	r := newRig(t)
	r.begin()
	must(t, r.j.Append([]byte("a")))
	stalled, release := make(chan bool), make(chan bool)
	r.disk.Before = func(op modeldisk.Operation, _ string) {
		if op == modeldisk.Sync {
			stalled <- true
			<-release
		}
	}
	done := make(chan error)
	go func() { done <- r.j.Sync() }()
	<-stalled
	if s := r.j.Status(); s.Segments != 1 || s.Current != 8192 {
		t.Errorf("%+v", s)
	}
	close(release)
	must(t, <-done)
}
