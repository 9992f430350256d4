package h2

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/keyward/keyward/internal/budget"
)

// InlineServer serves gRPC calls on the goroutines of their connections.
type InlineServer struct {
	o         Options
	calls     sync.Pool // of *Stream
	inflaters sync.Pool // of *inflater
	account   *budget.Account

	mu struct {
		sync.Mutex
		down      bool // Shutdown was called
		listeners map[net.Listener]struct{}
		conns     map[*conn]struct{}
	}
	gone sync.WaitGroup // counts the goroutines of connections
}

// NewInlineServer returns a server that is idle until Serve is called.
func NewInlineServer(o Options) *InlineServer {
	o.Limits = o.Limits.withDefaults()
	setDefault(&o.PingInterval, pingInterval)
	setDefault(&o.Log, slog.New(slog.DiscardHandler))
	if o.TLS != nil {
		o.TLS = o.TLS.Clone()
		o.TLS.NextProtos = []string{"h2"}
	}
	s := &InlineServer{o: o, account: o.Account.Child(o.Limits.Unfinished, o.Limits.FairShare)}
	s.mu.listeners, s.mu.conns = map[net.Listener]struct{}{}, map[*conn]struct{}{}
	return s
}

// refuse reports a refusal.
func (s *InlineServer) refuse(reason string) {
	if s.o.Refuse != nil {
		s.o.Refuse(reason)
	}
}

// Serve accepts connections on l and serves them until Shutdown, then returns nil. It closes l, and returns the error
// if l fails. It may be called for several listeners.
func (s *InlineServer) Serve(l net.Listener) error {
	defer l.Close()
	s.mu.Lock()
	if s.mu.down {
		s.mu.Unlock()
		return nil
	}
	s.mu.listeners[l] = struct{}{}
	s.mu.Unlock()
	for pause := time.Duration(0); ; {
		nc, err := l.Accept()
		switch {
		case err == nil:
			pause = 0
			s.start(nc)
		case s.isDown():
			return nil
		case !isTemporary(err):
			return err
		default: // such as too many open files, which passes when connections close
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			time.Sleep(pause)
		}
	}
}

// isTemporary reports whether a listener may accept again after this error.
func isTemporary(err error) bool {
	var e interface{ Temporary() bool }
	return errors.As(err, &e) && e.Temporary()
}

func (s *InlineServer) isDown() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.down
}

// start serves a connection on its own goroutine.
func (s *InlineServer) start(nc net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.down {
		nc.Close()
		return
	}
	c := newConn(s, nc)
	s.mu.conns[c] = struct{}{}
	s.gone.Add(1)
	go func() {
		defer s.gone.Done()
		c.serve()
		s.mu.Lock()
		delete(s.mu.conns, c)
		s.mu.Unlock()
	}()
}

// Shutdown drains all connections and waits for their calls. It closes the remaining connections when ctx is done.
func (s *InlineServer) Shutdown(ctx context.Context) {
	s.mu.Lock()
	s.mu.down = true
	for l := range s.mu.listeners {
		l.Close()
	}
	for c := range s.mu.conns {
		c.requestDrain()
	}
	s.mu.Unlock()
	cut := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.mu.conns {
			c.raw.Close()
		}
	})
	s.gone.Wait()
	cut()
}
