package module

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/keyward/keyward/internal/config"
)

// events is a LeaseBook that reports its calls.
type events struct {
	mu             sync.Mutex // guards segments
	opened, closed chan *EnvoyConn
	interests      chan Interest
}

func (e *events) Opened(c *EnvoyConn) { e.opened <- c }
func (e *events) Closed(c *EnvoyConn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed <- c
}
func (e *events) Interested(_ *EnvoyConn, i *Interest) {
	x := Interest{Hits: i.Hits, Domain: string([]byte(i.Domain))}
	for _, d := range i.Entries {
		x.Entries = append(x.Entries, config.Entry{Key: string([]byte(d.Key)), Value: string([]byte(d.Value))})
	}
	e.interests <- x
}

func serve(t *testing.T, change func(*Options)) (*SegmentServer, *events, string) {
	t.Helper()
	e := &events{sync.Mutex{}, make(chan *EnvoyConn, 100), make(chan *EnvoyConn, 100), make(chan Interest, 10_000)}
	o := Options{Path: filepath.Join(t.TempDir(), "m.sock"), Book: e, Slots: 64}
	if change != nil {
		change(&o)
	}
	s, err := Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, e, o.Path
}

func await[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(10 * time.Second):
		t.Fatal("nothing happened for 10 s")
		panic("not reached")
	}
}

// TestConnection checks a connection from HELLO to its end: a segment, interests, leases.
func TestConnection(t *testing.T) {
	s, e, path := serve(t, nil)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	conn, v, err := dialModule(path)
	if err != nil {
		t.Fatal(err)
	}
	c := await(t, e.opened)
	if c.Hello != (Hello{"envoy-1", "v0.2.0"}) || s.Connections() != 1 {
		t.Errorf("%+v, %d connections", c.Hello, s.Connections())
	}
	d := []config.Entry{{Key: "api_key", Value: "x"}, {Key: "path", Value: ""}}
	if _, err := conn.Write(interest(7, "app", d...)); err != nil {
		t.Fatal(err)
	}
	if i := await(t, e.interests); i.Hits != 7 || i.Domain != "app" || fmt.Sprint(i.Entries) != fmt.Sprint(d) {
		t.Errorf("%+v", i)
	}
	key, _ := AppendKey(nil, "app", d)
	e.mu.Lock()
	f := c.Segment.Fingerprint(key)
	if f != fingerprint(v.k0, v.k1, key) {
		t.Error("the keys of fingerprints differ")
	}
	if _, ok := c.Segment.Put(f, 1, int64(MonotonicNow())+1e9); !ok || v.spend(f, 1) != spent {
		t.Error("the lease cannot be spent")
	}
	e.mu.Unlock()
	_ = conn.Close()
	if await(t, e.closed) != c {
		t.Error("another connection was closed")
	}
}

// TestMalformed checks that a malformed message ends the connection, and is counted.
func TestMalformed(t *testing.T) {
	s, e, path := serve(t, nil)
	for i, bad := range [][]byte{
		{9}, interest(1, "app"), append(interest(1, "app", config.Entry{Key: "k"}), 0), make([]byte, MaxMessage+1), hello("a", "b"),
	} {
		conn, _, err := dialModule(path)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = conn.Write(bad)
		if _, err := conn.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
			t.Errorf("message %d: the connection is open: %v", i, err)
		}
		await(t, e.closed)
		if n := s.Refused(RefusedMalformed); n != uint64(i+1) {
			t.Errorf("message %d: %d counted", i, n)
		}
	}
	for _, bad := range [][]byte{{1}, {1, 2, 0, 0, 0, 0}, hello(string(make([]byte, 300)), "")} {
		conn, err := net.Dial("unixpacket", path)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write(bad)
		if n, err := conn.Read(make([]byte, 64)); err == nil {
			t.Errorf("%x is answered with %d bytes", bad[:2], n)
		}
	}
}

// TestCaps checks that there is a most of connections, and that a flood of messages waits in the socket.
func TestCaps(t *testing.T) {
	s, e, path := serve(t, func(o *Options) { o.Connections, o.Messages = 2, 0.001 })
	var conns []net.Conn
	for range 2 {
		conn, _, err := dialModule(path)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	if _, _, err := dialModule(path); err == nil || s.Refused(RefusedExcess) != 1 {
		t.Errorf("a third connection: %v, %d counted", err, s.Refused(RefusedExcess))
	}
	_ = conns[1].SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
	sent := 0
	for ; sent < 100_000; sent++ {
		if _, err := conns[1].Write(interest(1, "app", config.Entry{Key: "k"})); err != nil {
			break
		}
	}
	if sent == 100_000 {
		t.Error("a flood of messages is read")
	}
	if n := len(e.interests); n > messageBurst+1 {
		t.Errorf("%d messages were processed at once", n)
	}
}

// TestSocket checks that a socket of a dead process is replaced, one of a live process is not, and neither is another file.
func TestSocket(t *testing.T) {
	s, _, path := serve(t, nil)
	if _, err := Listen(Options{Path: path, Book: &events{}}); err == nil {
		t.Error("a socket in use was replaced")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("Close leaves the socket")
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	s, err = Listen(Options{Path: path, Book: &events{}, Mode: 0o660})
	if err != nil {
		t.Fatalf("the socket of a dead process: %v", err)
	}
	_ = s.Close()
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(Options{Path: path, Book: &events{}}); err == nil {
		t.Error("a file that is no socket was replaced")
	}
}

// TestSocketOfOthers checks that a socket is not replaced whose process is stopped, so that its queue is full, or which serves
// another protocol.
func TestSocketOfOthers(t *testing.T) {
	full := filepath.Join(t.TempDir(), "full.sock")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: full}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the queue has a place more than its length
		if conn, err := net.Dial("unixpacket", full); err == nil {
			defer func() { _ = conn.Close() }()
		}
	}
	other := filepath.Join(t.TempDir(), "other.sock")
	l, err := net.Listen("unix", other)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for _, path := range []string{full, other} {
		before, _ := os.Lstat(path)
		if s, err := Listen(Options{Path: path, Book: &events{}}); err == nil {
			_ = s.Close()
			t.Errorf("%s was replaced", path)
		} else {
			t.Log(err)
		}
		if now, err := os.Lstat(path); err != nil || !os.SameFile(before, now) {
			t.Errorf("%s is another file now: %v", path, err)
		}
	}
}

// TestLongPath checks that each path with which Listen succeeds can be connected to, and that the error names its length.
func TestLongPath(t *testing.T) {
	for _, folder := range []int{0, 60, 92, 93, 106} {
		for _, length := range []int{100, 106, 107, 108, 200} {
			dir := t.TempDir()
			if folder > len(dir)+1 {
				dir = filepath.Join(dir, strings.Repeat("d", folder-len(dir)-1))
				if err := os.Mkdir(dir, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			path := filepath.Join(dir, strings.Repeat("s", max(1, length-len(dir)-1)))
			s, err := Listen(Options{Path: path, Book: &events{}})
			if fits := len(path) <= 107 && len(dir) <= 92; fits != (err == nil) {
				t.Errorf("%d bytes in a folder of %d: %v", len(path), len(dir), err)
			}
			if err != nil {
				if !strings.Contains(err.Error(), "bytes; want at most") {
					t.Error(err)
				}
				continue
			}
			if conn, err := net.Dial("unixpacket", path); err != nil {
				t.Errorf("%d bytes: %v", len(path), err)
			} else {
				_ = conn.Close()
			}
			_ = s.Close()
		}
	}
}

// FuzzMessages decodes anything. A message that is accepted encodes to the same bytes.
func FuzzMessages(f *testing.F) {
	f.Add(hello("envoy", "v0.1.0"))
	f.Add(interest(3, "app", config.Entry{Key: "k", Value: "v"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := decodeHello(b); err == nil && string(hello(h.Node, h.ABI)) != string(b) {
			t.Errorf("%x is accepted as %+v", b, h)
		}
		var i Interest
		if err := i.decode(b); err == nil && string(interest(i.Hits, i.Domain, i.Entries...)) != string(b) {
			t.Errorf("%x is accepted as %+v", b, i)
		}
	})
}
