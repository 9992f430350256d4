package app

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/federation/remote"
	"github.com/keyward/keyward/internal/certs"
)

// keywardScheme begins the URLs of coordinators that cmd/coordinator serves.
const keywardScheme = "keyward"

// dialCoordinator returns a client of the coordinator at keyward://host:port. It presents the certificate of
// --tls-cert, and uses no TLS only with --insecure.
func (x *federations) dialCoordinator(at string) (*remote.CoordinatorClient, error) {
	s := x.security
	u, err := url.Parse(at)
	if err != nil || u.Hostname() == "" || u.User != nil || u.RawQuery+u.Fragment+strings.Trim(u.Path, "/") != "" {
		return nil, errors.New("want keyward://host:port, and nothing else")
	}
	o := remote.DialOptions{
		Address: net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), remote.Port)),
		Region:  x.region, Epoch: x.layouts.epoch, Logger: s.log,
	}
	switch {
	case !s.flags.TLS.Empty():
		o.TLS, err = certs.Client(s.flags.TLS, certs.ClientOptions{
			ServerName: u.Hostname(), NextProtos: []string{remote.ALPN}, Reload: certs.Reload{Logger: s.log},
		})
		if err != nil {
			return nil, err
		}
	case !s.flags.Insecure:
		return nil, errors.New("needs --tls-cert, --tls-key and --tls-ca, or --insecure on a laptop")
	}
	return remote.Dial(o), nil
}

// movingCoordinator calls the coordinator of another region, whose address changes with its layouts.
type movingCoordinator struct {
	address string // used by the caller of move alone
	current atomic.Pointer[remote.CoordinatorClient]
}

func newMovingCoordinator(address string, c *remote.CoordinatorClient) *movingCoordinator {
	m := &movingCoordinator{address: address}
	m.current.Store(c)
	return m
}

// move replaces the client by one of another address. Calls in progress end before the former client is closed.
func (m *movingCoordinator) move(address string, c *remote.CoordinatorClient) {
	m.address = address
	former := m.current.Swap(c)
	time.AfterFunc(2*poolCallTimeout, former.Close)
}

// Lease implements federation.Coordinator.
func (m *movingCoordinator) Lease(ctx context.Context, region string, rs []federation.PoolRequest) ([]federation.PoolGrant, error) {
	return m.current.Load().Lease(ctx, region, rs)
}

// Reconcile implements federation.Coordinator.
func (m *movingCoordinator) Reconcile(ctx context.Context, region string, rs []federation.PoolRequest) error {
	return m.current.Load().Reconcile(ctx, region, rs)
}

// Healthy implements federation.Coordinator.
func (m *movingCoordinator) Healthy(ctx context.Context) error { return m.current.Load().Healthy(ctx) }
