package remote

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/keyward/keyward/federation"
)

const (
	dialTimeout = 3 * time.Second // of TCP
	firstDelay  = 100 * time.Millisecond
	lastDelay   = 3 * time.Second
	callTimeout = 10 * time.Second // of calls whose context has no deadline, and at a server of all calls
)

var errClosed = errors.New("the client is closed")

// DialOptions configure a CoordinatorClient.
type DialOptions struct {
	Address string        // host:port of a CoordinatorServer
	Region  string        // for which the client calls
	Epoch   func() uint32 // of the layout in force, for the handshake
	TLS     *tls.Config   // with the region's certificate; nil: no TLS
	Logger  *slog.Logger  // nil: no logs

	pace pace
}

// CoordinatorClient is a federation.Coordinator that sends calls to a CoordinatorServer over one connection, which it
// keeps open. It connects again when the connection is lost. Calls wait for the first attempt to do so; while attempts
// fail, they fail at once. It is safe for concurrent use.
type CoordinatorClient struct {
	o   DialOptions
	end context.CancelCauseFunc
	wg  sync.WaitGroup

	mu      sync.Mutex    // guards all below
	current *clientStream // nil: none
	err     error         // why there is none; nil: the client is connecting
	changed chan struct{} // closed when one of the two changes
}

// Dial returns a client, which connects in the background until Close. It does not wait for the server.
func Dial(o DialOptions) *CoordinatorClient {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.pace = o.pace.orDefaults()
	c := &CoordinatorClient{o: o, changed: make(chan struct{})}
	ctx, end := context.WithCancelCause(context.Background())
	c.end = end
	c.wg.Go(func() { c.connect(ctx) })
	return c
}

// Close closes the connection. Calls in progress and later ones return an error.
func (c *CoordinatorClient) Close() {
	c.end(errClosed)
	c.wg.Wait()
}

// Lease implements federation.Coordinator. It returns an error for another region than that of the client. The server
// stops processing requests at the deadline of ctx.
func (c *CoordinatorClient) Lease(
	ctx context.Context, region string, rs []federation.PoolRequest,
) ([]federation.PoolGrant, error) {
	return c.send(ctx, opLease, region, rs)
}

// Reconcile implements federation.Coordinator.
func (c *CoordinatorClient) Reconcile(ctx context.Context, region string, rs []federation.PoolRequest) error {
	_, err := c.send(ctx, opReconcile, region, rs)
	return err
}

// Healthy implements federation.Coordinator. It returns an error if there is no connection, or if the coordinator of the
// server is not healthy.
func (c *CoordinatorClient) Healthy(ctx context.Context) error {
	if _, err := c.call(ctx, opHealthy, nil); err != nil {
		return fmt.Errorf("coordinator %s: %w", c.o.Address, err)
	}
	return nil
}

// send sends requests in as many calls as they need, one after the other. Most need one.
func (c *CoordinatorClient) send(
	ctx context.Context, op op, region string, rs []federation.PoolRequest,
) (gs []federation.PoolGrant, err error) {
	if region != c.o.Region {
		const text = "lease from coordinator %s: this client calls for region %q, not %q"
		return nil, fmt.Errorf(text, c.o.Address, c.o.Region, region)
	}
	invalid := func(r federation.PoolRequest) bool { return !r.Valid() || r.Extended() } // the protocol has no place for the latter
	if slices.ContainsFunc(rs, invalid) {                                                // every coordinator would refuse them
		rs = slices.DeleteFunc(slices.Clone(rs), invalid)
	}
	for len(rs) > 0 {
		n := fitting(rs)
		more, err := c.call(ctx, op, rs[:n])
		if err != nil {
			return nil, fmt.Errorf("lease from coordinator %s: %w", c.o.Address, err)
		}
		gs, rs = append(gs, more...), rs[n:]
	}
	return gs, nil
}

// call makes one call over the present connection. A connection that accepts no more calls is about to be replaced.
func (c *CoordinatorClient) call(ctx context.Context, op op, rs []federation.PoolRequest) ([]federation.PoolGrant, error) {
	for {
		s, err := c.stream(ctx)
		if err != nil {
			return nil, err
		}
		gs, err := s.call(ctx, op, rs)
		if !errors.Is(err, errRetired) {
			return gs, err
		}
	}
}

// stream returns the connection, for which it waits while the client is connecting.
func (c *CoordinatorClient) stream(ctx context.Context) (*clientStream, error) {
	for {
		c.mu.Lock()
		s, err, changed := c.current, c.err, c.changed
		c.mu.Unlock()
		if s != nil && s.isRetired() {
			s = nil // connect is about to notice
		} else if s != nil || err != nil {
			return s, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("connect: %w", ctx.Err())
		}
	}
}

func (c *CoordinatorClient) set(s *clientStream, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current, c.err = s, err
	close(c.changed)
	c.changed = make(chan struct{})
}

// connect keeps a connection open until ctx ends. It pauses after failures and after connections that are lost at once.
func (c *CoordinatorClient) connect(ctx context.Context) {
	log := c.o.Logger.With("address", c.o.Address)
	delay, logged := time.Duration(0), ""
	for {
		worked, err := c.use(ctx)
		if ctx.Err() != nil {
			c.set(nil, errClosed)
			return
		}
		if worked {
			delay, logged = firstDelay, ""
			c.set(nil, nil) // calls wait for the next attempt
			log.Info("coordinator connection ended; connecting again", "cause", err.Error())
			continue
		}
		c.set(nil, err)
		delay = min(max(2*delay, firstDelay), lastDelay)
		if err.Error() != logged {
			logged = err.Error()
			log.Warn("coordinator not connected; retrying", "error", err, "retry_in", delay)
		}
		select {
		case <-time.After(delay/2 + rand.N(delay/2)):
		case <-ctx.Done():
		}
	}
}

// use connects, and returns why the connection has to be replaced. worked is true if it lasted for some time.
func (c *CoordinatorClient) use(ctx context.Context) (worked bool, err error) {
	s, err := c.dial(ctx)
	if err != nil {
		return false, fmt.Errorf("connect: %w", err)
	}
	began := time.Now()
	c.wg.Go(s.write)
	c.wg.Go(s.readReplies)
	c.set(s, nil)
	c.o.Logger.Info("connected to coordinator", "address", c.o.Address)
	<-s.retired
	return time.Since(began) > c.o.pace.worked, s.reason()
}

// dial opens a connection: TCP, TLS and the handshake.
func (c *CoordinatorClient) dial(ctx context.Context) (*clientStream, error) {
	bounded, cancel := context.WithTimeout(ctx, dialTimeout+c.o.pace.handshake)
	defer cancel()
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(bounded, "tcp", c.o.Address)
	if err != nil {
		return nil, err
	}
	raw := conn
	defer context.AfterFunc(bounded, func() { raw.SetDeadline(time.Unix(1, 0)) })()
	if c.o.TLS != nil {
		host, _, _ := net.SplitHostPort(c.o.Address)
		secure := tls.Client(conn, clientTLS(c.o.TLS, host))
		if err := secure.HandshakeContext(bounded); err != nil {
			conn.Close()
			return nil, fmt.Errorf("tls: %w", err)
		}
		if secure.ConnectionState().NegotiatedProtocol != ALPN {
			conn.Close()
			return nil, fmt.Errorf("the server did not negotiate the protocol %s", ALPN)
		}
		conn = secure
	}
	s := newClientStream(ctx, conn, c.o.pace)
	if err := s.handshake(hello{version, version, c.o.Epoch(), c.o.Region}); err != nil {
		s.cancel(err)
		return nil, fmt.Errorf("handshake: %w", err)
	}
	return s, nil
}
