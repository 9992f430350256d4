package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/keyward/keyward/envoy/xds"
	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// xdsServer serves the ring and the rules to Envoys.
type xdsServer struct {
	log    *slog.Logger
	server *xds.DiscoveryServer
	grpc   *grpc.Server
	end    context.CancelFunc

	mu         sync.Mutex
	parameters ring.Parameters // of the members' ring; guarded by mu
	state      xds.ServedState // guarded by mu
	hot        []hotkey.Route  // guarded by mu: of all members
	primer     *primer         // nil: keys are not primed
}

// startXDS starts to serve xDS. Envoys require one of the names in the certificates of the sidecars that they call,
// or, without names, any certificate of the CA.
func startXDS(addr string, names []string, s *security, reg prometheus.Registerer) (*xdsServer, error) {
	f, log := s.flags, s.log
	tls, err := s.envoyTLS()
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for xDS: %w", err)
	}
	ctx, end := context.WithCancel(context.Background())
	x := &xdsServer{log: log, server: xds.New(ctx, xds.Options{Logger: log, Registerer: reg}), end: end}
	x.state = xds.ServedState{
		Capacity: f.RingCapacity, TLS: tls != nil && !f.RLSPlaintext, ServerNames: names, Connect: f.EnvoyConnect,
		PrimeAddress: f.PrimeListener, RouteHeader: f.RouteHeader, Upstream: f.RouteCluster,
	}
	if f.PrimeListener == "" { // an Envoy takes all listeners that are served
		x.state.RouteAddress = f.RouteListener
	}
	gate := s.guards.Guard("xds")
	ln = gate.Listen(ln, f.MaxConnections)
	opts := []grpc.ServerOption{
		grpc.MaxConcurrentStreams(1024), grpc.MaxHeaderListSize(64 << 10), grpc.ConnectionTimeout(5 * time.Second),
		grpc.Creds(gate.Credentials(tls)),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: 30 * time.Second, Timeout: 5 * time.Second, MaxConnectionAge: f.ConnectionAge, MaxConnectionAgeGrace: time.Second,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	}
	x.grpc = grpc.NewServer(opts...)
	x.server.Register(x.grpc)
	log.Info("listening", "listener", "xDS", "address", ln.Addr().String())
	go func() {
		if err := x.grpc.Serve(ln); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			log.Error("listener failed", "listener", "xDS", "error", err)
		}
	}()
	return x, nil
}

// setView serves a new ring. A leaving member is not on the ring, and its connections drain. Until the first view
// with a member the server serves nothing, so that an Envoy waits instead of using an empty ring.
func (x *xdsServer) setView(v *membership.View) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.state.Members = nil
	for i := range v.Members {
		m := &v.Members[i]
		onRing := v.Ring.Index(m.ID) >= 0
		if m.Role == membership.RoleMember && (onRing || m.State == membership.Leaving) {
			x.state.Members = append(x.state.Members, xds.Endpoint{
				ID: m.ID, Weight: m.Weight, RLS: m.RLS, Route: m.Route, Draining: !onRing,
			})
		}
	}
	if p := v.Ring.Parameters(); p != x.parameters {
		if x.parameters = p; p.Envoy {
			x.log.Warn("members use another ring than xDS serves; calls of Envoys with xDS take a hop", "configured", p.String())
		}
	}
	x.serveLocked()
}

// setHot serves new routes of hot keys.
func (x *xdsServer) setHot(rs []hotkey.Route) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.hot = rs
	x.serveLocked()
}

// refresh serves the routes again after the primer has changed.
func (x *xdsServer) refresh() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.serveLocked()
}

// setPrimer makes p decide about the routes that switch keys to quotas.
func (x *xdsServer) setPrimer(p *primer) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.primer = p
}

// setRules serves new rules.
func (x *xdsServer) setRules(r *config.Rules) {
	resources, lost := r.ToProto()
	if len(lost) > 0 {
		x.log.Warn("RateLimitConfig cannot express all rules; members that take them by xDS count differently", "lost", lost)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.state.Rules = resources
	x.serveLocked()
}

func (x *xdsServer) serveLocked() {
	x.state.Hot, x.state.Primed = x.primer.plan(x.hot)
	if len(x.state.Members) == 0 {
		return
	}
	if err := x.server.Set(x.state); err != nil {
		x.log.Error("xDS snapshot not built; the previous one is still served", "error", err)
	}
}

func (x *xdsServer) status() xds.ServerStatus { return x.server.Status() }

func (x *xdsServer) stop() {
	x.end()
	x.grpc.Stop()
}
