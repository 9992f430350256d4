package rls

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// running is a server that a test has started.
type running struct {
	Addrs []net.Addr // as Server.Addrs
	Stop  func(context.Context)
}

// start serves the rig on its own sockets until the test ends, and checks that no goroutine is left.
func (r *rig) start(t testing.TB, kind serverKind, h *HealthServer, change ...func(*StartOptions)) *running {
	t.Helper()
	before := goleak.IgnoreCurrent()
	o := StartOptions{Service: r.Service, Health: h, Listeners: []Listener{{Address: "127.0.0.1:0"}}, HTTP: "127.0.0.1:0", Debug: "127.0.0.1:0"}
	for _, c := range change {
		c(&o)
	}
	s, err := startKind(kind, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		s.Stop(ctx)
		goleak.VerifyNone(t, before)
	})
	return s
}

// serverKind chooses a gRPC server.
type serverKind int

const (
	inlineKind serverKind = iota
	oracleKind
)

func startKind(kind serverKind, o StartOptions) (*running, error) {
	if kind == oracleKind {
		return startOracle(o)
	}
	s, err := Start(o)
	if err != nil {
		return nil, err
	}
	return &running{s.Addrs, s.Stop}, nil
}

// eachServer runs a test against the inline server and its oracle.
func eachServer(t *testing.T, test func(*testing.T, serverKind)) {
	for kind, name := range map[serverKind]string{inlineKind: "inline", oracleKind: "grpc-go"} {
		t.Run(name, func(t *testing.T) { test(t, kind) })
	}
}

func dial(t testing.TB, target string, creds credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// opaque is a client codec that sends bytes unchanged.
type opaque struct{}

func (opaque) Name() string { return "proto" }
func (opaque) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}
func (opaque) Unmarshal(b mem.BufferSlice, v any) error {
	return proto.Unmarshal(b.Materialize(), v.(proto.Message))
}

// send calls ShouldRateLimit with an arbitrary message.
func send(ctx context.Context, conn *grpc.ClientConn, message []byte) (*pb.RateLimitResponse, error) {
	resp := new(pb.RateLimitResponse)
	err := conn.Invoke(ctx, pb.RateLimitService_ShouldRateLimit_FullMethodName, message, resp, grpc.ForceCodecV2(opaque{}))
	return resp, err
}
