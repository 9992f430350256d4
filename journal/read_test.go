package journal_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/keyward/keyward/journal"
)

// TestUnknownNames requires that what is not the journal's is reported and remains.
func TestUnknownNames(t *testing.T) {
	r := newRig(t)
	r.begin()
	r.write("a")
	must(t, r.j.Close())
	label := filepath.Dir(r.j.Dir())
	for _, path := range []string{
		label + "/0000000000000000", label + "/1f/x", label + "/000000000000002A/x", r.j.Dir() + "/notes.txt",
		r.file("1-1"), r.file("00000001-00000001") + "/x",
	} {
		r.disk.SetBytes(path, []byte("x"))
	}
	boots, err := journal.Boots(r.disk.FS(), "/data", "shop")
	must(t, err)
	var names []string
	for _, b := range boots {
		names = append(names, b.Name)
		if _, err := b.Open(); (b.ID == 42) == b.Unknown || b.Unknown && !errors.Is(err, journal.ErrUnknownName) {
			t.Errorf("%+v: %v", b, err)
		} else if !b.Unknown && (err != nil || b.Dir() != r.j.Dir()) {
			t.Errorf("%s: %v", b.Dir(), err)
		}
	}
	if want := []string{"0000000000000000", "000000000000002A", "000000000000002a", "1f"}; !slices.Equal(names, want) {
		t.Errorf("%q", names)
	}
	r.disk.Kill() // releases the lock
	report, _, _ := readDirSorted(t, r)
	if report.UnreadableFiles != 3 || report.Blocks != 1 || report.Clean {
		t.Errorf("%+v", report)
	}
}

// TestLabels requires that all labels and the other names in a directory are found.
func TestLabels(t *testing.T) {
	r := newRig(t)
	if _, _, err := journal.Labels(r.o.FS, "/data"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	r.begin()
	must(t, r.j.Close())
	r.disk.SetBytes("/data/notes.txt", []byte("x"))
	r.disk.SetBytes("/data/0123456789abcdef", []byte("x"))
	labels, others, err := journal.Labels(r.o.FS, "/data")
	if err != nil || len(labels) != 1 || !slices.Equal(others, []string{"0123456789abcdef", "notes.txt"}) {
		t.Fatalf("%v, %q, %v", labels, others, err)
	}
	boots, err := labels[0].Boots()
	if err != nil || len(boots) != 1 || boots[0].Dir() != r.j.Dir() || labels[0].Dir() != filepath.Dir(r.j.Dir()) {
		t.Errorf("%v, %v", boots, err)
	}
	reader, err := boots[0].Open()
	must(t, err)
	defer reader.Close()
	if h := reader.Header(); h.Boot != 42 {
		t.Errorf("%+v", h)
	}
}

// readDirSorted reads the boot 42 of r.
func readDirSorted(t *testing.T, r *rig) (journal.LoadReport, *journal.BootReader, error) {
	t.Helper()
	boots, err := journal.Boots(r.disk.FS(), "/data", "shop")
	must(t, err)
	i := slices.IndexFunc(boots, func(b journal.Boot) bool { return b.ID == 42 })
	reader, err := boots[i].Open()
	must(t, err)
	report, err := reader.Read(func(journal.Block) error { return nil })
	return report, reader, err
}

// TestForeignFiles requires that files of another version, scheme, label, boot or name are left alone.
func TestForeignFiles(t *testing.T) {
	other := map[string]func(o *journal.Options){
		"scheme":  func(o *journal.Options) { o.Scheme++ },
		"label":   func(o *journal.Options) { o.Label = "bank" },
		"boot":    func(o *journal.Options) { o.Boot++ },
		"version": func(*journal.Options) {},
		"name":    func(*journal.Options) {},
	}
	for name, change := range other {
		t.Run(name, func(t *testing.T) {
			r, foreign := newRig(t), newRig(t)
			change(&foreign.o)
			foreign.j = journal.New(foreign.o)
			foreign.begin()
			foreign.write("foreign")
			must(t, foreign.j.Complete())
			foreign.begin() // so that the first segment of the second generation is like another one
			content := foreign.disk.Bytes(foreign.file("00000002-00000000"))
			switch name {
			case "version":
				content[32]++
				seal(content)
			case "name":
				content = foreign.disk.Bytes(foreign.file("00000001-00000000"))
			}
			r.begin()
			r.write("a")
			must(t, r.j.Close())
			r.disk.SetBytes(r.file("00000002-00000000"), content)
			report, reader, err := readDirSorted(t, r)
			if err != nil || report.UnreadableFiles != 1 || len(report.Errors) != 1 || report.Clean {
				t.Errorf("%v, %+v", err, report)
			}
			if err := reader.Remove(); !errors.Is(err, journal.ErrUnreadable) || len(r.disk.Files(r.j.Dir())) != 3 {
				t.Errorf("%v, %v", err, r.disk.Files(r.j.Dir()))
			}
		})
	}
}

// TestReadErrors requires that a sector that cannot be read costs its block only.
func TestReadErrors(t *testing.T) {
	r := newRig(t)
	r.o.SegmentBytes = 1 << 20
	r.j = journal.New(r.o)
	r.begin()
	for range 100 {
		r.write("a")
	}
	must(t, r.j.Close())
	o := badSectors{r.disk.FS(), []int64{5 * 4096, 9*4096 + 100}}
	boots, err := journal.Boots(o, "/data", "shop")
	must(t, err)
	reader, err := boots[0].Open()
	must(t, err)
	report, err := reader.Read(func(journal.Block) error { return nil })
	if err != nil || report.Blocks != 98 || report.BadBlocks != 2 || report.MissingBlocks != 2 ||
		report.UnreadableFiles != 1 {
		t.Errorf("%v, %+v", err, report)
	}
}

// badSectors is a file system on which some offsets of files cannot be read.
type badSectors struct {
	journal.FS
	offsets []int64
}

func (s badSectors) Open(path string) (journal.SegmentReader, error) {
	f, err := s.FS.Open(path)
	return badFile{f, s.offsets}, err
}

type badFile struct {
	journal.SegmentReader
	offsets []int64
}

func (f badFile) ReadAt(b []byte, off int64) (int, error) {
	for _, bad := range f.offsets {
		if off <= bad && bad < off+int64(len(b)) {
			return 0, syscall.EIO
		}
	}
	return f.SegmentReader.ReadAt(b, off)
}

// TestVisitError requires that an error of the caller ends Read and prevents Remove.
func TestVisitError(t *testing.T) {
	r := newRig(t)
	r.begin()
	r.write("a", "b")
	must(t, r.j.Close())
	boots, err := journal.Boots(r.disk.FS(), "/data", "shop")
	must(t, err)
	reader, err := boots[0].Open()
	must(t, err)
	failed := errors.New("full")
	report, err := reader.Read(func(journal.Block) error { return failed })
	if !errors.Is(err, failed) || report.Blocks != 1 {
		t.Errorf("%v, %+v", err, report)
	}
	if err := reader.Remove(); !errors.Is(err, journal.ErrNotRead) {
		t.Error(err)
	}
}
