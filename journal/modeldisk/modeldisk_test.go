package modeldisk_test

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"github.com/keyward/keyward/journal"
	"github.com/keyward/keyward/journal/modeldisk"
)

// newDisk returns a disk with a file of a kilobyte, of which the first half is durable, and its name too if named is
// set.
func newDisk(t *testing.T, seed uint64, named bool) (*modeldisk.Disk, journal.FS, journal.SegmentWriter) {
	t.Helper()
	d := modeldisk.New(rand.New(rand.NewPCG(seed, 1)))
	files := d.FS()
	f, err := files.Create("/file")
	must(t, err)
	write(t, f, 0, 1)
	must(t, f.Sync())
	write(t, f, 512, 2)
	if named {
		must(t, files.SyncDir("/"))
	}
	return d, files, f
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// write fills a sector.
func write(t *testing.T, f journal.SegmentWriter, off int64, value byte) {
	t.Helper()
	n, err := f.WriteAt(slices.Repeat([]byte{value}, 512), off)
	if err != nil || n != 512 {
		t.Fatalf("%d, %v", n, err)
	}
}

// crash does something with a disk, its file system and an open file.
type crash func(d *modeldisk.Disk, files journal.FS, f journal.SegmentWriter)

// outcomes counts how often each outcome of a crash occurs in 200 seeds.
func outcomes(t *testing.T, named bool, crash crash) map[string]int {
	t.Helper()
	seen := map[string]int{}
	for seed := range uint64(200) {
		d, files, f := newDisk(t, seed, named)
		crash(d, files, f)
		content := d.Bytes("/file")
		outcome := "no file"
		if content != nil {
			outcome = ""
			for i := 0; i < len(content); i += 512 {
				outcome += string('0' + content[i])
			}
		}
		seen[outcome]++
	}
	return seen
}

// requireOutcomes requires that exactly these outcomes occur.
func requireOutcomes(t *testing.T, seen map[string]int, want ...string) {
	t.Helper()
	for _, outcome := range want {
		if seen[outcome] == 0 {
			t.Errorf("%q never occurs: %v", outcome, seen)
		}
	}
	if len(seen) != len(want) {
		t.Errorf("outcomes %v, not %q", seen, want)
	}
}

// TestKill requires that the end of a process keeps what it has written, and ends its use of the disk.
func TestKill(t *testing.T) {
	requireOutcomes(t, outcomes(t, false, func(d *modeldisk.Disk, files journal.FS, f journal.SegmentWriter) {
		lock, err := files.Lock("/LOCK")
		must(t, err)
		d.Kill()
		must(t, lock.Close())
		_, err = f.WriteAt([]byte{3}, 0)
		_, lockErr := files.Lock("/other")
		for _, err := range []error{err, lockErr, f.Sync(), f.Preallocate(9), files.Mkdir("/dir"), files.SyncDir("/")} {
			if !errors.Is(err, modeldisk.ErrDead) {
				t.Error(err)
			}
		}
		again, err := d.FS().Lock("/LOCK")
		must(t, err)
		if _, err := d.FS().Lock("/LOCK"); !errors.Is(err, journal.ErrLocked) {
			t.Error(err)
		}
		must(t, again.Close())
	}), "12")
}

// TestPowerLoss requires that only what was synced is certain to survive.
func TestPowerLoss(t *testing.T) {
	lose := func(d *modeldisk.Disk, _ journal.FS, _ journal.SegmentWriter) { d.PowerLoss() }
	requireOutcomes(t, outcomes(t, true, lose), "1", "10", "12")
	requireOutcomes(t, outcomes(t, false, lose), "1", "10", "12", "no file")
	requireOutcomes(t, outcomes(t, true, func(d *modeldisk.Disk, files journal.FS, f journal.SegmentWriter) {
		must(t, f.Sync())
		must(t, files.Remove("/file"))
		d.PowerLoss()
	}), "12", "no file")
}

// TestFailedSync requires that a sync that is repeated after an error succeeds without effect.
func TestFailedSync(t *testing.T) {
	fail := func(d *modeldisk.Disk, f journal.SegmentWriter) {
		d.Fail(modeldisk.Sync, syscall.EIO)
		if err := f.Sync(); !errors.Is(err, syscall.EIO) {
			t.Error(err)
		}
		d.Heal()
		must(t, f.Sync())
	}
	requireOutcomes(t, outcomes(t, true, func(d *modeldisk.Disk, _ journal.FS, f journal.SegmentWriter) {
		fail(d, f)
		d.PowerLoss()
	}), "10", "12")
	requireOutcomes(t, outcomes(t, true, func(d *modeldisk.Disk, _ journal.FS, f journal.SegmentWriter) { fail(d, f) }),
		"10", "12")
	requireOutcomes(t, outcomes(t, false, func(d *modeldisk.Disk, files journal.FS, f journal.SegmentWriter) {
		must(t, f.Sync())
		d.Fail(modeldisk.SyncDir, syscall.EIO)
		if err := files.SyncDir("/"); !errors.Is(err, syscall.EIO) {
			t.Error(err)
		}
		d.Heal()
		must(t, files.SyncDir("/"))
		d.PowerLoss()
	}), "12", "no file")
}

// TestFaults requires that each fault has its error.
func TestFaults(t *testing.T) {
	d, files, f := newDisk(t, 1, true)
	d.SetBudget(1024 + 100)
	if _, err := f.WriteAt(make([]byte, 512), 1024); !errors.Is(err, syscall.ENOSPC) {
		t.Error(err)
	}
	if err := f.Preallocate(4096); !errors.Is(err, syscall.ENOSPC) {
		t.Error(err)
	}
	write(t, f, 0, 4) // needs no space
	d.Heal()
	d.SetReadOnly(true)
	_, created := files.Create("/x")
	_, locked := files.Lock("/x")
	for _, err := range []error{created, locked, files.Mkdir("/x"), files.Remove("/file")} {
		if !errors.Is(err, syscall.EROFS) {
			t.Error(err)
		}
	}
	d.Heal()
	d.Fail(modeldisk.Open, fs.ErrPermission)
	if _, err := files.Open("/file"); !errors.Is(err, fs.ErrPermission) {
		t.Error(err)
	}
	d.Heal()
	must(t, f.Preallocate(4096))
	if d.Used("/") != 4096 || d.Used("/none") != 0 || !slices.Equal(d.Files("/"), []string{"/file"}) {
		t.Errorf("%d, %v", d.Used("/"), d.Files("/"))
	}
	d.NoPreallocation = true
	if err := f.Preallocate(8192); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
}

// TestNames requires the errors of names.
func TestNames(t *testing.T) {
	d, files, _ := newDisk(t, 1, true)
	must(t, files.Mkdir("/dir"))
	d.SetBytes("/dir/sub/x", []byte("x"))
	_, twice := files.Create("/file")
	_, orphan := files.Create("/none/x")
	_, missing := files.ReadDir("/none")
	for _, err := range []error{twice, files.Mkdir("/dir")} {
		if !errors.Is(err, fs.ErrExist) {
			t.Error(err)
		}
	}
	for _, err := range []error{orphan, missing, files.Remove("/none")} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	}
	if err := files.Remove("/dir"); !errors.Is(err, syscall.ENOTEMPTY) {
		t.Error(err)
	}
	entries, err := files.ReadDir("/")
	want := []journal.DirEntry{{Name: "dir", Type: fs.ModeDir}, {Name: "file"}}
	if err != nil || !slices.Equal(entries, want) {
		t.Errorf("%v, %v", entries, err)
	}
	if d.Bytes("/dir") != nil || string(d.Bytes("/dir/sub/x")) != "x" {
		t.Error("wrong content")
	}
}

// TestFlipBits requires that flips are where they are reported to be, and survive a loss of power.
func TestFlipBits(t *testing.T) {
	d, _, f := newDisk(t, 1, true)
	must(t, f.Sync())
	before := d.Bytes("/file")
	flips := d.FlipBits("/", 3, func(f modeldisk.Flip) bool { return f.Offset >= 1000 })
	d.PowerLoss()
	after := d.Bytes("/file")
	for i := range before {
		n := len(slices.DeleteFunc(slices.Clone(flips), func(f modeldisk.Flip) bool { return f.Offset != int64(i) }))
		if (before[i] != after[i]) != (n%2 == 1) || n > 0 && i < 1000 {
			t.Errorf("offset %d: %d flips, %x becomes %x", i, n, before[i], after[i])
		}
	}
	if len(flips) != 3 {
		t.Errorf("%v", flips)
	}
}

// TestRecycle requires that preallocated space shows what was removed, on request.
func TestRecycle(t *testing.T) {
	d, files, _ := newDisk(t, 1, true)
	d.Recycle(true)
	must(t, files.Remove("/file"))
	f, err := files.Create("/new")
	must(t, err)
	must(t, f.Preallocate(2048))
	if b := d.Bytes("/new"); len(b) != 2048 || b[0] != 1 || b[512] != 2 || b[1024] != 0 {
		t.Errorf("%x", b)
	}
}
