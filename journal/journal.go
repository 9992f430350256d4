package journal

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// The defaults of Options.
const (
	DefaultMaxBytes     = 1 << 30
	DefaultSegmentBytes = 16 << 20
)

const minSegmentBytes = 4 * page

// Options configures a Journal.
type Options struct {
	FS     FS     // nil: OS()
	Dir    string // the directory of all journals; made by the first Begin if it does not exist
	Label  string // label of the cluster. Readers find only the boots of their own label
	Scheme uint32 // version of the caller's keys, which readers compare
	Member string // name of this member
	Boot   uint64 // boot ID of this member
	// Salt returns a number that no other file has. The default reads crypto/rand.
	Salt func() uint64
	// MaxBytes is the maximum size of all files of this boot together. 0 is DefaultMaxBytes, 1 GiB.
	MaxBytes int64
	// SegmentBytes is the maximum size of one file. It is rounded up to 4 KiB. 0 is DefaultSegmentBytes,
	// 16 MiB.
	SegmentBytes int64
}

// Journal writes the records of one boot. One goroutine may call its methods; only Status is safe for concurrent use.
//
// After an error that is not ErrFull or ErrTooLarge, the journal has failed: nothing is written or confirmed until
// Begin has started a new generation. Blocks that Sync had not confirmed before have to be written again.
type Journal struct {
	o       Options
	dir     string // of this boot
	lock    io.Closer
	number  uint32        // of the last generation
	older   []*generation // older generations with files on disk, oldest first
	current *generation   // nil before the first Begin
	header  Header        // of the next segment
	space   int64         // bytes of a segment after its header
	next    uint64        // sequence of the next block

	newNames bool // the directory has changes that are not durable
	failed   error
	cleanup  error
	stopped  bool
	closed   bool
	buf      []byte
	sabotage bug

	mu     sync.Mutex
	status Status
}

// Status describes a Journal.
type Status struct {
	Generation uint32 // number of the current generation; 0 before the first Begin
	Complete   bool   // Complete has succeeded for the current generation
	Stopped    bool   // Stop has succeeded
	Failed     error  // nil: the journal is healthy, or Begin was not called yet
	Cleanup    error  // last error of removing an older generation, if one remains; each Begin and Complete tries again
	Bytes      int64  // size of all files of this boot
	Current    int64  // bytes written in the current generation, with headers and padding
	Segments   int    // number of files of this boot
}

// New returns a Journal. It makes no I/O.
func New(o Options) *Journal {
	if o.FS == nil {
		o.FS = OS()
	}
	if o.Salt == nil {
		o.Salt = randomSalt
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = DefaultSegmentBytes
	}
	o.SegmentBytes = max(minSegmentBytes, pages(o.SegmentBytes))
	label := labelDigest(o.Label)
	return &Journal{
		o: o, dir: filepath.Join(o.Dir, idName(label), idName(o.Boot)), next: 1,
		header: Header{Scheme: o.Scheme, Member: o.Member, Boot: o.Boot, label: label},
	}
}

// randomSalt returns a random number.
func randomSalt() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}

// Begin starts a generation, to which Append adds blocks from then on. The caller has to append everything that it
// knows and then call Complete; other blocks may be appended in between. The header records now and ring.
//
// Begin makes the generation's first file durable. On the first call it also makes the directory and locks it. If
// Begin returns ErrFull or ErrTooLarge, the journal remains as it was. After any other error the journal has failed,
// also if it was healthy before. Older generations remain on disk until Complete.
func (j *Journal) Begin(now time.Time, ring []RingMember) error {
	defer j.publish()
	if j.closed || j.stopped {
		return j.usable()
	}
	if j.lock == nil {
		if err := j.claim(); err != nil {
			return j.fail(err)
		}
	}
	if err := j.keepDir(); err != nil {
		return j.fail(err)
	}
	j.collect()
	header := j.header
	header.Created, header.Ring, header.Generation = now, ring, j.number+1
	header.Segment, header.First, header.GenerationFirst = 0, j.next, j.next
	space, err := j.spaceAfter(&header)
	if err != nil {
		return err
	}
	if !j.room() {
		return ErrFull
	}
	j.header, j.space, j.number = header, space, header.Generation
	g := &generation{number: j.number}
	if err := j.startGeneration(g); err != nil {
		return j.fail(err)
	}
	if j.current != nil {
		j.current.closeSynced()
		j.older = append(j.older, j.current)
	}
	j.current, j.failed = g, nil
	return nil
}

// Append writes a block with the payload, which it does not retain. The block is durable once Sync has returned nil.
// Append returns ErrTooLarge or ErrFull if the block was not written for that reason; the journal remains healthy then.
func (j *Journal) Append(payload []byte) error {
	defer j.publish()
	if err := j.usable(); err != nil {
		return err
	}
	if len(payload) > MaxPayload {
		return ErrTooLarge
	}
	return j.write(kindData, payload)
}

// Sync makes all blocks durable that were appended since Begin, and those of the previous generation if the journal has
// not failed since. It returns nil only if they are.
func (j *Journal) Sync() error {
	defer j.publish()
	if err := j.usable(); err != nil {
		return err
	}
	return j.sync(slices.Collect(j.all()))
}

// Complete declares that everything the caller knows was appended to the current generation. It makes the generation
// durable and then removes the older ones. It does nothing if the generation is complete already.
//
// An error of removing a file is reported in Status.Cleanup only.
func (j *Journal) Complete() error {
	defer j.publish()
	if err := j.usable(); err != nil || j.current.complete {
		return err
	}
	if j.sabotage == bugRemoveEarly {
		j.current.complete = true
		j.collect()
	}
	if err := j.write(kindEnd, nil); err != nil {
		return err
	}
	if err := j.sync([]*generation{j.current}); err != nil {
		return err
	}
	j.current.complete = true
	j.collect()
	return nil
}

// Discard ends the current generation if it is not complete, and removes it and all others that are not. It makes room
// for a generation that replaces them, after ErrFull. Blocks that only they contain are lost if the process ends before
// that is complete. Nothing can be appended until Begin.
func (j *Journal) Discard() {
	defer j.publish()
	if j.closed || j.stopped || j.lock == nil {
		return
	}
	for g := range j.all() {
		if !g.complete {
			g.failed, g.confirmed = true, false
		}
	}
	if j.current == nil || !j.current.complete {
		j.failed = ErrFull
	}
	j.collect()
}

// Stop writes that the boot stops in good order and makes everything durable. Nothing can be written after it.
func (j *Journal) Stop() error {
	defer j.publish()
	if err := j.usable(); err != nil {
		return err
	}
	if err := j.write(kindClean, nil); err != nil {
		return err
	}
	if err := j.sync(slices.Collect(j.all())); err != nil {
		return err
	}
	j.stopped = true
	return nil
}

// Close closes the files and releases the lock. It does not sync. The files remain.
func (j *Journal) Close() error {
	if j.closed {
		return nil
	}
	j.closed = true
	j.closeFiles()
	if j.lock == nil {
		return nil
	}
	return j.lock.Close()
}

// Status returns the journal's state after the last method that has returned. It is safe for concurrent use, and does
// not wait for the disk.
func (j *Journal) Status() Status {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.status
}

// Dir returns the directory of this boot, which exists only after the first Begin.
func (j *Journal) Dir() string { return j.dir }

// usable returns an error if nothing can be written.
func (j *Journal) usable() error {
	switch {
	case j.closed:
		return fs.ErrClosed
	case j.stopped:
		return ErrStopped
	case j.failed != nil:
		return fmt.Errorf("journal has failed: %w", j.failed)
	case j.current == nil:
		return ErrNoGeneration
	}
	return nil
}

// fail records that the journal has failed, and returns err.
func (j *Journal) fail(err error) error {
	j.failed = err
	for g := range j.all() {
		g.failed = true
	}
	j.closeFiles()
	return err
}

// keepDir makes this boot's directory again if it was removed, with all that it contained.
func (j *Journal) keepDir() error {
	if _, err := j.o.FS.ReadDir(j.dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	j.closeFiles()
	_ = j.lock.Close()
	j.lock, j.older, j.current = nil, nil, nil
	return j.claim()
}

// exists returns an error if the last file of g was removed: what is written to it then is lost.
func (j *Journal) exists(g *generation) error {
	entries, err := j.o.FS.ReadDir(j.dir)
	if err != nil {
		return err
	}
	path := g.last().path
	if !slices.ContainsFunc(entries, func(e DirEntry) bool { return filepath.Join(j.dir, e.Name) == path }) {
		return &fs.PathError{Op: "sync", Path: path, Err: fs.ErrNotExist}
	}
	return nil
}

// claim makes this boot's directory and locks it.
func (j *Journal) claim() error {
	lock, err := j.lockDir()
	if err != nil {
		return err
	}
	entries, err := j.o.FS.ReadDir(j.dir)
	for _, e := range entries {
		if err == nil && strings.HasSuffix(e.Name, ".seg") {
			err = &fs.PathError{Op: "begin", Path: filepath.Join(j.dir, e.Name), Err: fs.ErrExist}
		}
	}
	if err != nil {
		lock.Close()
		return err
	}
	j.lock = lock
	return nil
}

// ownDirs is the number of directories that a journal owns: this boot's, and that of the cluster's label.
const ownDirs = 2

// lockAttempts is how often the directories are tried to be made while other processes make and remove some of them.
const lockAttempts = 100

// lockDir makes this boot's directory and locks it. Other boots may make the same parents at the same time, and readers
// may remove the directory as long as it is empty.
func (j *Journal) lockDir() (lock io.Closer, err error) {
	for range lockAttempts {
		if err = j.mkdir(j.dir, ownDirs); err == nil {
			lock, err = j.o.FS.Lock(filepath.Join(j.dir, lockName))
		}
		if !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) {
			return lock, err
		}
	}
	return nil, err
}

// mkdir makes a directory and its parents, and makes their names durable. The journal owns dir and the lowest own-1 of
// its parents: if one of them exists and is empty, it is made again, because an earlier sync of its name may have failed.
// Another boot that begins at the same time finds its parent gone then, and tries again.
func (j *Journal) mkdir(dir string, own int) error {
	parent, files := filepath.Dir(dir), j.o.FS
	if own > 0 {
		if err := j.mkdir(parent, own-1); err != nil {
			return err
		}
	}
	err := files.Mkdir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) && own <= 0 && parent != dir:
		if err = j.mkdir(parent, 0); err == nil {
			err = files.Mkdir(dir)
		}
	case errors.Is(err, fs.ErrExist) && own <= 0:
		return nil
	case errors.Is(err, fs.ErrExist):
		var entries []DirEntry
		if entries, err = files.ReadDir(dir); err != nil || len(entries) > 0 {
			return err
		}
		if err = files.Remove(dir); err == nil {
			err = files.Mkdir(dir)
		}
	}
	if err != nil {
		return err
	}
	if err = files.SyncDir(parent); err != nil {
		_ = files.Remove(dir) // so that the next attempt does not rely on a second sync of the same name
	}
	return err
}
