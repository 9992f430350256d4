package rls

import (
	"context"
	"crypto/tls"
	"math"
	"net"
	"runtime"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec of all other services
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	grpctap "google.golang.org/grpc/tap"

	"github.com/keyward/keyward/envoy/internal/names"
	"github.com/keyward/keyward/internal/connguard"
)

// attemptTimeoutHeader is how long Envoy waits for this try, in milliseconds. Its grpc-timeout is that of all tries together, also on
// the second one: whoever went by that would answer for a silent owner when nobody waits any more.
const attemptTimeoutHeader = "x-envoy-expected-rq-timeout-ms"

// maxMessage is how large a message gRPC takes in, in bytes. Up to here what exceeds the Bounds is answered OVER_LIMIT;
// beyond, gRPC itself fails the call with RESOURCE_EXHAUSTED before anything of ours sees it. Envoy takes at most 8 MiB
// of headers (60 KiB unless told otherwise), so only a route that repeats such headers over many descriptors gets there.
const maxMessage = 16 << 20

// maxStreams is how many calls may be open on one connection. Envoy queues what exceeds it, and its own circuit breakers let
// through 1024 unless told otherwise.
const maxStreams = 1 << 12

// maxHeaders bounds the headers of a call, in bytes once unpacked and with 32 more for each. Envoy takes 60 KiB of headers
// from a caller unless told otherwise, and one of them may be the key.
const maxHeaders = 128 << 10

const (
	readBuffer   = 4 << 10  // bytes that are read at once of a connection
	streamWindow = 64 << 10 // bytes that a client may send of a call before they are read
	connWindow   = 1 << 20  // the same for all calls of a connection

	handshakeTime  = 5 * time.Second  // for TLS and HTTP/2's preface and settings
	messageTimeout = 30 * time.Second // for a call's message to arrive
)

// grpcOptions make a gRPC server for the service.
type grpcOptions struct {
	TLS                *tls.Config      // nil for plaintext
	Guard              *connguard.Guard // counts what is refused before it is a question; nil for none
	ConnectionAge      time.Duration    // GRPC_MAX_CONNECTION_AGE; 0 for ever
	ConnectionAgeGrace time.Duration    // GRPC_MAX_CONNECTION_AGE_GRACE; 0 for ever
	Refunds            bool             // callers may give hits back
	LocalRefunds       bool             // callers on a loopback address may
}

// newGRPC makes a gRPC server that answers for s, and for whatever is registered on it beside.
func (s *Service) newGRPC(o grpcOptions) *grpc.Server {
	opts := []grpc.ServerOption{
		grpc.ForceServerCodecV2(codec{s, encoding.GetCodecV2("proto")}),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.ConnectionTimeout(handshakeTime),
		grpc.Creds(o.Guard.Credentials(o.TLS, true)),
		grpc.InTapHandle(limitMessageTime),
		// What a connection keeps that asks nothing is bounded by these. Windows that are told do not grow to 16 MiB by themselves.
		grpc.ReadBufferSize(readBuffer), grpc.InitialWindowSize(streamWindow), grpc.InitialConnWindowSize(connWindow),
		// Measured: a fifth less CPU a call, for stacks that have grown stay grown. Calls beyond them get a goroutine each.
		grpc.NumStreamWorkers(uint32(max(32, 8*runtime.GOMAXPROCS(0)))),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: o.ConnectionAge, MaxConnectionAgeGrace: o.ConnectionAgeGrace,
		}),
		// A client that pings often must not be cut off: its calls in flight would be let through uncounted.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 100 * time.Millisecond, PermitWithoutStream: true}),
	}
	g := grpc.NewServer(opts...)
	g.RegisterService(&grpc.ServiceDesc{
		ServiceName: "envoy.service.ratelimit.v3.RateLimitService",
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "ShouldRateLimit", Handler: o.shouldRateLimit}},
		Metadata:    "envoy/service/ratelimit/v3/rls.proto",
	}, s)
	return g
}

// limitMessageTime ends a call whose message does not come. Most calls have a deadline of their own; without, nothing would.
func limitMessageTime(ctx context.Context, i *grpctap.Info) (context.Context, error) {
	if d, ok := ctx.Deadline(); i.FullMethodName != method || ok && time.Until(d) <= messageTimeout {
		return ctx, nil
	}
	ctx, cancel := context.WithCancel(ctx) // a deadline would be taken for the caller's
	t := time.AfterFunc(messageTimeout, cancel)
	context.AfterFunc(ctx, func() { t.Stop() })
	return ctx, nil
}

// method is the full name of the one call.
const method = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"

// shouldRateLimit answers one call. The Call it returns goes back to the pool when the codec has written it.
func (o grpcOptions) shouldRateLimit(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	s := srv.(*Service)
	begin := time.Now()
	c := s.NewCall()
	if err := decode(c); err != nil {
		s.Release(c)
		o.Guard.Refuse("question_" + strings.ToLower(status.Code(err).String()))
		return nil, err
	}
	var addr net.Addr
	if p, ok := peer.FromContext(ctx); ok {
		addr = p.Addr
	}
	o.dropRefunds(&c.Request, addr)
	from := Caller{Key: first(metadata.ValueFromIncomingContext(ctx, names.KeyHeader)), ReceivedAt: begin}
	if d, ok := ctx.Deadline(); ok {
		from.Timeout = max(d.Sub(begin), 1)
	}
	if tries := metadata.ValueFromIncomingContext(ctx, attemptTimeoutHeader); len(tries) > 0 {
		from.Timeout = minTimeout(from.Timeout, tries[0])
	}
	if s.tracer != nil {
		s.startRecording(c, func(name string) string { return first(metadata.ValueFromIncomingContext(ctx, name)) })
	}
	s.Decide(c, from)
	s.endRecording(c)
	s.counts.served(c.duration)
	if err := c.Err; err != nil {
		s.Release(c)
		return nil, err // any error that is no gRPC status has the code UNKNOWN
	}
	return c, nil
}

func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

// minTimeout is the lesser of a timeout, 0 for none, and a number of milliseconds in text.
func minTimeout(timeout time.Duration, millis string) time.Duration {
	n, err := strconv.ParseInt(millis, 10, 32)
	if err != nil || n <= 0 {
		return timeout
	}
	if d := time.Duration(n) * time.Millisecond; timeout <= 0 || d < timeout {
		return d
	}
	return timeout
}

// codec decodes and encodes Calls by hand and leaves all other messages to rest.
type codec struct {
	service *Service
	rest    encoding.CodecV2
}

func (codec) Name() string { return "proto" }

func (k codec) Unmarshal(data mem.BufferSlice, v any) error {
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

// message is an encoded response in one allocation, as long as it is of the usual size.
type message struct {
	slice [1]mem.Buffer
	bytes [112]byte
}

func (k codec) Marshal(v any) (mem.BufferSlice, error) {
	c, ok := v.(*Call)
	if !ok {
		return k.rest.Marshal(v)
	}
	m := new(message)
	m.slice[0] = mem.SliceBuffer(c.Response.Append(m.bytes[:0]))
	k.service.Release(c)
	return m.slice[:], nil
}
