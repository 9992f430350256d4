package unixsocket

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// socketTypes are the types of sockets of the networks that the tests use.
var socketTypes = map[string]int{"unix": unix.SOCK_STREAM, "unixpacket": unix.SOCK_SEQPACKET}

// TestStopped requires that the socket of a stopped process, whose queue is full, is not replaced.
func TestStopped(t *testing.T) {
	for network, kind := range socketTypes {
		path := filepath.Join(t.TempDir(), "s")
		fd, err := unix.Socket(unix.AF_UNIX, kind, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Close(fd) }()
		if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the queue has a place more than its length
			if conn, err := net.Dial(network, path); err == nil {
				defer func() { _ = conn.Close() }()
			}
		}
		if l, err := Listen(network, path, 0o600); err == nil {
			_ = l.Close()
			t.Errorf("%s: the socket of a stopped process was replaced", network)
		}
	}
}

// TestEnded requires that the socket of a process that has ended is replaced, and that Close removes no socket of another one.
func TestEnded(t *testing.T) {
	for network := range socketTypes {
		path := filepath.Join(t.TempDir(), "s")
		first, err := Listen(network, path, 0o640)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("%s: %v, %v", network, info.Mode(), err)
		}
		if _, err := Listen(network, path, 0o600); err == nil {
			t.Errorf("%s: a socket in use was replaced", network)
		}
		_ = first.UnixListener.Close() // the file remains, as after a crash
		second, err := Listen(network, path, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		_ = first.Close()
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("%s: the first listener has removed the socket of the second: %v", network, err)
		}
		if err := second.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: Close has left the file: %v", network, err)
		}
	}
}

// TestTogether requires that one of several listeners that start at the same moment gets the path, also if a socket of a process
// that has ended is there.
func TestTogether(t *testing.T) {
	for network := range socketTypes {
		for range 20 {
			path := filepath.Join(t.TempDir(), "s")
			old, err := Listen(network, path, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			_ = old.UnixListener.Close() // the file remains
			var wg sync.WaitGroup
			var got atomic.Int32
			for range 8 {
				wg.Go(func() {
					if l, err := Listen(network, path, 0o600); err == nil {
						got.Add(1)
						t.Cleanup(func() { _ = l.Close() })
					}
				})
			}
			wg.Wait()
			if n := got.Load(); n != 1 {
				t.Fatalf("%s: %d listeners have the path", network, n)
			}
		}
	}
}

// TestLocked requires that a process which keeps the folder locked, as any that can read it may, does not keep others from
// listening.
func TestLocked(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Skip(err)
	}
	l, err := Listen("unix", filepath.Join(dir, "s"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
}
