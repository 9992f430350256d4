package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"

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

// servedHome is this cluster as a coordinator, with its metrics. Before they exist, it lends nothing.
type servedHome struct {
	home     *home.Coordinator
	measured atomic.Pointer[measuredStore]
}

var errNoHome = errors.New("this cluster is no coordinator")

// Lease implements federation.Coordinator.
func (h *servedHome) Lease(ctx context.Context, region string, rs []federation.PoolRequest) ([]federation.PoolGrant, error) {
	if m := h.measured.Load(); m != nil {
		return m.Lease(ctx, region, rs)
	}
	return nil, errNoHome
}

// Reconcile implements federation.Coordinator.
func (h *servedHome) Reconcile(ctx context.Context, region string, rs []federation.PoolRequest) error {
	_, err := h.Lease(ctx, region, rs)
	return err
}

// connected counts the connections of a region.
func (h *servedHome) connected(region string, change int) {
	if m := h.measured.Load(); m != nil {
		m.metrics.connections.WithLabelValues(region).Add(float64(change))
	}
}

// Healthy implements federation.Coordinator.
func (h *servedHome) Healthy(ctx context.Context) error { return h.home.Healthy(ctx) }

// openHome makes this cluster able to coordinate, if the federation has regions. The Node refuses requests of windows in which
// it does not.
func (x *federations) openHome() {
	if len(x.layouts.now().Regions()) > 0 {
		x.members = &homeMembers{}
		x.home = home.New(home.Options{Members: x.members, Joined: x.joined.Load})
		x.served = &servedHome{home: x.home}
	}
}

// lends reports whether this cluster coordinates by any of the layouts.
func (x *federations) lends() bool {
	return slices.ContainsFunc(x.layouts.now().Phases(), func(p *federation.LayoutPhase) bool { return p.Lends })
}

// openRegions opens the regions that coordinate, among them this one, by the addresses of the newest layouts.
func (x *federations) openRegions() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	var errs []error
	seen := map[string]bool{}
	for _, p := range slices.Backward(x.layouts.now().Phases()) {
		for i := range p.Layout.Regions {
			r := &p.Layout.Regions[i]
			if seen[r.Name] || !p.Layout.Coordinates(r.Name) {
				continue
			}
			seen[r.Name] = true
			if err := x.openRegion(r); err != nil {
				errs = append(errs, fmt.Errorf("region %s: %w", r.Name, err))
			}
		}
	}
	if x.start != nil {
		x.serveHome()
		x.startCallers()
	}
	return errors.Join(errs...)
}

// openRegion opens a region that coordinates, or moves to its new address. It is called with mu held.
func (x *federations) openRegion(r *federation.LayoutRegion) error {
	opened := slices.ContainsFunc(x.authorities, func(a authority) bool { return a.name == r.Name })
	switch moving := x.regions[r.Name]; {
	case r.Name == x.region:
		if !opened {
			x.authorities = append(x.authorities, authority{r.Name, x.served})
		}
	case !opened:
		c, err := x.dialCoordinator(keywardScheme + "://" + r.Address)
		if err != nil {
			return err
		}
		if x.regions == nil {
			x.regions = map[string]*movingCoordinator{}
		}
		x.regions[r.Name] = newMovingCoordinator(r.Address, c)
		x.authorities = append(x.authorities, authority{r.Name, x.regions[r.Name]})
	case moving.address != r.Address:
		c, err := x.dialCoordinator(keywardScheme + "://" + r.Address)
		if err != nil {
			return err
		}
		moving.move(r.Address, c)
	}
	return nil
}

// serveHome creates the metrics of the coordinator that this cluster is, when it becomes one. It is called with mu held.
func (x *federations) serveHome() {
	if x.served == nil || !x.lends() {
		return
	}
	m := x.served.measured.Load()
	if m == nil {
		m = &measuredStore{x.home, newCoordinatorMetrics(x.reg)}
		m.metrics.up.Set(1)
	}
	for _, region := range x.layouts.now().Regions() {
		m.metrics.create(region)
	}
	x.served.measured.Store(m)
}

// startFederationServer serves other regions, if --federation-listen is set.
func (m *sidecar) startFederationServer() error {
	f := &m.federation
	if m.Flags.FederationListen == "" {
		if f.layouts != nil && f.lends() && len(f.layouts.now().Regions()) > 1 {
			m.Log.Info("this cluster coordinates, and this member does not serve other regions: --federation-listen is not set")
		}
		return nil
	}
	if f.home == nil {
		return fmt.Errorf("--federation-listen: %s has no regions", m.Flags.Federation)
	}
	if !f.lends() {
		m.Log.Info("this cluster does not coordinate by the layouts so far", "region", m.Flags.Region)
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
		Coordinator: f.served, Schedule: f.layouts.now, TLS: secure,
		Guard: m.security.guards.Guard("coordinator"), Logger: m.Log,
		OnConnection: func(region string, change int) {
			f.served.connected(region, change)
		},
	})
	m.Log.Info("listening", "listener", "coordinator", "address", ln.Addr().String())
	return nil
}

// stopFederationServer completes the calls of regions in progress.
func (x *federations) stopFederationServer(ctx context.Context) {
	if x.server != nil {
		_ = x.server.Shutdown(ctx)
	}
}
