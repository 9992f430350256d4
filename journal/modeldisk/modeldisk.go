// Package modeldisk simulates a disk in memory, for tests of package journal and its callers.
//
// A Disk distinguishes the content that processes see from the content that survives a loss of power. Kill ends the
// processes and keeps all that they have written. PowerLoss keeps a random part of what was not synced: any subset of
// the sectors of 512 bytes, and any subset of the changes of directories. Everything random comes from one source, so
// a test with a seed can be repeated.
package modeldisk

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/keyward/keyward/journal"
)

// sector is the unit in which content becomes durable.
const sector = 512

// ErrDead is returned to a process that Kill or PowerLoss has ended.
var ErrDead = errors.New("the process has ended")

// Operation is a kind of access to the disk.
type Operation uint8

// The operations.
const (
	Mkdir Operation = iota
	Create
	Open
	List
	Remove
	SyncDir
	Lock
	Preallocate
	Write
	Sync
	Read
	operations
)

// Disk is a simulated disk. It is safe for concurrent use. The directory "/" exists.
type Disk struct {
	// Before is called before every operation of a process, if it is not nil, without a lock: it may block to simulate a
	// disk that stalls, or call methods of the Disk. Set it before the Disk is used.
	Before func(op Operation, path string)
	// NoPreallocation makes Preallocate return errors.ErrUnsupported.
	NoPreallocation bool

	mu       sync.Mutex
	rng      *rand.Rand
	root     *node
	epoch    int // increases when processes end
	locks    map[*node]bool
	fail     [operations]error
	readOnly bool
	budget   int64 // bytes that all files together may have; negative: no limit
	recycled []byte
	recycle  bool
}

// New returns an empty disk that takes its random choices from rng.
func New(rng *rand.Rand) *Disk {
	return &Disk{rng: rng, root: newDir(), locks: map[*node]bool{}, budget: -1}
}

// FS returns the disk as a new process sees it. It is valid until the next Kill or PowerLoss.
func (d *Disk) FS() journal.FS {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &process{disk: d, epoch: d.epoch}
}

// Fail makes every operation of that kind fail with err, such as syscall.EIO. A nil error repairs it.
//
// A write that fails has written a part. A sync that fails makes a random part durable and forgets that the rest is
// not, as Linux does: a second sync succeeds and changes nothing.
func (d *Disk) Fail(op Operation, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail[op] = err
}

// Heal ends all faults: those of Fail, SetReadOnly and SetBudget.
func (d *Disk) Heal() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail, d.readOnly, d.budget = [operations]error{}, false, -1
}

// SetReadOnly makes every operation that changes the disk fail with EROFS. Files that are open can still be written, as
// after a remount that lost the race.
func (d *Disk) SetReadOnly(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.readOnly = on
}

// SetBudget makes operations fail with ENOSPC that would make all files together exceed a number of bytes. It is
// unlimited if bytes is negative.
func (d *Disk) SetBudget(bytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.budget = bytes
}

// Recycle makes preallocated space show the content of files that were removed, which a real file system hides.
func (d *Disk) Recycle(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.recycle = on
}

// Kill ends all processes: their FS fails and their locks are released. The disk keeps all that they have written.
func (d *Disk) Kill() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.kill()
}

func (d *Disk) kill() {
	d.epoch++
	clear(d.locks)
}

// PowerLoss ends all processes and loses a random part of what was not synced.
func (d *Disk) PowerLoss() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.kill()
	// Of many writes often all or none survive. A uniform choice would hardly ever show that.
	chance := []float64{0, 1, 0.5, d.rng.Float64()}[d.rng.IntN(4)]
	d.root.losePower(d.rng, chance, map[*node]bool{})
}

// Used returns the number of bytes of all files below a directory.
func (d *Disk) Used(dir string) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.find(dir)
	if n == nil {
		return 0
	}
	return n.used()
}

// Files returns the paths of all files below a directory, sorted.
func (d *Disk) Files(dir string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var paths []string
	if n := d.find(dir); n != nil {
		n.walk(dir, func(path string, _ *node) { paths = append(paths, path) })
	}
	slices.Sort(paths)
	return paths
}

// Bytes returns a copy of a file's content as processes see it, or nil if there is no such file.
func (d *Disk) Bytes(path string) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.find(path)
	if n == nil || n.dir {
		return nil
	}
	return slices.Clone(n.seen)
}

// SetBytes replaces the content of a file, durably. It makes the file, and its directory, if necessary.
func (d *Disk) SetBytes(path string, content []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := d.root
	names := split(path)
	for _, name := range names[:len(names)-1] {
		if at.children[name] == nil {
			at.link(name, newDir())
		}
		at = at.children[name]
	}
	at.link(names[len(names)-1], &node{seen: slices.Clone(content), durable: slices.Clone(content)})
}

// Flip is a bit that FlipBits has changed.
type Flip struct {
	Path   string
	Offset int64 // of the byte
}

// FlipBits inverts n random bits, durably, in files below a directory. It chooses among the bytes for which use, if it
// is not nil, returns true; it gives up if it finds none. The function must not call methods of the Disk.
func (d *Disk) FlipBits(dir string, n int, use func(Flip) bool) []Flip {
	paths := slices.DeleteFunc(d.Files(dir), func(path string) bool { return len(d.Bytes(path)) == 0 })
	d.mu.Lock()
	defer d.mu.Unlock()
	var flips []Flip
	for range 100 * n {
		if len(flips) == n || len(paths) == 0 {
			break
		}
		f := Flip{Path: paths[d.rng.IntN(len(paths))]}
		file := d.find(f.Path)
		f.Offset = d.rng.Int64N(int64(len(file.seen)))
		if use != nil && !use(f) {
			continue
		}
		bit := byte(1) << d.rng.IntN(8)
		file.seen[f.Offset] ^= bit
		if f.Offset < int64(len(file.durable)) {
			file.durable[f.Offset] ^= bit
		}
		flips = append(flips, f)
	}
	return flips
}

// find returns the node at a path, or nil.
func (d *Disk) find(path string) *node {
	at := d.root
	for _, name := range split(path) {
		if at = at.children[name]; at == nil {
			return nil
		}
	}
	return at
}

// split returns the names of a path.
func split(path string) []string {
	return strings.FieldsFunc(filepath.ToSlash(filepath.Clean(path)), func(c rune) bool { return c == '/' })
}

// fault returns the error with which an operation has to fail now.
func (d *Disk) fault(op Operation) error {
	if err := d.fail[op]; err != nil {
		return err
	}
	if d.readOnly && (op == Mkdir || op == Create || op == Remove) {
		return syscall.EROFS
	}
	return nil
}

// extend returns ENOSPC if the files may not grow by n bytes.
func (d *Disk) extend(n int64) error {
	if d.budget >= 0 && n > 0 && d.root.used()+n > d.budget {
		return syscall.ENOSPC
	}
	return nil
}

// pathError returns err as an error of an operation on a path.
func pathError(op, path string, err error) error { return &fs.PathError{Op: op, Path: path, Err: err} }
