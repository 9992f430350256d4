package remote

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/budget"
	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/connguard"
)

const (
	// maxKept is the number of bytes of requests that all clients may make a server keep.
	maxKept = 128 << 20
	// fairShare is the number of bytes that one connection may always make it keep, up to its equal part of maxKept.
	fairShare = maxFrame
	// maxConnections is the number of connections. One more replaces the connection that has been silent longest.
	maxConnections = 4096
	// logEvery is the time between two log lines about refused connections.
	logEvery = time.Second
)

// Reasons of refused connections, in addition to those of certs.Reason and connguard.
const (
	reasonPreface   = connguard.NotHTTP2 // the connection did not begin with the magic
	reasonRegion    = "region"           // not of the layout, or not proven by the certificate
	reasonEpoch     = "epoch"            // of another layout
	reasonVersion   = "version"          // no common version of the protocol
	reasonMalformed = "malformed"
)

// ServeOptions configure a CoordinatorServer.
type ServeOptions struct {
	Coordinator federation.Coordinator
	// Schedule returns the layouts, whose regions are served. The Coordinator determines which of them each window uses.
	Schedule func() *federation.LayoutSchedule
	TLS      *tls.Config      // requires clients' certificates; nil: no TLS, and every client may name any region
	Guard    *connguard.Guard // limits connections and counts refused ones; nil: neither
	Logger   *slog.Logger     // nil: no logs

	// OnConnection is called with 1 when a region has connected, and with -1 when that connection has ended; nil: it is
	// not called. It is called by many goroutines.
	OnConnection func(region string, change int)

	pace pace
}

// CoordinatorServer serves a Coordinator to CoordinatorClients.
type CoordinatorServer struct {
	o       ServeOptions
	ln      net.Listener
	account *budget.Account
	ctx     context.Context // ends all connections
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	mu       sync.Mutex // guards all below
	streams  map[*serverStream]bool
	stopping bool
	loggedAt time.Time // when a refused connection was logged
}

// Serve accepts connections of ln until Shutdown.
func Serve(ln net.Listener, o ServeOptions) *CoordinatorServer {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.OnConnection == nil {
		o.OnConnection = func(string, int) {}
	}
	if o.TLS != nil {
		o.TLS = serverTLS(o.TLS)
	}
	o.pace = o.pace.orDefaults()
	s := &CoordinatorServer{
		o: o, ln: o.Guard.Listen(ln, maxConnections), account: budget.New(maxKept, fairShare),
		streams: map[*serverStream]bool{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Go(s.accept)
	return s
}

// Addr returns the address of the listener.
func (s *CoordinatorServer) Addr() net.Addr { return s.ln.Addr() }

// Shutdown stops accepting connections, asks clients to go, and waits until calls in progress are complete or ctx ends.
// Then it closes all connections. It returns the error of ctx if it did not wait for all calls.
func (s *CoordinatorServer) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.stopping = true
	for c := range s.streams {
		c.goAway("the coordinator is shutting down")
	}
	s.mu.Unlock()
	s.ln.Close()
	done := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(done)
	}()
	defer s.cancel()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		s.cancel()
		<-done
		return ctx.Err()
	}
}

func (s *CoordinatorServer) accept() {
	for {
		conn, err := s.ln.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // such as too many open files
			s.o.Logger.Error("connection not accepted", "listener", "coordinator", "error", err)
			time.Sleep(50 * time.Millisecond)
		default:
			s.wg.Go(func() { s.serve(conn) })
		}
	}
}

// serve serves one connection until it ends.
func (s *CoordinatorServer) serve(raw net.Conn) {
	account := s.account.Open()
	defer account.Close()
	defer raw.Close()
	c, err := s.open(raw, account)
	if err != nil {
		s.refuse(raw, err)
		return
	}
	connguard.MarkAnswered(raw)
	if !s.add(c) {
		c.cancel(errFinished)
		return
	}
	defer s.remove(c)
	s.o.Logger.Info("region connected", "region", c.region, "address", raw.RemoteAddr().String())
	if err = c.run(); reasonOf(err) != "" {
		s.refuse(raw, err)
	}
	s.o.Logger.Info("region disconnected", "region", c.region, "address", raw.RemoteAddr().String(), "cause", err.Error())
}

// open performs the server's side of the handshakes of TLS and of the protocol.
func (s *CoordinatorServer) open(raw net.Conn, account *budget.Account) (*serverStream, error) {
	bounded, cancel := context.WithTimeout(s.ctx, s.o.pace.handshake)
	defer cancel()
	defer context.AfterFunc(bounded, func() { raw.SetDeadline(time.Unix(1, 0)) })()
	conn, state := raw, (*tls.ConnectionState)(nil)
	if s.o.TLS != nil {
		secure := tls.Server(raw, s.o.TLS)
		if err := secure.HandshakeContext(bounded); err != nil {
			return nil, &refusedError{certs.Reason(err), fmt.Errorf("tls: %w", err)}
		}
		cs := secure.ConnectionState()
		conn, state = secure, &cs
	}
	c := newServerStream(s, conn, account)
	payload, err := c.readHandshake(frameHello)
	switch reason := reasonOf(err); {
	case err == nil:
		err = s.welcome(c, payload, state)
	case reason == reasonMalformed:
		err = &refusedError{reasonPreface, fmt.Errorf("handshake: %w", err)}
	default:
		err = &refusedError{connguard.Cut, fmt.Errorf("handshake: %w", err)}
	}
	if err != nil {
		c.cancel(err)
		return nil, err
	}
	c.release(len(payload))
	return c, nil
}

// welcome replies to a hello.
func (s *CoordinatorServer) welcome(c *serverStream, payload []byte, state *tls.ConnectionState) error {
	h, err := parseHello(payload)
	if err != nil {
		return &refusedError{reasonMalformed, fmt.Errorf("handshake: %w", err)}
	}
	w := welcome{version: version}
	refused := s.check(h, state)
	if refused != nil {
		w = welcome{reason: refused.Error()}
	}
	if _, err := c.conn.Write(welcomeFrame(w)); err != nil && refused == nil {
		return &refusedError{connguard.Cut, fmt.Errorf("handshake: %w", err)}
	}
	c.region = h.region
	return refused
}

// check returns an error if the server does not serve h. state is that of TLS, or nil.
func (s *CoordinatorServer) check(h hello, state *tls.ConnectionState) error {
	refuse := func(reason, format string, args ...any) error {
		return &refusedError{reason, fmt.Errorf(format, args...)}
	}
	if h.min > version || h.max < version {
		return refuse(reasonVersion, "the client supports protocol versions %d to %d, the coordinator %d", h.min, h.max, version)
	}
	if state != nil {
		if err := checkRegion(*state, h.region); err != nil {
			return refuse(reasonRegion, "region %q: %w", h.region, err)
		}
	}
	layouts := s.o.Schedule()
	if !slices.Contains(layouts.Regions(), h.region) {
		return refuse(reasonRegion, "region %q is not in the layout", h.region)
	}
	if _, known := layouts.TermOf(h.epoch); !known {
		const text = "region %q has a layout of epoch %d, the coordinator one of epoch %d"
		return refuse(reasonEpoch, text, h.region, h.epoch, layouts.Newest().Epoch)
	}
	return nil
}

// refuse counts a refused connection, and logs one in logEvery. Clients that only connect, as probes do, are not worth a
// warning.
func (s *CoordinatorServer) refuse(raw net.Conn, err error) {
	s.o.Guard.Refuse(reasonOf(err))
	s.mu.Lock()
	now := time.Now()
	quiet := now.Sub(s.loggedAt) < logEvery && !errors.Is(err, io.EOF)
	if !quiet {
		s.loggedAt = now
	}
	s.mu.Unlock()
	level := slog.LevelWarn
	if errors.Is(err, io.EOF) {
		level = slog.LevelDebug
	}
	if !quiet {
		s.o.Logger.Log(s.ctx, level, "connection refused",
			"listener", "coordinator", "address", raw.RemoteAddr().String(), "error", err)
	}
}

// add records a connection. It returns false if the server is shutting down.
func (s *CoordinatorServer) add(c *serverStream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return false
	}
	s.streams[c] = true
	s.o.OnConnection(c.region, 1)
	age := s.o.pace.age
	c.ageing = time.AfterFunc(age*3/4+rand.N(age/4), func() { c.goAway("it has reached its age") })
	return true
}

func (s *CoordinatorServer) remove(c *serverStream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.ageing.Stop()
	delete(s.streams, c)
	s.o.OnConnection(c.region, -1)
}

// refusedError is why a connection was refused, with the reason for the metric.
type refusedError struct {
	reason string
	error
}

// Unwrap returns what went wrong.
func (e *refusedError) Unwrap() error { return e.error }

// reasonOf returns the reason for the metric, or nothing for a connection that ended in order.
func reasonOf(err error) string {
	var refused *refusedError
	var bad malformedError
	switch {
	case errors.As(err, &refused):
		return refused.reason
	case errors.As(err, &bad):
		return reasonMalformed
	case errors.Is(err, errOver):
		return connguard.Unfinished
	case errors.Is(err, errStalled):
		return connguard.Stalled
	}
	return ""
}
