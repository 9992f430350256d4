// Package mirror answers with one rate limit service's decisions and reports how another one's differ. It passes every
// call on, byte for byte, to the service that answers, and at the same time to the other one, for which the caller
// never waits. It compares each pair of responses, and classifies differences ([Class]).
package mirror

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
)

const (
	serviceName = "envoy.service.ratelimit.v3.RateLimitService"
	method      = "/" + serviceName + "/ShouldRateLimit"
	maxMessage  = 16 << 20 // bytes; the maximum size that Keyward accepts
)

// Options configure a Mirror.
type Options struct {
	Old, New       string                           // host:port of each service
	OldTLS, NewTLS credentials.TransportCredentials // nil for plaintext
	AnswerNew      bool                             // answer with the new service's decisions; if it fails, the old one's
	Timeout        time.Duration                    // of calls to the service that does not answer the caller; default 1 s
	InFlight       int                              // maximum concurrent calls to it; default 1024. Further calls are not mirrored
	Log            io.Writer                        // gets a JSON line for each difference; nil for none
	LogRate        float64                          // maximum lines per second; default 10
	Registerer     prometheus.Registerer            // of the keyward_mirror_* metrics; nil for none
}

// Mirror forwards calls to two rate limit services. It is safe for concurrent use.
type Mirror struct {
	o        Options
	old, new *grpc.ClientConn
	report   *report
	slots    chan struct{} // one for each mirrored call
	open     sync.WaitGroup

	// Hits of the calls that were started and ended. The difference is in flight.
	began, ended atomic.Uint64
	missed       atomic.Int64 // when a call last reached only one service, in Unix nanoseconds
	started      int64
}

// New returns a Mirror, which connects immediately, so that the first call does not wait. Close closes it.
func New(o Options) (*Mirror, error) {
	if o.Timeout <= 0 {
		o.Timeout = time.Second
	}
	if o.InFlight <= 0 {
		o.InFlight = 1024
	}
	m := &Mirror{o: o, report: newReport(o), slots: make(chan struct{}, o.InFlight), started: time.Now().UnixNano()}
	var err1, err2 error
	m.old, err1 = dial(o.Old, o.OldTLS)
	m.new, err2 = dial(o.New, o.NewTLS)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	m.old.Connect()
	m.new.Connect()
	return m, nil
}

func dial(addr string, creds credentials.TransportCredentials) (*grpc.ClientConn, error) {
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	retry := backoff.DefaultConfig
	retry.BaseDelay, retry.MaxDelay = 100*time.Millisecond, 2*time.Second // reconnect soon after a service has restarted
	return grpc.NewClient(addr, grpc.WithTransportCredentials(creds), grpc.WithDisableServiceConfig(),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: 2 * time.Second}),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(codec{}), grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)))
}

// Close waits for the calls that are being compared, and closes the connections.
func (m *Mirror) Close() error {
	m.open.Wait()
	return errors.Join(m.old.Close(), m.new.Close())
}

// NewServer returns a gRPC server that mirrors rate limit calls, and forwards every other call, such as health checks,
// to the service that answers. creds may be nil.
func (m *Mirror) NewServer(creds credentials.TransportCredentials) *grpc.Server {
	opts := []grpc.ServerOption{
		grpc.ForceServerCodecV2(codec{}), grpc.UnknownServiceHandler(m.pass), grpc.MaxRecvMsgSize(maxMessage),
	}
	if creds != nil {
		opts = append(opts, grpc.Creds(creds))
	}
	g := grpc.NewServer(opts...)
	g.RegisterService(&grpc.ServiceDesc{
		ServiceName: serviceName,
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "ShouldRateLimit", Handler: shouldRateLimit}},
	}, m)
	return g
}

func shouldRateLimit(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	in := new(frame)
	if err := decode(in); err != nil {
		return nil, err
	}
	return srv.(*Mirror).answer(ctx, in)
}

// services returns the service that answers, and the other one.
func (m *Mirror) services() (front, back *grpc.ClientConn) {
	if m.o.AnswerNew {
		return m.new, m.old
	}
	return m.old, m.new
}

// outcome is the result of a call to one service.
type outcome struct {
	out             *frame
	err             error
	header, trailer metadata.MD
	took            time.Duration
}

func invoke(ctx context.Context, c *grpc.ClientConn, in *frame) outcome {
	o := outcome{out: new(frame)}
	begin := time.Now()
	o.err = c.Invoke(ctx, method, in, o.out, grpc.Header(&o.header), grpc.Trailer(&o.trailer))
	o.took = time.Since(begin)
	return o
}

// answer calls both services, and returns the response of the one that answers.
func (m *Mirror) answer(ctx context.Context, in *frame) (*frame, error) {
	c := newCall(in.data)
	md, _ := metadata.FromIncomingContext(ctx)
	ctx = metadata.NewOutgoingContext(ctx, md)
	front, back := m.services()
	before := m.begin(c)
	shadow, answered := m.shadow(back, md, c, before)
	o := invoke(ctx, front, in)
	m.report.answered(m.o.AnswerNew, &o)
	if answered != nil {
		answered <- o
	} else {
		m.end(c)
	}
	if o.err != nil && m.o.AnswerNew {
		o = m.fallBack(ctx, in, shadow, o)
	}
	_ = grpc.SetHeader(ctx, o.header) // it fails only if the call has ended
	_ = grpc.SetTrailer(ctx, o.trailer)
	return o.out, o.err
}

// fallBack returns the response of the old service after a failed call to the new one. The old one was called at the
// same time, or is called now.
func (m *Mirror) fallBack(ctx context.Context, in *frame, shadow <-chan outcome, failed outcome) outcome {
	m.report.metrics.fellBack.Inc()
	if shadow == nil {
		return invoke(ctx, m.old, in)
	}
	select {
	case o := <-shadow:
		return o
	case <-ctx.Done():
		return failed
	}
}

// shadow calls the service that does not answer, and compares the responses. The first channel returns its outcome, the
// second takes the outcome of the other service. Both are nil if the call is not mirrored. before is the result of
// begin.
func (m *Mirror) shadow(conn *grpc.ClientConn, md metadata.MD, c *call, before uint64) (<-chan outcome, chan<- outcome) {
	select {
	case m.slots <- struct{}{}:
	default:
		m.report.notCompared(tooMany)
		m.miss()
		return nil, nil
	}
	shadow, answered := make(chan outcome, 1), make(chan outcome, 1)
	m.open.Go(func() {
		defer func() { <-m.slots }()
		ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(context.Background(), md), m.o.Timeout)
		defer cancel()
		back := invoke(ctx, conn, &frame{c.message})
		m.report.answered(!m.o.AnswerNew, &back)
		shadow <- back
		front := <-answered
		// Read this before the call ends: it covers all calls that were in flight with it at any time.
		c.concurrent = m.began.Load() - before
		c.end = time.Now().UnixNano()
		m.end(c)
		if m.o.AnswerNew {
			front, back = back, front
		}
		m.compare(c, &front, &back)
	})
	return shadow, answered
}

// begin counts the hits of a call that starts. It returns those hits plus the hits of the calls that ended before.
func (m *Mirror) begin(c *call) uint64 {
	ended := m.ended.Load()
	m.began.Add(c.hits)
	return ended + c.hits
}

// end counts the hits of a call that has ended.
func (m *Mirror) end(c *call) { m.ended.Add(c.hits) }

// miss records that the counts of the two services differ from now on, until the windows end.
func (m *Mirror) miss() { m.missed.Store(time.Now().UnixNano()) }

func (m *Mirror) compare(c *call, old, new *outcome) {
	switch {
	case old.err != nil && new.err != nil:
		m.report.notCompared(bothFailed)
		m.miss()
	case old.err != nil && c.known != "":
		m.report.difference(c, finding{known, []string{"error"}}, old, new)
	case old.err != nil:
		m.report.notCompared(oldFailed)
		m.miss()
	case new.err != nil:
		m.report.notCompared(newFailed)
		m.miss()
	default:
		a, b := decode(old.out.data), decode(new.out.data)
		m.report.counted(a, b)
		dropAdditions(a, b)
		fields, at := differ(a, b)
		if len(fields) == 0 {
			m.report.agreed()
			return
		}
		m.report.difference(c, finding{m.class(c, a, b, at), fields}, old, new)
	}
}

// pass forwards any other call to the service that answers.
func (m *Mirror) pass(_ any, in grpc.ServerStream) error {
	name, _ := grpc.MethodFromServerStream(in)
	ctx, cancel := context.WithCancel(in.Context())
	defer cancel()
	md, _ := metadata.FromIncomingContext(ctx)
	front, _ := m.services()
	out, err := front.NewStream(metadata.NewOutgoingContext(ctx, md),
		&grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, name)
	if err != nil {
		return err
	}
	go func() {
		if copyFrames(in.RecvMsg, out.SendMsg) != nil {
			cancel()
			return
		}
		_ = out.CloseSend() // it always returns nil
	}()
	if header, err := out.Header(); err == nil {
		_ = in.SetHeader(header) // nothing was sent yet
	}
	err = copyFrames(out.RecvMsg, in.SendMsg)
	in.SetTrailer(out.Trailer())
	return err
}

// copyFrames copies frames until the stream ends. It returns nil at the end of the stream.
func copyFrames(receive, send func(any) error) error {
	for {
		f := new(frame)
		if err := receive(f); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := send(f); err != nil {
			return err
		}
	}
}

// Healthy returns nil if a service whose decisions callers may get reports that it is healthy.
func (m *Mirror) Healthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.o.Timeout)
	defer cancel()
	err := healthy(ctx, m.old)
	if err != nil && m.o.AnswerNew {
		err = healthy(ctx, m.new)
	}
	return err
}

// healthName is the name in the health checks of envoyproxy/ratelimit and Keyward.
const healthName = "ratelimit"

func healthy(ctx context.Context, c *grpc.ClientConn) error {
	in, out := encodeHealth(&healthpb.HealthCheckRequest{Service: healthName}), new(frame)
	if err := c.Invoke(ctx, healthpb.Health_Check_FullMethodName, in, out); err != nil {
		return err
	}
	return readHealth(out)
}
