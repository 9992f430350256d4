package journal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
)

// Boot is a directory below that of a cluster's label.
type Boot struct {
	ID   uint64 // boot ID; 0 if Unknown
	Name string // of the directory or file
	// Unknown reports that the name is not that of a boot. It should be reported to the user and left alone.
	Unknown bool

	fs    FS
	path  string
	label uint64
}

// Boots returns the boots with a directory, sorted by name. They include those that are running, such as the caller's
// own. It returns none if no boot has begun a journal in dir under that label.
func Boots(files FS, dir, label string) ([]Boot, error) {
	return bootsOf(files, dir, labelDigest(label))
}

// bootsOf returns the boots of the label with that digest.
func bootsOf(files FS, dir string, digest uint64) ([]Boot, error) {
	dir = filepath.Join(dir, idName(digest))
	entries, err := files.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var boots []Boot
	for _, e := range entries {
		id, ok := parseID(e.Name)
		b := Boot{ID: id, Name: e.Name, fs: files, path: filepath.Join(dir, e.Name), label: digest}
		if !ok || !e.Type.IsDir() {
			b.ID, b.Unknown = 0, true
		}
		boots = append(boots, b)
	}
	return boots, nil
}

// Dir returns the path of the boot's directory.
func (b Boot) Dir() string { return b.path }

// RemoveEmpty removes the directory if nothing is in it, and reports whether it has. Its boot has made it just now, or has
// ended before it has written anything. A boot that begins makes it again; if Open had locked it instead, that boot
// could not begin.
func (b Boot) RemoveEmpty() bool {
	if b.Unknown {
		return false
	}
	entries, err := b.fs.ReadDir(b.path)
	return err == nil && len(entries) == 0 && b.fs.Remove(b.path) == nil
}

// Open locks the directory and reads the headers of its files. It returns ErrLocked if the boot is running, or if
// another process or this one reads the directory.
func (b Boot) Open() (*BootReader, error) {
	if b.Unknown {
		return nil, fmt.Errorf("%s: %w", b.path, ErrUnknownName)
	}
	lock, err := b.fs.Lock(filepath.Join(b.path, lockName))
	if err != nil {
		return nil, err
	}
	r := &BootReader{boot: b, lock: lock}
	if err := r.list(); err != nil {
		lock.Close()
		return nil, err
	}
	return r, nil
}

// BootReader reads what a former boot has written. It holds the lock of the boot's directory until Close. It is for one
// goroutine.
type BootReader struct {
	boot     Boot
	lock     io.Closer
	files    []*stored
	unknown  []string // names that are not those of segments
	header   Header
	good     bool // a segment has a readable header
	buf      []byte
	finished bool // Read has delivered everything
	readable bool // the last Read has found no unreadable file
	removed  bool
	sabotage bug
}

// Header returns the header of the newest segment with a readable one. It is zero if there is none.
//
// The caller should not use the blocks if Header.Scheme is not its own.
func (r *BootReader) Header() Header { return r.header }

// list finds the segments and reads their headers.
func (r *BootReader) list() error {
	entries, err := r.boot.fs.ReadDir(r.boot.path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		generation, segment, ok := parseSegment(e.Name)
		switch {
		case ok && e.Type.IsRegular():
			r.files = append(r.files, &stored{name: e.Name, generation: generation, segment: segment})
		case e.Name != lockName:
			r.unknown = append(r.unknown, e.Name)
		}
	}
	for _, f := range r.files { // sorted by name, and so by number
		r.inspect(f)
	}
	for _, f := range r.files {
		if f.state == stateGood && f.scheme != r.header.Scheme {
			f.state, f.err = stateForeign, fmt.Errorf("scheme of keys is %d, in newer files %d", f.scheme, r.header.Scheme)
		}
	}
	return nil
}

// Remove removes the directory. The caller must have called Read, which must have returned no error and no unreadable
// files: otherwise Remove returns ErrNotRead or ErrUnreadable and removes nothing. It may be repeated after an error.
func (r *BootReader) Remove() error {
	switch {
	case r.removed:
		return nil
	case !r.finished:
		return fmt.Errorf("%s: %w", r.boot.path, ErrNotRead)
	case !r.readable:
		return fmt.Errorf("%s: %w", r.boot.path, ErrUnreadable)
	}
	// A segment without a header can be read only next to another one. The first segments have headers, and go last.
	for _, f := range slices.Backward(r.files) {
		if err := r.remove(filepath.Join(r.boot.path, f.name)); err != nil {
			return err
		}
	}
	for _, path := range []string{filepath.Join(r.boot.path, lockName), r.boot.path} {
		if err := r.remove(path); err != nil {
			return err
		}
	}
	if err := r.boot.fs.SyncDir(filepath.Dir(r.boot.path)); err != nil {
		return err
	}
	r.removed = true
	return nil
}

// remove removes a file that an earlier call may have removed.
func (r *BootReader) remove(path string) error {
	if err := r.boot.fs.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Close releases the lock. It does nothing if it was called before.
func (r *BootReader) Close() error {
	if r.lock == nil {
		return nil
	}
	lock := r.lock
	r.lock, r.buf = nil, nil
	return lock.Close()
}
