package journal

import (
	"io"
	"os"
)

// OS returns the operating system's file system. Its Lock fails with errors.ErrUnsupported where flock is missing.
func OS() FS { return osFS{} }

// osFS implements FS.
type osFS struct{}

// Mkdir implements FS.
func (osFS) Mkdir(dir string) error { return os.Mkdir(dir, 0o700) }

// Create implements FS.
func (osFS) Create(path string) (SegmentWriter, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// Open implements FS.
func (osFS) Open(path string) (SegmentReader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// ReadDir implements FS.
func (osFS) ReadDir(dir string) ([]DirEntry, error) {
	found, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	entries := make([]DirEntry, 0, len(found))
	for _, d := range found {
		entries = append(entries, DirEntry{Name: d.Name(), Type: d.Type()})
	}
	return entries, nil
}

// Remove implements FS.
func (osFS) Remove(path string) error { return os.Remove(path) }

// SyncDir implements FS.
func (osFS) SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// Lock implements FS.
func (osFS) Lock(path string) (io.Closer, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		if err := flock(f); err != nil {
			f.Close()
			return nil, &os.PathError{Op: "lock", Path: path, Err: err}
		}
		// A reader may have removed the file between the two calls. Its lock would protect nothing.
		locked, err := f.Stat()
		if named, missing := os.Stat(path); err == nil && missing == nil && os.SameFile(locked, named) {
			return f, nil
		}
		f.Close()
	}
}

// osFile implements SegmentWriter and SegmentReader.
type osFile struct{ *os.File }

// Size implements SegmentReader.
func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// Preallocate implements SegmentWriter.
func (f osFile) Preallocate(size int64) error { return preallocate(f.File, size) }

// Sync implements SegmentWriter.
func (f osFile) Sync() error { return datasync(f.File) }

// control runs call with f's descriptor until it is not interrupted by a signal.
func control(f *os.File, op string, interrupted error, call func(fd uintptr) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	err = raw.Control(func(fd uintptr) {
		for result = call(fd); result == interrupted; { //nolint:errorlint // a bare number of the kernel
			result = call(fd)
		}
	})
	if err != nil {
		return err
	}
	if result != nil {
		return &os.PathError{Op: op, Path: f.Name(), Err: result}
	}
	return nil
}
