package journal_test

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/keyward/keyward/journal"
	"github.com/keyward/keyward/journal/modeldisk"
)

// TestCleanEndsWithAGeneration requires that a boot that continues after a failed Stop is not reported as stopped.
func TestCleanEndsWithAGeneration(t *testing.T) {
	for _, again := range []bool{false, true} {
		r := newRig(t)
		r.begin()
		r.write("a")
		must(t, r.j.Append([]byte("b"))) // in a new segment, of which the name has to be synced
		r.disk.Fail(modeldisk.SyncDir, syscall.EIO)
		if err := r.j.Stop(); !errors.Is(err, syscall.EIO) {
			t.Fatal(err)
		}
		r.disk.Heal()
		if again {
			r.begin()
		}
		if report, payloads := r.load(); report.Clean == again || len(payloads) != 2 || report.BadBlocks > 0 {
			t.Errorf("%v: %q, %+v", again, payloads, report)
		}
	}
}

// TestRemovalsAreDurable requires that files that were removed before a clean stop do not return.
func TestRemovalsAreDurable(t *testing.T) {
	for seed := range uint64(50) {
		r := newRig(t)
		r.disk = modeldisk.New(rand.New(rand.NewPCG(seed, 1)))
		r.o.FS = r.disk.FS()
		r.j = journal.New(r.o)
		r.begin()
		must(t, r.j.Append([]byte("old")))
		r.begin()
		must(t, r.j.Complete())
		must(t, r.j.Stop())
		r.disk.PowerLoss()
		if report, payloads, _ := readAll(t, r.disk.FS(), "shop"); len(payloads) > 0 || report.Files != 1 || !report.Clean {
			t.Fatalf("%q, %+v", payloads, report)
		}
	}
}

// TestNewParents requires that the directories above the journals are durable, also after a failure.
func TestNewParents(t *testing.T) {
	for seed := range uint64(50) {
		disk := modeldisk.New(rand.New(rand.NewPCG(seed, 1)))
		j := journal.New(journal.Options{
			FS: disk.FS(), Dir: "/var/lib/keyward", Label: "shop", Boot: 1, SegmentBytes: 1 << 14,
		})
		for _, op := range []modeldisk.Operation{modeldisk.SyncDir, modeldisk.Mkdir, modeldisk.Lock, modeldisk.List} {
			disk.Fail(op, syscall.EIO)
			if err := j.Begin(time.Unix(1, 0), nil); !errors.Is(err, syscall.EIO) {
				t.Fatal(err)
			}
			disk.Heal()
		}
		must(t, j.Begin(time.Unix(1, 0), nil))
		must(t, j.Append([]byte("a")))
		must(t, j.Sync())
		disk.PowerLoss()
		if _, payloads, _ := readDir(t, disk.FS(), "/var/lib/keyward", "shop"); !slices.Equal(payloads, []string{"a"}) {
			t.Fatalf("seed %d: %q", seed, payloads)
		}
	}
}

// TestFilesAreClosed requires that a journal keeps no more files open than it needs.
func TestFilesAreClosed(t *testing.T) {
	r := newRig(t)
	files := &openFiles{FS: r.o.FS}
	r.o.FS = files
	r.j = journal.New(r.o)
	for range 3 {
		r.begin()
		for range 20 {
			r.write("a")
			r.write("a", "b", "c")
		}
		if files.open != 1 {
			t.Errorf("%d files are open", files.open)
		}
	}
	r.disk.Fail(modeldisk.Write, syscall.EIO)
	if err := r.j.Append(nil); err == nil || files.open != 0 {
		t.Errorf("%v, %d files are open", err, files.open)
	}
	r.disk.Heal()
	r.begin()
	must(t, r.j.Close())
	if files.open != 0 {
		t.Errorf("%d files are open", files.open)
	}
}

// openFiles counts the files that are open for writing.
type openFiles struct {
	journal.FS
	open int
}

func (o *openFiles) Create(path string) (journal.SegmentWriter, error) {
	f, err := o.FS.Create(path)
	if err == nil {
		o.open++
	}
	return &countedFile{f, o}, err
}

type countedFile struct {
	journal.SegmentWriter
	files *openFiles
}

func (f *countedFile) Close() error {
	f.files.open--
	return f.SegmentWriter.Close()
}

// TestPartialRemoval requires that a directory can be read and removed after a removal that has stopped half-way.
func TestPartialRemoval(t *testing.T) {
	for failAt := 1; failAt <= 4; failAt++ {
		r := newRig(t)
		r.begin()
		r.write("1", "2", "3")
		r.damage("00000001-00000002", 40) // its header
		must(t, r.j.Close())
		report, reader, err := readDirSorted(t, r)
		if err != nil || report.Blocks != 3 || report.UnreadableFiles != 0 {
			t.Fatalf("%v, %+v", err, report)
		}
		removals := 0
		r.disk.Before = func(op modeldisk.Operation, _ string) {
			if op == modeldisk.Remove {
				if removals++; removals == failAt {
					r.disk.Fail(modeldisk.Remove, syscall.EIO)
				}
			}
		}
		if err := reader.Remove(); !errors.Is(err, syscall.EIO) {
			t.Error(err)
		}
		r.disk.Heal()
		must(t, reader.Close())
		if report, reader, err = readDirSorted(t, r); err != nil || report.UnreadableFiles != 0 {
			t.Errorf("%v, %+v", err, report)
		}
		must(t, reader.Remove())
		must(t, reader.Close())
	}
}

// TestMoreDamage is TestDamage for blocks of several pages and for large files.
func TestMoreDamage(t *testing.T) {
	large := strings.Repeat("x", 20000) // 5 pages
	tests := map[string]struct {
		harm    func(b []byte) []byte
		read    int
		bad     int
		missing uint64
	}{
		"nothing":             {func(b []byte) []byte { return b }, 3, 0, 0},
		"cut in a long block": {func(b []byte) []byte { return b[:13*4096] }, 2, 1, 0},
		"a length of 2 MiB":   {func(b []byte) []byte { le.PutUint32(b[4096+8:], 2<<20); return b }, 2, 1, 1},
		"a page of zeros":     {func(b []byte) []byte { clear(b[2*4096 : 3*4096]); return b }, 2, 2, 1},
		"a block twice":       {func(b []byte) []byte { copy(b[16*4096:], b[4096:6*4096]); return b }, 3, 1, 0},
		"a header twice":      {func(b []byte) []byte { copy(b[16*4096:], b[:4096]); return b }, 3, 1, 0},
		"an unknown kind":     {func(b []byte) []byte { b[6*4096+4] = 5; seal(b[6*4096:]); return b }, 2, 1, 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.o.SegmentBytes = 4 << 20
			r.j = journal.New(r.o)
			r.begin()
			r.write(large, large, large)
			const name = "00000001-00000000"
			r.disk.SetBytes(r.file(name), test.harm(r.disk.Bytes(r.file(name))))
			report, payloads := r.load()
			if len(payloads) != test.read || report.BadBlocks != test.bad || report.MissingBlocks != test.missing ||
				report.UnreadableFiles != 0 {
				t.Errorf("%+v", report)
			}
		})
	}
}

var le = binary.LittleEndian

// TestMissingBeforeAnEmptySegment requires that a header shows that the blocks before it are missing.
func TestMissingBeforeAnEmptySegment(t *testing.T) {
	r := newRig(t)
	r.begin()
	r.write("1", "2")
	r.cut("00000001-00000000", 4096)
	r.cut("00000001-00000001", 4096)
	if report, payloads := r.load(); len(payloads) > 0 || report.MissingBlocks != 1 || report.BadBlocks != 0 {
		t.Errorf("%q, %+v", payloads, report)
	}
}
