package journal

import (
	"errors"
	"io"
	"io/fs"
)

// The errors of this package that a caller may want to recognize.
var (
	// ErrLocked is returned by FS.Lock and Boot.Open if a process, this one included, holds the lock.
	ErrLocked = errors.New("locked by a running boot or another reader")
	// ErrFull is returned by Begin and Append if the boot's files would exceed Options.MaxBytes. Nothing was written
	// and nothing has failed.
	ErrFull = errors.New("the journal has reached its maximum size")
	// ErrTooLarge is returned if a payload exceeds MaxPayload, or a payload or header does not fit in a segment.
	ErrTooLarge = errors.New("too large for a block")
	// ErrNoGeneration is returned by Append, Sync, Complete and Stop before the first successful Begin.
	ErrNoGeneration = errors.New("no generation was begun")
	// ErrStopped is returned by all methods that write after Stop has succeeded.
	ErrStopped = errors.New("the journal was stopped")
	// ErrUnreadable is returned by BootReader.Remove if a file could not be read or is not ours.
	ErrUnreadable = errors.New("the directory has unreadable files")
	// ErrNotRead is returned by BootReader.Remove if Read has not delivered every block.
	ErrNotRead = errors.New("the directory was not read to its end")
	// ErrUnknownName is returned by Boot.Open if Boot.Unknown is set.
	ErrUnknownName = errors.New("not the name of a boot's directory")
)

// FS is a file system with the operations that a journal needs. Its errors satisfy errors.Is with fs.ErrExist,
// fs.ErrNotExist and errors.ErrUnsupported where they apply. An FS is safe for concurrent use.
type FS interface {
	// Mkdir makes one directory with mode 0700.
	Mkdir(dir string) error
	// Create makes a file with mode 0600 for writing. It returns an error if the name exists.
	Create(path string) (SegmentWriter, error)
	// Open opens a file for reading.
	Open(path string) (SegmentReader, error)
	// ReadDir returns the entries of a directory, sorted by name.
	ReadDir(dir string) ([]DirEntry, error)
	// Remove removes a file or an empty directory.
	Remove(path string) error
	// SyncDir makes the creations and removals in a directory durable.
	SyncDir(dir string) error
	// Lock locks the file, which it creates if necessary, until the result is closed or the process ends. It returns
	// ErrLocked if the file is locked already, also by this process.
	Lock(path string) (io.Closer, error)
}

// SegmentWriter is a file that is open for writing.
type SegmentWriter interface {
	io.WriterAt
	io.Closer
	// Preallocate makes the file size bytes long and reserves their space. They read as zeros until they are written.
	Preallocate(size int64) error
	// Sync makes the file's content and length durable, but not its name.
	Sync() error
}

// SegmentReader is a file that is open for reading.
type SegmentReader interface {
	io.ReaderAt
	io.Closer
	// Size returns the length of the file in bytes.
	Size() (int64, error)
}

// DirEntry is a name in a directory.
type DirEntry struct {
	Name string
	Type fs.FileMode // only the type bits, as of fs.DirEntry.Type
}
