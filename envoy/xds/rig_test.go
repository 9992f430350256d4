package xds

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/keyward/keyward/ring"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a server on a real socket.
type rig struct {
	*DiscoveryServer
	reg  *prometheus.Registry
	log  *logBuffer
	conn *grpc.ClientConn
}

// logBuffer is a log shared by the test and the server.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newRig(t testing.TB) *rig {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &rig{reg: prometheus.NewRegistry(), log: &logBuffer{}}
	r.DiscoveryServer = New(ctx, Options{Logger: slog.New(slog.NewTextHandler(r.log, nil)), Registerer: r.reg})
	g := grpc.NewServer()
	r.Register(g)
	served := make(chan error, 1)
	go func() { served <- g.Serve(ln) }()
	if r.conn, err = grpc.NewClient("passthrough:///"+ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.conn.Close()
		cancel()
		g.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) set(t testing.TB, s ServedState) {
	t.Helper()
	if err := r.Set(s); err != nil {
		t.Fatal(err)
	}
}

// patience is a timeout for everything; no test asserts it.
const patience = 2 * time.Minute

// sotw is a raw aggregated stream, state of the world.
type sotw struct {
	t      testing.TB
	stream discovery.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	last   map[string]*discovery.DiscoveryResponse // by type
	going  map[string]string                       // version that the client uses
}

func (r *rig) sotw(t testing.TB, node string) *sotw {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	s, err := discovery.NewAggregatedDiscoveryServiceClient(r.conn).StreamAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	c := &sotw{t: t, stream: s, last: map[string]*discovery.DiscoveryResponse{}, going: map[string]string{}}
	c.send(&discovery.DiscoveryRequest{Node: &core.Node{Id: node}, TypeUrl: "type.googleapis.com/of.nothing.served"})
	return c
}

func (c *sotw) send(q *discovery.DiscoveryRequest) {
	c.t.Helper()
	if err := c.stream.Send(q); err != nil {
		c.t.Fatal(err)
	}
}

// ask subscribes to names, or to all resources.
func (c *sotw) ask(typeURL string, names ...string) {
	c.t.Helper()
	c.send(&discovery.DiscoveryRequest{TypeUrl: typeURL, ResourceNames: names, VersionInfo: c.going[typeURL], ResponseNonce: c.last[typeURL].GetNonce()})
}

// next returns the next response of any type.
func (c *sotw) next() *discovery.DiscoveryResponse {
	c.t.Helper()
	r, err := c.stream.Recv()
	if err != nil {
		c.t.Fatal(err)
	}
	c.last[r.GetTypeUrl()] = r
	return r
}

func (c *sotw) ack(r *discovery.DiscoveryResponse, names ...string) {
	c.t.Helper()
	c.going[r.GetTypeUrl()] = r.GetVersionInfo()
	c.ask(r.GetTypeUrl(), names...)
}

func (c *sotw) nack(r *discovery.DiscoveryResponse, why string, names ...string) {
	c.t.Helper()
	c.send(&discovery.DiscoveryRequest{
		TypeUrl: r.GetTypeUrl(), ResourceNames: names, VersionInfo: c.going[r.GetTypeUrl()], ResponseNonce: r.GetNonce(), ErrorDetail: &status.Status{Message: why},
	})
}

// delta is a raw aggregated stream, incremental.
type delta struct {
	t      testing.TB
	stream discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	node   *core.Node
	cancel func()
}

func (r *rig) delta(t testing.TB, node string) *delta {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	s, err := discovery.NewAggregatedDiscoveryServiceClient(r.conn).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return &delta{t: t, stream: s, node: &core.Node{Id: node}, cancel: cancel}
}

func (c *delta) send(q *discovery.DeltaDiscoveryRequest) {
	c.t.Helper()
	q.Node, c.node = c.node, nil
	if err := c.stream.Send(q); err != nil {
		c.t.Fatal(err)
	}
}

func (c *delta) ask(typeURL string, names ...string) {
	c.t.Helper()
	c.send(&discovery.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: names})
}

func (c *delta) next() *discovery.DeltaDiscoveryResponse {
	c.t.Helper()
	r, err := c.stream.Recv()
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

func (c *delta) ack(r *discovery.DeltaDiscoveryResponse) {
	c.t.Helper()
	c.send(&discovery.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()})
}

func (c *delta) nack(r *discovery.DeltaDiscoveryResponse, why string) {
	c.t.Helper()
	c.send(&discovery.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce(), ErrorDetail: &status.Status{Message: why}})
}

// until polls for the effect of another goroutine.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline:
			t.Fatalf("never: %s", what)
		case <-tick.C:
		}
	}
}

func members(n int) []Endpoint {
	m := make([]Endpoint, n)
	for i := range m {
		id := "pod-" + string(rune('a'+i))
		host := net.IPv4(10, 0, 0, byte(i+1)).String()
		m[i] = Endpoint{ID: ring.ID(id), RLS: net.JoinHostPort(host, "8082"), Route: net.JoinHostPort(host, "10000")}
	}
	return m
}
