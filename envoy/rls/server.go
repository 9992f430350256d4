package rls

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/keyward/keyward/internal/browser"
	"github.com/keyward/keyward/internal/connguard"
)

// Listener is a gRPC listener. The service may have several: loopback, a unix socket, the pod network with mTLS.
type Listener struct {
	Address  string      // host:port, or a path with Unix
	GRPCGo   bool        // served by grpc-go instead of the inline server
	TLS      *tls.Config // nil for plaintext
	Unix     bool        // Address is the path of a socket
	NoHealth bool        // rate limiting only, no health service
	Name     string      // of its surface in metrics; default rls

	// MaxAge is after how long a connection is asked to end; default StartOptions.ConnectionAge.
	MaxAge time.Duration
}

// StartOptions make a Server.
type StartOptions struct {
	Service            *Service
	Health             *HealthServer
	Logger             *slog.Logger // nil for none
	Listeners          []Listener
	HTTP               string            // host:port of /json and /healthcheck; "" for none
	Refunds            string            // which callers may refund hits: local (default), certificate or any
	Hosts              browser.Hosts     // names that HTTP and Debug answer for
	Debug              string            // host:port of the debug port; "" for none
	ConnectionAge      time.Duration     // GRPC_MAX_CONNECTION_AGE: when a gRPC connection is asked to close; 0 for never
	ConnectionAgeGrace time.Duration     // GRPC_MAX_CONNECTION_AGE_GRACE: how much later it is closed; 0 for never
	Guards             *connguard.Guards // nil for no bounds of connections, and no metrics of them
	MaxConn            int               // connections of each door; default 1024
}

// Server listens for rate limit requests.
type Server struct {
	log       *slog.Logger
	servers   []grpcServer
	http      []*http.Server
	listeners []net.Listener
	done      sync.WaitGroup
}

// Start opens every listener, or none, and serves on them.
func Start(o StartOptions) (*Server, error) {
	s := &Server{log: o.Logger}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	listeners, err := o.listen()
	if err != nil {
		return nil, err
	}
	s.listeners = listeners
	refunds := cmp.Or(o.Refunds, refundsLocal)
	for i, d := range o.Listeners {
		opts := grpcOptions{TLS: d.TLS, ConnectionAge: o.ConnectionAge, ConnectionAgeGrace: o.ConnectionAgeGrace}
		if d.MaxAge > 0 {
			opts.ConnectionAge = min(orMax(opts.ConnectionAge), d.MaxAge)
		}
		if o.Guards != nil {
			opts.Guard = o.Guards.Guard(cmp.Or(d.Name, "rls"))
		}
		opts.Refunds, opts.LocalRefunds = d.allowsRefunds(refunds), refunds == refundsLocal
		listen := opts.Guard.Listen
		if !d.GRPCGo { // gRPC does not tell when a call has come
			listen = opts.Guard.ListenInTurn
		}
		listeners[i] = listen(listeners[i], cmp.Or(o.MaxConn, maxConnections))
		door := o.newServer(d, opts)
		s.servers = append(s.servers, door)
		s.serve("gRPC", listeners[i], door.Serve)
	}
	rest := listeners[len(o.Listeners):]
	if o.HTTP != "" {
		s.serveHTTP("http", rest[0], &o, o.Service.httpHandler(&o), 30*time.Second)
		rest = rest[1:]
	}
	if o.Debug != "" {
		s.serveHTTP("debug", rest[0], &o, o.Service.debugHandler(), 0) // a profile takes as long as it was asked to
	}
	return s, nil
}

// grpcServer serves the connections of a listener until it is shut down.
type grpcServer interface {
	Serve(net.Listener) error
	Shutdown(context.Context)
}

func (o *StartOptions) newServer(d Listener, opts grpcOptions) grpcServer {
	h := o.Health
	if d.NoHealth {
		h = nil
	}
	if !d.GRPCGo {
		return o.Service.newInlineServer(opts, h)
	}
	g := o.Service.newGRPC(opts)
	if h != nil {
		h.register(g, o.Service.store)
	}
	return grpcGoServer{g}
}

// grpcGoServer is a server of grpc-go.
type grpcGoServer struct{ *grpc.Server }

// Shutdown lets the calls in flight end until ctx is done, then cuts them off.
func (d grpcGoServer) Shutdown(ctx context.Context) {
	cut := context.AfterFunc(ctx, d.Stop)
	defer cut()
	d.GracefulStop()
}

const (
	maxConnections     = 1024 // of a door, unless told otherwise
	maxHTTPConnections = 256
	maxHTTPHeaders     = 64 << 10
)

// orMax is d, or for ever when d is 0.
func orMax(d time.Duration) time.Duration {
	if d <= 0 {
		return math.MaxInt64
	}
	return d
}

// listen opens the listeners of all doors, then those of HTTP and Debug.
func (o *StartOptions) listen() (all []net.Listener, err error) {
	var faults []error
	open := func(name, network, address string) {
		l, err := net.Listen(network, address)
		if err != nil {
			faults = append(faults, fmt.Errorf("listen for %s: %w", name, err))
			return
		}
		all = append(all, l)
	}
	for _, d := range o.Listeners {
		network := "tcp"
		if d.Unix {
			network = "unix"
			removeStale(d.Address)
		}
		open("gRPC", network, d.Address)
	}
	if o.HTTP != "" {
		open("HTTP", "tcp", o.HTTP)
	}
	if o.Debug != "" {
		open("debug", "tcp", o.Debug)
	}
	if len(faults) == 0 {
		return all, nil
	}
	for _, l := range all {
		_ = l.Close()
	}
	return nil, errors.Join(faults...)
}

// removeStale removes a unix socket that nobody listens on any more: its owner died without closing it.
func removeStale(path string) {
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&os.ModeSocket == 0 {
		return
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err != nil {
		_ = os.Remove(path)
		return
	}
	_ = conn.Close()
}

func (s *Server) serve(name string, l net.Listener, serve func(net.Listener) error) {
	s.log.Info("listening", "for", name, "address", l.Addr().String())
	s.done.Go(func() {
		if err := serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, grpc.ErrServerStopped) {
			s.log.Error("listener failed", "for", name, "err", err)
		}
	})
}

func (s *Server) serveHTTP(name string, l net.Listener, o *StartOptions, h http.Handler, write time.Duration) {
	h = o.Hosts.Guard(h, o.refuse(name), healthPath)
	srv := &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: write,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: maxHTTPHeaders, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	if o.Guards != nil {
		surface := o.Guards.Guard(name)
		surface.Watch(srv)
		l = surface.Listen(l, maxHTTPConnections)
	}
	s.http = append(s.http, srv)
	s.serve(name, l, srv.Serve)
}

// refuse counts what is refused at a port; nobody counts without Gates.
func (o *StartOptions) refuse(surface string) func(reason string) {
	if o.Guards == nil {
		return func(string) {}
	}
	return o.Guards.Guard(surface).Refuse
}

// Addrs are the addresses listened on: the doors' in order, then HTTP's and the debug port's if they are open.
func (s *Server) Addrs() []net.Addr {
	var as []net.Addr
	for _, l := range s.listeners {
		as = append(as, l.Addr())
	}
	return as
}

// Stop takes no new calls, lets those in flight end until ctx is done, then cuts them off.
func (s *Server) Stop(ctx context.Context) {
	var stopping sync.WaitGroup
	for _, d := range s.servers {
		stopping.Go(func() { d.Shutdown(ctx) })
	}
	for _, h := range s.http {
		stopping.Go(func() {
			if h.Shutdown(ctx) != nil {
				_ = h.Close()
			}
		})
	}
	stopping.Wait()
	s.done.Wait()
}
