package source

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	xds "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
)

// control is a go-control-plane server on a real socket.
type control struct {
	t     *testing.T
	cache cache.SnapshotCache
	creds credentials.TransportCredentials
	addr  string
	stop  func()

	mu       sync.Mutex
	requests []*discovery.DiscoveryRequest
	headers  metadata.MD
}

func newControl(t *testing.T, creds credentials.TransportCredentials) *control {
	t.Helper()
	c := &control{t: t, cache: cache.NewSnapshotCache(true, cache.IDHash{}, nil), creds: creds, addr: "localhost:0", stop: func() {}}
	c.start()
	t.Cleanup(func() { c.stop() })
	return c
}

// start listens, at the same address after a restart.
func (c *control) start() {
	c.t.Helper()
	l, err := net.Listen("tcp", c.addr)
	if err != nil {
		c.t.Fatal(err)
	}
	if strings.HasSuffix(c.addr, ":0") {
		_, port, _ := net.SplitHostPort(l.Addr().String())
		c.addr = "localhost:" + port
	}
	ctx, cancel := context.WithCancel(context.Background())
	g := grpc.NewServer(grpc.Creds(c.creds))
	discovery.RegisterAggregatedDiscoveryServiceServer(g, xds.NewServer(ctx, c.cache, c))
	done := make(chan struct{})
	go func() { defer close(done); g.Serve(l) }()
	c.stop = func() { cancel(); g.Stop(); <-done }
}

func (c *control) set(version string, resources ...*rlsconf.RateLimitConfig) {
	c.t.Helper()
	list := make([]types.Resource, len(resources))
	for i, r := range resources {
		list[i] = r
	}
	s, err := cache.NewSnapshot(version, map[resource.Type][]types.Resource{resource.RateLimitConfigType: list})
	if err == nil {
		err = c.cache.SetSnapshot(context.Background(), "node", s)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// said waits for a request that fits, and returns it.
func (c *control) said(what string, fits func(*discovery.DiscoveryRequest) bool) *discovery.DiscoveryRequest {
	c.t.Helper()
	deadline, look := time.After(20*time.Second), time.NewTicker(time.Millisecond)
	defer look.Stop()
	for late := false; !late; {
		c.mu.Lock()
		i := slices.IndexFunc(c.requests, fits)
		var r *discovery.DiscoveryRequest
		if i >= 0 {
			r = c.requests[i]
		}
		c.mu.Unlock()
		if r != nil {
			return r
		}
		select {
		case <-look.C:
		case <-deadline:
			late = true
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t.Fatalf("%s: not among %v", what, c.requests)
	return nil
}

func (c *control) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests = nil
}

func (c *control) acked(version string) {
	c.t.Helper()
	c.said("acknowledgement of "+version, func(r *discovery.DiscoveryRequest) bool {
		return r.GetVersionInfo() == version && r.GetErrorDetail() == nil && r.GetResponseNonce() != ""
	})
}

func (c *control) OnStreamOpen(ctx context.Context, _ int64, _ string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.headers, _ = metadata.FromIncomingContext(ctx)
	return nil
}

func (c *control) OnStreamRequest(_ int64, r *discovery.DiscoveryRequest) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests = append(c.requests, r)
	return nil
}

func (c *control) OnStreamClosed(int64, *core.Node)                                   {}
func (c *control) OnDeltaStreamOpen(context.Context, int64, string) error             { return nil }
func (c *control) OnDeltaStreamClosed(int64, *core.Node)                              {}
func (c *control) OnStreamDeltaRequest(int64, *discovery.DeltaDiscoveryRequest) error { return nil }
func (c *control) OnFetchRequest(context.Context, *discovery.DiscoveryRequest) error  { return nil }
func (c *control) OnFetchResponse(*discovery.DiscoveryRequest, *discovery.DiscoveryResponse) {
}
func (c *control) OnStreamResponse(context.Context, int64, *discovery.DiscoveryRequest, *discovery.DiscoveryResponse) {
}
func (c *control) OnStreamDeltaResponse(int64, *discovery.DeltaDiscoveryRequest, *discovery.DeltaDiscoveryResponse) {
}

// quick returns options for the server that retry without long waits.
func (c *control) quick() XDSOptions {
	return XDSOptions{
		Server: c.addr, NodeID: "node", ConnectRetry: 5 * time.Millisecond,
		Backoff: Backoff{Initial: 5 * time.Millisecond, Max: 20 * time.Millisecond},
	}
}
