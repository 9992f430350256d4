package module

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/keyward/keyward/internal/unixsocket"
)

// Options configure a SegmentServer. Path and Book are required.
type Options struct {
	Path   string      // of the socket
	Mode   os.FileMode // of the socket; default 0600
	Book   LeaseBook
	Logger *slog.Logger // default slog.Default
	Slots  uint32       // of a segment, a power of two; default defaultSlots

	Connections int     // most of them; further ones are closed at once; default 64
	Messages    float64 // of one connection in a second; more are read later; default 5,000
	Opens       float64 // connections opened in a second; more are accepted later; default 20
}

func (o Options) withDefaults() Options {
	if o.Mode == 0 {
		o.Mode = 0o600
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Slots == 0 {
		o.Slots = defaultSlots
	}
	if o.Connections == 0 {
		o.Connections = 64
	}
	if o.Messages == 0 {
		o.Messages = 5000
	}
	if o.Opens == 0 {
		o.Opens = 20
	}
	return o
}

const (
	helloTimeout = 5 * time.Second // from the connection to its HELLO
	writeTimeout = time.Second     // of the only message that this side sends
	messageBurst = 1000
	openBurst    = 64
	logEvery     = time.Minute // at most one log line about faults of Envoys in this time
)

// RefusalKind is why a connection was closed by this side.
type RefusalKind uint8

// The kinds of refusals.
const (
	RefusedMalformed RefusalKind = iota // a message
	RefusedCorrupt                      // its segment
	RefusedSilent                       // no HELLO came, or SEGMENT could not be sent
	RefusedExcess                       // there are too many
	RefusalKinds
)

func (r RefusalKind) String() string {
	return [...]string{"malformed", "corrupt", "silent", "excess"}[r]
}

// SegmentServer shares segments with Envoys.
type SegmentServer struct {
	options  Options
	listener *unixsocket.SocketListener
	cancel   context.CancelFunc
	ctx      context.Context
	running  sync.WaitGroup
	refused  [RefusalKinds]atomic.Uint64
	opens    *rate.Limiter

	mu     sync.Mutex
	conns  map[*EnvoyConn]bool // guarded by mu
	logged time.Time           // guarded by mu
}

// EnvoyConn is the connection of one Envoy.
type EnvoyConn struct {
	Segment *LeaseSegment // for the LeaseBook alone
	Hello   Hello
	server  *SegmentServer
	conn    *net.UnixConn
}

// Listen starts to serve segments. It replaces a socket whose process has ended, and fails if another process serves it.
func Listen(o Options) (*SegmentServer, error) {
	s := &SegmentServer{options: o.withDefaults(), conns: map[*EnvoyConn]bool{}}
	err := CheckPath(o.Path)
	if err == nil {
		s.listener, err = unixsocket.Listen("unixpacket", o.Path, s.options.Mode)
	}
	if err != nil {
		return nil, fmt.Errorf("listen for modules: %w", err)
	}
	s.opens = rate.NewLimiter(rate.Limit(s.options.Opens), openBurst)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.running.Go(s.accept)
	return s, nil
}

// maxPath is the length in bytes of the longest path of a socket that a process can connect to.
const maxPath = 107

// CheckPath returns an error if no socket can have that path, or no Envoy can connect to it.
func CheckPath(path string) error {
	if n := len(filepath.Dir(path)) + unixsocket.FolderLength; n > maxPath {
		return fmt.Errorf("%s: the folder's name has %d bytes; want at most %d", path, len(filepath.Dir(path)), maxPath-unixsocket.FolderLength)
	}
	if len(path) > maxPath {
		return fmt.Errorf("%s: the path has %d bytes; want at most %d", path, len(path), maxPath)
	}
	return nil
}

// Close closes all connections, waits for their ends, and removes the socket.
func (s *SegmentServer) Close() error {
	s.cancel()
	err := s.listener.Close()
	s.mu.Lock()
	for c := range s.conns {
		_ = c.conn.Close()
	}
	s.mu.Unlock()
	s.running.Wait()
	return err
}

// Connections returns the number of connections.
func (s *SegmentServer) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// Refused returns how many connections this side has closed, or not accepted, for that reason.
func (s *SegmentServer) Refused(r RefusalKind) uint64 { return s.refused[r].Load() }

// Close closes the connection because its segment is corrupt. It does not wait for Closed.
func (c *EnvoyConn) Close() {
	c.server.refuse(RefusedCorrupt, errCorrupt)
	_ = c.conn.Close()
}

// refuse counts and logs a connection that is closed.
func (s *SegmentServer) refuse(r RefusalKind, err error) {
	s.refused[r].Add(1)
	s.mu.Lock()
	now := time.Now()
	quiet := now.Sub(s.logged) < logEvery
	if !quiet {
		s.logged = now
	}
	s.mu.Unlock()
	if !quiet {
		s.options.Logger.Warn("connection of an Envoy's module closed", "cause", r.String(), "error", err)
	}
}

var errExcess = errors.New("too many connections")

func (s *SegmentServer) accept() {
	for {
		if s.opens.Wait(s.ctx) != nil {
			return
		}
		conn, err := s.listener.AcceptUnix()
		switch {
		case s.ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return
		case err != nil: // too many files
			select {
			case <-s.ctx.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		c := &EnvoyConn{server: s, conn: conn}
		s.mu.Lock()
		excess := len(s.conns) >= s.options.Connections
		if !excess {
			s.conns[c] = true
		}
		s.mu.Unlock()
		if excess {
			s.refuse(RefusedExcess, errExcess)
			_ = conn.Close()
			continue
		}
		s.running.Go(c.serve)
	}
}

// serve serves a connection until it ends.
func (c *EnvoyConn) serve() {
	s := c.server
	defer func() {
		_ = c.conn.Close()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	}()
	b := make([]byte, MaxMessage+1)
	_ = c.conn.SetReadDeadline(time.Now().Add(helloTimeout))
	n, err := c.conn.Read(b)
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			s.refuse(RefusedSilent, err)
		}
		return
	}
	if c.Hello, err = decodeHello(b[:n]); err != nil {
		s.refuse(RefusedMalformed, err)
		return
	}
	_ = c.conn.SetReadDeadline(time.Time{})
	if c.Segment, err = NewSegment(s.options.Slots); err != nil {
		s.options.Logger.Error("no memory to share with an Envoy", "error", err)
		return
	}
	defer func() { _ = c.Segment.Close() }()
	s.options.Book.Opened(c)
	defer s.options.Book.Closed(c)
	if err := c.sendSegment(); err != nil {
		s.refuse(RefusedSilent, err)
		return
	}
	c.read(b)
}

func (c *EnvoyConn) sendSegment() error {
	_ = c.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, _, err := c.conn.WriteMsgUnix(encodeSegment(c.Segment.slots), rights(c.Segment.file), nil)
	return errors.Join(err, c.Segment.closeFile())
}

// read processes messages until the connection ends. More messages than allowed wait in the socket, where the module drops
// what has no room.
func (c *EnvoyConn) read(b []byte) {
	s := c.server
	allowed := rate.NewLimiter(rate.Limit(s.options.Messages), messageBurst)
	var i Interest
	for {
		n, err := c.conn.Read(b)
		if err != nil {
			return
		}
		if err := i.decode(b[:n]); err != nil {
			s.refuse(RefusedMalformed, err)
			return
		}
		s.options.Book.Interested(c, &i)
		if allowed.Wait(s.ctx) != nil {
			return
		}
	}
}
