package mirror

import (
	"context"
	"net"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/stats"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

const rules = `domain: edge
descriptors:
  - key: api_key
    rate_limit: {unit: year, requests_per_unit: 20}
`

// lone decides like a cluster of one member, at a fixed time.
type lone struct{ node *owner.Node }

var clock = time.Now().UnixNano()

func (l lone) Decide(_ policy.Deadline, stop bool, qs []owner.Request, as []owner.Result) {
	l.node.DecideAll(clock, stop, qs, as)
}

// keyward serves rules on loopback.
func keyward(t testing.TB, yaml string, additions ...rls.Additions) string {
	t.Helper()
	parsed, err := config.Load([]config.File{{Name: "rules.yaml", Content: []byte(yaml)}}, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	n := owner.New(owner.Options{Self: "a", NoHot: true})
	n.Tick(clock)
	n.SetMembership(clock, &membership.View{
		Self: "a", Ring: ring.New([]ring.Member{{ID: "a"}}), NRef: 1, Joined: true,
	})
	store := stats.New(stats.Options{})
	s := rls.New(rls.Options{Decider: lone{n}, Stats: store, Additions: append(additions, rls.Additions{})[0]})
	s.SetRules(parsed, rls.Switches{Headers: true})
	server, err := rls.Start(rls.StartOptions{
		Service: s, Health: rls.NewHealthServer(), Listeners: []rls.Listener{{Address: "127.0.0.1:0"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Stop(context.Background()) })
	return server.Addrs[0].String()
}

func serve(t testing.TB, g *grpc.Server) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = g.Serve(ln) }()
	t.Cleanup(g.Stop)
	return ln.Addr().String()
}

// odd is a service with the behavior of f.
func odd(t *testing.T, f func(ctx context.Context, in []byte) ([]byte, error)) string {
	g := grpc.NewServer(grpc.ForceServerCodecV2(codec{}), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		in := new(frame)
		if err := s.RecvMsg(in); err != nil {
			return err
		}
		out, err := f(s.Context(), in.data)
		if err != nil {
			return err
		}
		return s.SendMsg(&frame{out})
	}))
	return serve(t, g)
}

// strict is a gRPC server like that of envoyproxy/ratelimit, with the standard protobuf codec.
type strict struct {
	rlsv3.UnimplementedRateLimitServiceServer
}

func (strict) ShouldRateLimit(context.Context, *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	return &rlsv3.RateLimitResponse{OverallCode: rlsv3.RateLimitResponse_OK}, nil
}

// start starts a mirror and connects to it.
func start(t testing.TB, o Options) (*Mirror, *grpc.ClientConn) {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = time.Minute // so that a busy machine has no effect
	}
	m, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	g := m.NewServer(nil)
	addr := serve(t, g)
	c, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		g.Stop()
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m, c
}

func about(key string) *rlsv3.RateLimitRequest {
	return &rlsv3.RateLimitRequest{Domain: "edge", Descriptors: []*ratelimitv3.RateLimitDescriptor{{
		Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "api_key", Value: key}},
	}}}
}

func askFor(t *testing.T, c *grpc.ClientConn, key string) (*rlsv3.RateLimitResponse, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return rlsv3.NewRateLimitServiceClient(c).ShouldRateLimit(ctx, about(key))
}

// aged moves the start of the mirror to the past, so that no window began before it.
func aged(m *Mirror) { m.started = 0 }
