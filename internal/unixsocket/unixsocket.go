// Package unixsocket creates unix sockets at paths that a process which has ended may have used.
package unixsocket

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// SocketListener listens on a unix socket.
type SocketListener struct {
	*net.UnixListener
	path string
	own  os.FileInfo // of the file at path
}

// Listen listens on a socket of that network, unix or unixpacket, with that mode. It replaces a socket whose process has
// ended, and fails if the path has another file or if another process may listen on it.
func Listen(network, path string, mode os.FileMode) (*SocketListener, error) {
	unlock, err := lockFolder(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := CheckFree(network, path); err != nil {
		return nil, err
	}
	// The socket is created in a folder that no other user can read, and moved after its mode is set.
	dir, err := os.MkdirTemp(filepath.Dir(path), ".s")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	made := filepath.Join(dir, "s")
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: made, Net: network})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(made, mode), os.Rename(made, path)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	own, err := os.Lstat(path)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &SocketListener{l, path, own}, nil
}

// lockTimeout is how long a lock of another process is waited for.
const lockTimeout = 2 * time.Second

// lockFolder makes processes that listen on a socket of one folder at the same moment do so one after the other. A file system
// without locks does without, and so does a process if another one holds the lock for longer than lockTimeout: every process
// that can read the folder can take it.
func lockFolder(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(lockTimeout); ; time.Sleep(5 * time.Millisecond) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) && !errors.Is(err, syscall.EWOULDBLOCK) || time.Now().After(end) {
			return func() { _ = f.Close() }, nil
		}
	}
}

// Close stops listening, and removes the file unless another process has replaced it.
func (l *SocketListener) Close() error {
	err := l.UnixListener.Close()
	if now, e := os.Lstat(l.path); e == nil && os.SameFile(now, l.own) {
		err = errors.Join(err, os.Remove(l.path))
	}
	return err
}

// CheckFree returns an error unless the path is free, or has a socket on which no process listens. A process that is
// stopped, or that listens on a socket of another type, still listens.
func CheckFree(network, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&os.ModeSocket == 0:
		return fmt.Errorf("%s: the file exists and is not a socket", path)
	}
	conn, err := net.DialTimeout(network, path, time.Second)
	switch {
	case err == nil:
		_ = conn.Close()
		return fmt.Errorf("%s: another process listens on it", path)
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return fmt.Errorf("another process may listen on it: %w", err)
}

// FolderLength is the length of what Listen adds to the name of the socket's folder: a slash, ".s", ten digits, and "/s".
const FolderLength = 1 + 14
