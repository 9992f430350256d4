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

	"github.com/keyward/keyward/envoy/internal/h2"
	"github.com/keyward/keyward/internal/browser"
	"github.com/keyward/keyward/internal/connguard"
	"github.com/keyward/keyward/internal/unixsocket"
)

// Listener describes a gRPC listener. A service may have several: on loopback, on a unix socket, on the pod network
// with mTLS.
type Listener struct {
	Address  string      // host:port, or a path with Unix
	TLS      *tls.Config // nil: plaintext
	Unix     bool        // Address is the path of a unix socket
	NoHealth bool        // without gRPC's health service
	Name     string      // name of its guard, the surface label of metrics; default rls

	// MaxAge is the age at which a connection is drained; default StartOptions.ConnectionAge.
	MaxAge time.Duration
}

// StartOptions configure a Server.
type StartOptions struct {
	Service   *Service
	Health    *HealthServer
	Logger    *slog.Logger // nil: no logs
	Listeners []Listener
	HTTP      string // host:port of /json and /healthcheck; "": none
	// Methods are further gRPC methods by full name, and JSON further handlers of the HTTP listener by path.
	Methods map[string]h2.Handler
	JSON    map[string]http.Handler
	Refunds string        // which callers may refund hits: local (default), certificate or any
	Hosts   browser.Hosts // host names that HTTP and Debug serve
	Debug   string        // host:port of the debug listener; "": none
	// GRPC_MAX_CONNECTION_AGE: the age at which gRPC connections are drained; 0: never.
	ConnectionAge      time.Duration
	ConnectionAgeGrace time.Duration     // GRPC_MAX_CONNECTION_AGE_GRACE: how much later they are closed; 0: never
	Guards             *connguard.Guards // nil: connections are neither limited nor counted
	MaxConn            int               // connections per gRPC listener; default 1024
}

// Server serves rate limit calls on its listeners.
type Server struct {
	// Addrs are the addresses of the gRPC listeners in order, then those of HTTP and Debug if they are open. Read only.
	Addrs []net.Addr

	log     *slog.Logger
	servers []*h2.InlineServer
	http    []*http.Server
	done    sync.WaitGroup
}

// Start opens all listeners and serves on them. If it cannot open one, it opens none.
func Start(o StartOptions) (*Server, error) {
	s := &Server{log: o.Logger}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	listeners, err := o.listen()
	if err != nil {
		return nil, err
	}
	for _, l := range listeners {
		s.Addrs = append(s.Addrs, l.Addr())
	}
	for i, d := range o.Listeners {
		opts, health := o.grpcOptions(d), o.Health
		if d.NoHealth {
			health = nil
		}
		server := o.Service.newInlineServer(opts, health)
		s.servers = append(s.servers, server)
		s.serve("gRPC", opts.Guard.ListenInTurn(listeners[i], cmp.Or(o.MaxConn, maxConnections)), server.Serve)
	}
	rest := listeners[len(o.Listeners):]
	if o.HTTP != "" {
		s.serveHTTP(rest[0], &o, httpPort{"http", o.Service.httpHandler(&o), 30 * time.Second})
		rest = rest[1:]
	}
	if o.Debug != "" {
		s.serveHTTP(rest[0], &o, httpPort{"debug", o.Service.debugHandler(), 0}) // a profile takes as long as requested
	}
	return s, nil
}

// grpcOptions returns the options of the server of a gRPC listener.
func (o *StartOptions) grpcOptions(d Listener) grpcOptions {
	refunds := cmp.Or(o.Refunds, refundsLocal)
	opts := grpcOptions{TLS: d.TLS, ConnectionAge: o.ConnectionAge, ConnectionAgeGrace: o.ConnectionAgeGrace,
		Methods: o.Methods, Refunds: d.allowsRefunds(refunds), LocalRefunds: refunds == refundsLocal}
	if d.MaxAge > 0 {
		opts.ConnectionAge = min(orMax(opts.ConnectionAge), d.MaxAge)
	}
	if o.Guards != nil {
		opts.Guard = o.Guards.Guard(cmp.Or(d.Name, "rls"))
	}
	return opts
}

const (
	maxConnections     = 1024 // default of a gRPC listener
	maxHTTPConnections = 256
	maxHTTPHeaders     = 64 << 10
)

// orMax returns d, or the longest duration if d is 0.
func orMax(d time.Duration) time.Duration {
	if d <= 0 {
		return math.MaxInt64
	}
	return d
}

// listen opens the gRPC listeners, then those of HTTP and Debug.
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

// removeStale removes a unix socket without a listener, which a crashed process has left behind.
func removeStale(path string) {
	if unixsocket.CheckFree("unix", path) == nil {
		_ = os.Remove(path)
	}
}

func (s *Server) serve(name string, l net.Listener, serve func(net.Listener) error) {
	s.log.Info("listening", "listener", name, "address", l.Addr().String())
	s.done.Go(func() {
		if err := serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("listener failed", "listener", name, "error", err)
		}
	})
}

// httpPort describes an HTTP listener.
type httpPort struct {
	name         string // of its guard
	handler      http.Handler
	writeTimeout time.Duration // 0: none
}

func (s *Server) serveHTTP(l net.Listener, o *StartOptions, p httpPort) {
	srv := &http.Server{
		Handler:           o.Hosts.Guard(p.handler, o.refuse(p.name), healthPath),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      p.writeTimeout,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    maxHTTPHeaders,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	if o.Guards != nil {
		guard := o.Guards.Guard(p.name)
		guard.Watch(srv)
		l = guard.Listen(l, maxHTTPConnections)
	}
	s.http = append(s.http, srv)
	s.serve(p.name, l, srv.Serve)
}

// refuse returns a function that counts refusals on a surface. It does nothing without Guards.
func (o *StartOptions) refuse(surface string) func(reason string) {
	if o.Guards == nil {
		return func(string) {}
	}
	return o.Guards.Guard(surface).Refuse
}

// Stop accepts no new calls, waits for those in flight until ctx is done, then cuts them off.
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
