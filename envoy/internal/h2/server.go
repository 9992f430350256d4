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

// InlineServer serves calls.
type InlineServer struct {
	o       Options
	calls   sync.Pool // of *Call
	account *budget.Account

	mu struct {
		sync.Mutex
		down      bool // Shutdown was called
		listeners map[net.Listener]struct{}
		conns     map[*conn]struct{}
	}
	gone sync.WaitGroup // of the connections' goroutines
}

// NewInlineServer makes a server; it does nothing until Serve.
func NewInlineServer(o Options) *InlineServer {
	o.Limits = o.Limits.withDefaults()
	setDefault(&o.Log, slog.New(slog.DiscardHandler))
	if o.TLS != nil {
		o.TLS = o.TLS.Clone()
		o.TLS.NextProtos = []string{"h2"}
	}
	s := &InlineServer{o: o, account: o.Account.Part(o.Limits.Unfinished, o.Limits.FairShare)}
	s.mu.listeners, s.mu.conns = map[net.Listener]struct{}{}, map[*conn]struct{}{}
	return s
}

// refuse tells of something refused.
func (s *InlineServer) refuse(reason string) {
	if s.o.Refuse != nil {
		s.o.Refuse(reason)
	}
}

// Serve serves the connections that l accepts, and closes l. It returns nil after Shutdown, or why l failed. It may be
// called for several listeners.
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
		default: // such as too many open files: it passes when connections end
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			time.Sleep(pause)
		}
	}
}

// isTemporary says that a listener may accept again after this error.
func isTemporary(err error) bool {
	var e interface{ Temporary() bool }
	return errors.As(err, &e) && e.Temporary()
}

func (s *InlineServer) isDown() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.down
}

// start serves one connection on a goroutine of its own.
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

// Shutdown asks all clients to go, waits for the calls that are under way until ctx is over, and cuts what is left then.
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
