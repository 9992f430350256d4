package rls

import (
	"context"
	"math"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip"
	_ "google.golang.org/grpc/encoding/proto" // the codec of other services
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	grpctap "google.golang.org/grpc/tap"

	"github.com/keyward/keyward/envoy/internal/names"
)

// newOracle returns the oracle of the inline server: a grpc-go server with the same limits that serves s, and the
// health of h unless h is nil.
func newOracle(s *Service, o grpcOptions, h *HealthServer) *grpc.Server {
	g := grpc.NewServer(
		grpc.ForceServerCodecV2(callCodec{s, encoding.GetCodecV2("proto")}),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.InitialWindowSize(4<<20), // for clients that do not wait for window updates, as the inline server has
		grpc.InitialConnWindowSize(4<<20),
		grpc.ConnectionTimeout(handshakeTime),
		grpc.Creds(o.Guard.Credentials(o.TLS)),
		grpc.InTapHandle(limitMessageTime),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: o.ConnectionAge, MaxConnectionAgeGrace: o.ConnectionAgeGrace,
		}),
		// A client that pings often must stay connected: its calls in flight would be let through uncounted.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 100 * time.Millisecond,
			PermitWithoutStream: true}),
	)
	g.RegisterService(&grpc.ServiceDesc{
		ServiceName: "envoy.service.ratelimit.v3.RateLimitService",
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "ShouldRateLimit", Handler: oracleHandler{o}.shouldRateLimit}},
		Metadata:    "envoy/service/ratelimit/v3/rls.proto",
	}, s)
	if h != nil {
		healthpb.RegisterHealthServer(g, countedHealth{h.grpc, s.store})
	}
	return g
}

// oracle is a running grpc-go server.
type oracle struct{ *grpc.Server }

// Shutdown waits for the calls in flight until ctx is done, then cuts them off.
func (g oracle) Shutdown(ctx context.Context) {
	cut := context.AfterFunc(ctx, g.Stop)
	defer cut()
	g.GracefulStop()
}

// startOracle is Start with grpc-go for the gRPC listeners.
func startOracle(o StartOptions) (*running, error) {
	grpcOnly, rest := StartOptions{Listeners: o.Listeners}, o
	rest.Listeners = nil
	s, err := Start(rest)
	if err != nil {
		return nil, err
	}
	listeners, err := grpcOnly.listen()
	if err != nil {
		s.Stop(context.Background())
		return nil, err
	}
	var all running
	var servers []oracle
	var done sync.WaitGroup
	for i, d := range o.Listeners {
		opts, health := o.grpcOptions(d), o.Health
		if d.NoHealth {
			health = nil
		}
		g := newOracle(o.Service, opts, health)
		servers = append(servers, oracle{g})
		all.Addrs = append(all.Addrs, listeners[i].Addr())
		done.Go(func() { _ = g.Serve(opts.Guard.Listen(listeners[i], maxConnections)) })
	}
	all.Addrs = append(all.Addrs, s.Addrs...)
	all.Stop = func(ctx context.Context) {
		for _, g := range servers {
			g.Shutdown(ctx)
		}
		s.Stop(ctx)
		done.Wait()
	}
	return &all, nil
}

// limitMessageTime ends a call whose message does not arrive. Calls without a deadline would wait forever.
func limitMessageTime(ctx context.Context, i *grpctap.Info) (context.Context, error) {
	if d, ok := ctx.Deadline(); i.FullMethodName != method || ok && time.Until(d) <= messageTimeout {
		return ctx, nil
	}
	ctx, cancel := context.WithCancel(ctx) // a deadline would be mistaken for the caller's
	t := time.AfterFunc(messageTimeout, cancel)
	context.AfterFunc(ctx, func() { t.Stop() })
	return ctx, nil
}

// oracleHandler answers the calls of a listener.
type oracleHandler struct{ options grpcOptions }

// shouldRateLimit answers one call. The codec returns the Call to the pool after writing it.
func (o oracleHandler) shouldRateLimit(srv any, ctx context.Context, decode func(any) error,
	_ grpc.UnaryServerInterceptor) (any, error) {
	s := srv.(*Service)
	begin := time.Now()
	c := s.NewCall()
	if err := decode(c); err != nil {
		s.Release(c)
		o.options.Guard.Refuse("question_" + strings.ToLower(status.Code(err).String()))
		return nil, err
	}
	var addr net.Addr
	if p, ok := peer.FromContext(ctx); ok {
		addr = p.Addr
	}
	o.options.dropRefunds(&c.Request, addr)
	from := Caller{Key: firstValue(metadata.ValueFromIncomingContext(ctx, names.KeyHeader)), ReceivedAt: begin}
	if d, ok := ctx.Deadline(); ok {
		from.Timeout = max(d.Sub(begin), 1)
	}
	if tries := metadata.ValueFromIncomingContext(ctx, attemptTimeoutHeader); len(tries) > 0 {
		from.Timeout = minTimeout(from.Timeout, tries[0])
	}
	if s.tracer != nil {
		s.startRecording(c, func(name string) string { return firstValue(metadata.ValueFromIncomingContext(ctx, name)) })
	}
	s.Decide(c, from)
	s.endRecording(c)
	s.counts.served(c.duration)
	if err := c.Err; err != nil {
		s.Release(c)
		return nil, err // errors without a gRPC status have the code UNKNOWN
	}
	return c, nil
}

func firstValue(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

// callCodec encodes and decodes Calls by hand, and leaves all other messages to rest.
type callCodec struct {
	service *Service
	rest    encoding.CodecV2
}

func (callCodec) Name() string { return "proto" }

func (k callCodec) Unmarshal(data mem.BufferSlice, v any) error {
	c, ok := v.(*Call)
	if !ok {
		return k.rest.Unmarshal(data, v)
	}
	n := data.Len()
	if cap(c.wire) < n {
		c.wire = make([]byte, n)
	}
	c.wire = c.wire[:n]
	data.CopyTo(c.wire)
	return c.Request.Decode(c.wire, k.service.limits)
}

// message is an encoded response in one allocation, if it has the usual size.
type message struct {
	slice [1]mem.Buffer
	bytes [112]byte
}

func (k callCodec) Marshal(v any) (mem.BufferSlice, error) {
	c, ok := v.(*Call)
	if !ok {
		return k.rest.Marshal(v)
	}
	m := new(message)
	m.slice[0] = mem.SliceBuffer(c.Response.Append(m.bytes[:0]))
	k.service.Release(c)
	return m.slice[:], nil
}
