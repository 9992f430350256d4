package durable

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/journal"
)

// inspectTries is how many times Inspect reads a journal that is being written and seems damaged: it may have read a
// block while it was written, or missed a generation that replaced another one.
const inspectTries = 3

// Inspection describes one journal that Inspect has read.
type Inspection struct {
	Label  string // name of the label's directory
	Dir    string
	Boot   uint64
	Header journal.Header // of the newest segment with a readable one; zero: none
	// Generations are the numbers of the generations with a readable block, ascending.
	Generations []uint32
	Report      journal.LoadReport
	// Malformed is the number of intact blocks whose content is none of the records of this version. Report.Errors
	// lists them.
	Malformed int
	Ring      *CompleteRing // the last complete ring that the journal names; nil: none
	Running   bool          // a process holds the journal, so that it grows
	Removed   bool          // the journal was removed while it was read, because a member has loaded it
	// Err is why nothing of the directory can be read; nil: something can.
	Err error
}

// OK reports whether everything that was written can be read. It is true for a journal that is not complete.
func (i *Inspection) OK() bool {
	r := &i.Report
	bad := uint64(r.BadBlocks+r.UnreadableFiles+i.Malformed) + r.MissingBlocks
	return i.Removed || i.Err == nil && bad == 0
}

// Visitor receives a counter of a journal and the number of hits that its boot had reserved ahead. The counter is valid
// only during the call.
type Visitor func(i *Inspection, c *protocol.CounterRecord, ahead uint32)

// Inspect reads all journals below dir, those of running members included, and calls visit for each counter in them, in
// the order of records. It may visit a record twice. visit may be nil. Inspect keeps no lock and changes nothing. It
// returns an error if dir cannot be read.
func Inspect(dir string, visit Visitor) ([]Inspection, error) {
	labels, _, err := journal.Labels(readOnly{journal.OS()}, dir)
	if err != nil {
		return nil, err
	}
	if visit == nil {
		visit = func(*Inspection, *protocol.CounterRecord, uint32) {}
	}
	var all []Inspection
	for _, l := range labels {
		boots, err := l.Boots()
		if err != nil {
			all = append(all, Inspection{Label: l.Name, Dir: l.Dir(), Err: err})
		}
		for _, b := range boots {
			all = append(all, inspectBoot(l, b, visit))
		}
	}
	return all, nil
}

// inspectBoot reads the journal of one boot, several times if it is being written.
func inspectBoot(l journal.Label, b journal.Boot, visit Visitor) Inspection {
	for try := 1; ; try++ {
		i := Inspection{Label: l.Name, Dir: b.Dir(), Boot: b.ID, Running: inUse(filepath.Join(b.Dir(), "LOCK"))}
		i.Err = i.read(b, visit)
		if _, err := os.Stat(b.Dir()); errors.Is(err, fs.ErrNotExist) {
			i.Removed = true
		}
		if i.OK() || !i.Running || try == inspectTries {
			return i
		}
	}
}

// read reads the journal b into i.
func (i *Inspection) read(b journal.Boot, visit Visitor) error {
	r, err := b.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	i.Header = r.Header()
	if i.Header.Boot != 0 {
		i.generation(i.Header.Generation)
	}
	var records recordReader
	var malformed []error
	i.Report, err = r.Read(func(b journal.Block) error {
		i.generation(b.Generation)
		ring, err := records.parse(b.Payload)
		switch {
		case err != nil:
			i.Malformed++
			malformed = append(malformed, fmt.Errorf("%s: offset %d: malformed record: %w", b.File, b.Offset, err))
			return nil
		case ring != nil:
			if i.Ring == nil || ring.At >= i.Ring.At {
				i.Ring = ring
			}
			return nil
		}
		for n := range records.Counters {
			visit(i, &records.Counters[n], records.ahead[n])
		}
		return nil
	})
	i.Report.Errors = append(i.Report.Errors, malformed[:min(len(malformed), maxInspectErrors)]...)
	return err
}

// maxInspectErrors is the number of malformed records that Report.Errors lists.
const maxInspectErrors = 64

// generation adds a number to Generations.
func (i *Inspection) generation(n uint32) {
	if at, known := slices.BinarySearch(i.Generations, n); !known {
		i.Generations = slices.Insert(i.Generations, at, n)
	}
}

// readOnly is a file system that locks nothing and refuses changes, so that the journals of running members, copies and
// read-only volumes can be read.
type readOnly struct{ journal.FS }

// Lock implements journal.FS.
func (readOnly) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

// Mkdir implements journal.FS.
func (readOnly) Mkdir(string) error { return fs.ErrPermission }

// Create implements journal.FS.
func (readOnly) Create(string) (journal.SegmentWriter, error) { return nil, fs.ErrPermission }

// Remove implements journal.FS.
func (readOnly) Remove(string) error { return fs.ErrPermission }
