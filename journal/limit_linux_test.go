package journal_test

import (
	"errors"
	"fmt"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/keyward/keyward/journal"
)

// fileLimit is the maximum size of a file of the helper: less than a segment, and more than its first blocks.
const fileLimit = 40 << 10

// writeLimited writes to a journal in a process whose files may not become larger than fileLimit.
func writeLimited(dir string) error {
	signal.Ignore(syscall.SIGXFSZ)
	limit := syscall.Rlimit{Cur: fileLimit, Max: fileLimit}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	o := osOptions(dir)
	o.FS = growing{journal.OS()}
	j := journal.New(o)
	defer j.Close()
	if err := j.Begin(time.Unix(1, 0), nil); err != nil {
		return err
	}
	for i := range 100 {
		if err := j.Append(make([]byte, 4000)); err != nil {
			return fmt.Errorf("append %d: %w; sync: %w", i, err, j.Sync())
		}
		if err := j.Sync(); err != nil {
			return err
		}
	}
	return errors.New("no error")
}

// growing is a file system without preallocation.
type growing struct{ journal.FS }

func (g growing) Create(path string) (journal.SegmentWriter, error) {
	f, err := g.FS.Create(path)
	return growingFile{f}, err
}

type growingFile struct{ journal.SegmentWriter }

func (growingFile) Preallocate(int64) error { return errors.ErrUnsupported }

// TestFileSizeLimit requires that a journal fails when a file cannot grow, and that what was confirmed can be read.
func TestFileSizeLimit(t *testing.T) {
	dir := t.TempDir()
	path := journal.New(osOptions(dir)).Dir() + "/00000001-00000000.seg"
	failed := "write " + path + ": file too large"
	if got, want := helper(t, "limit", dir), "append 9: "+failed+"; sync: journal has failed: "+failed+"\n"; got != want {
		t.Errorf("%q, not %q", got, want)
	}
	report, payloads, _ := readDir(t, journal.OS(), dir, "shop")
	if len(payloads) != 9 || report.BadBlocks > 0 || report.Clean {
		t.Errorf("%d blocks, %+v", len(payloads), report)
	}
}
