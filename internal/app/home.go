package app

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/federation/remote"
	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/home"
	"github.com/keyward/keyward/internal/peer"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// homeMembers implements home.Members by a Peer, which starts after the coordinators are known.
type homeMembers struct{ peer atomic.Pointer[peer.Peer] }

func (h *homeMembers) StepPool(region string, r *federation.PoolRequest, to owner.Waiter) owner.PoolResult {
	if p := h.peer.Load(); p != nil {
		return p.StepPool(region, r, to)
	}
	return owner.PoolResult{Kind: owner.Forward}
}

func (h *homeMembers) SendPool(to ring.ID, m *peer.PoolMessage) bool {
	p := h.peer.Load()
	return p != nil && p.SendPool(to, m)
}

// openHome makes this cluster a coordinator, if it is one by the layout.
func (x *federations) openHome() {
	if l := x.layout; l.Coordinates(x.region) {
		x.members = &homeMembers{}
		accepts := func(r *federation.PoolRequest) bool { return r.Epoch == l.Epoch }
		x.home = home.New(home.Options{Members: x.members, Accepts: accepts, Joined: x.joined.Load})
	}
}

// startFederationServer serves other regions, if --federation-listen is set.
func (m *sidecar) startFederationServer() error {
	f := &m.federation
	if m.Flags.FederationListen == "" {
		if f.home != nil && len(f.layout.Regions) > 1 {
			m.Log.Info("this cluster coordinates, and this member does not serve other regions: --federation-listen is not set")
		}
		return nil
	}
	if f.home == nil {
		return fmt.Errorf("--federation-listen: region %q coordinates nothing, because the coordinator of %s is %q; want the region's name or %s",
			m.Flags.Region, m.Flags.Federation, f.layout.Coordinator, federation.SpreadCoordinator)
	}
	var secure *tls.Config
	if !m.Flags.TLS.Empty() {
		o := certs.ServerOptions{NextProtos: []string{remote.ALPN}, Reload: m.security.reload()}
		var err error
		if secure, err = certs.Server(m.Flags.TLS, o); err != nil {
			return fmt.Errorf("--tls-cert, --tls-key and --tls-ca: %w", err)
		}
	}
	ln, err := net.Listen("tcp", m.Flags.FederationListen)
	if err != nil {
		return fmt.Errorf("--federation-listen: %w", err)
	}
	f.server = remote.Serve(ln, remote.ServeOptions{
		Coordinator: f.measured, Regions: f.layout.Names(), Epoch: f.layout.Epoch, TLS: secure,
		Guard: m.security.guards.Guard("coordinator"), Logger: m.Log,
		OnConnection: func(region string, change int) {
			f.metrics.connections.WithLabelValues(region).Add(float64(change))
		},
	})
	m.Log.Info("listening", "listener", "coordinator", "address", ln.Addr().String())
	return nil
}

// measureHome creates the metrics of the coordinator that this cluster is, and measures it.
func (x *federations) measureHome(reg prometheus.Registerer) {
	x.metrics = newCoordinatorMetrics(reg)
	x.metrics.up.Set(1)
	for _, region := range x.layout.Names() {
		x.metrics.create(region)
	}
	x.measured = &measuredStore{x.home, x.metrics}
}

// stopFederationServer completes the calls of regions in progress.
func (x *federations) stopFederationServer(ctx context.Context) {
	if x.server != nil {
		_ = x.server.Shutdown(ctx)
	}
}
