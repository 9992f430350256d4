// Package mirror answers with one rate limit service's verdicts and reports where another one's differ: every question is
// passed on, byte for byte, to the service that answers ([Mirror.Register]); the other is asked at the same time, on its
// own, and whatever it does the caller never waits for it. Each pair of answers is compared and the difference, if there is
// one, put into a [Class].
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
	maxMessage  = 16 << 20 // bytes; what Keyward takes in
)

// Options make a Mirror.
type Options struct {
	Old, New       string                           // host:port of each service
	OldTLS, NewTLS credentials.TransportCredentials // nil: plaintext
	AnswerNew      bool                             // answer with the new service's verdicts; where it fails, with the old one's
	Timeout        time.Duration                    // for the service that nobody waits for; default 1 s
	InFlight       int                              // questions to it that may be open; default 1024. More are not mirrored
	Log            io.Writer                        // gets a JSON line for a difference; nil for none
	LogRate        float64                          // the most lines a second; default 10
	Registerer     prometheus.Registerer            // of the keyward_mirror_* metrics; nil registers none
}

// Mirror stands before two rate limit services. It is safe for concurrent use.
type Mirror struct {
	o        Options
	old, new *grpc.ClientConn
	report   *report
	slots    chan struct{} // one for each question that is mirrored
	open     sync.WaitGroup

	// Hits of questions that have begun, and that have ended: their difference is in flight.
	began, ended atomic.Uint64
	missed       atomic.Int64 // when a question last reached one service only, Unix nanoseconds
	started      int64
}

// New makes a Mirror, which begins to connect at once: the first question is not to wait for that. Close ends it.
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
	again := backoff.DefaultConfig
	again.BaseDelay, again.MaxDelay = 100*time.Millisecond, 2*time.Second // a service that is back is to be asked at once
	return grpc.NewClient(addr, grpc.WithTransportCredentials(creds), grpc.WithDisableServiceConfig(),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: again, MinConnectTimeout: 2 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{}), grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)))
}

// Close waits for the questions that are being compared and ends the connections.
func (m *Mirror) Close() error {
	m.open.Wait()
	return errors.Join(m.old.Close(), m.new.Close())
}

// NewServer makes a gRPC server that mirrors rate limit questions, and passes every other call, health checks among them,
// on to the service that answers. creds may be nil.
func (m *Mirror) NewServer(creds credentials.TransportCredentials) *grpc.Server {
	opts := []grpc.ServerOption{grpc.ForceServerCodecV2(codec{}), grpc.UnknownServiceHandler(m.pass), grpc.MaxRecvMsgSize(maxMessage)}
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

// answers is the service that answers, the other one, and their names.
func (m *Mirror) answers() (front, back *grpc.ClientConn) {
	if m.o.AnswerNew {
		return m.new, m.old
	}
	return m.old, m.new
}

// outcome is what became of a question to one service.
type outcome struct {
	out             *frame
	err             error
	header, trailer metadata.MD
	took            time.Duration
}

func ask(ctx context.Context, c *grpc.ClientConn, in *frame) outcome {
	o := outcome{out: new(frame)}
	begin := time.Now()
	o.err = c.Invoke(ctx, method, in, o.out, grpc.Header(&o.header), grpc.Trailer(&o.trailer))
	o.took = time.Since(begin)
	return o
}

// answer asks both services and returns what the one that answers said.
func (m *Mirror) answer(ctx context.Context, in *frame) (*frame, error) {
	q := newQuestion(in.data)
	md, _ := metadata.FromIncomingContext(ctx)
	ctx = metadata.NewOutgoingContext(ctx, md)
	front, back := m.answers()
	begun := m.begun(q)
	shadow, answered := m.shadow(back, md, q, begun)
	o := ask(ctx, front, in)
	m.report.answered(m.o.AnswerNew, &o)
	if answered != nil {
		answered <- o
	} else {
		m.left(q)
	}
	if o.err != nil && m.o.AnswerNew {
		o = m.fallBack(ctx, in, shadow, o)
	}
	_ = grpc.SetHeader(ctx, o.header) // only a call that has ended refuses them
	_ = grpc.SetTrailer(ctx, o.trailer)
	return o.out, o.err
}

// fallBack is the old service's answer in place of a failed one of the new. It was asked at the same time, or is now.
func (m *Mirror) fallBack(ctx context.Context, in *frame, shadow <-chan outcome, failed outcome) outcome {
	m.report.metrics.fellBack.Inc()
	if shadow == nil {
		return ask(ctx, m.old, in)
	}
	select {
	case o := <-shadow:
		return o
	case <-ctx.Done():
		return failed
	}
}

// shadow asks the service that nobody waits for, and compares. The first channel gives its answer; the second wants the
// other service's. Both are nil when the question is not mirrored.
func (m *Mirror) shadow(c *grpc.ClientConn, md metadata.MD, q *question, begun uint64) (<-chan outcome, chan<- outcome) {
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
		back := ask(ctx, c, &frame{q.message})
		m.report.answered(!m.o.AnswerNew, &back)
		shadow <- back
		front := <-answered
		// Read before this question counts as ended: all that were in flight with it at any time.
		q.beside = m.began.Load() - begun
		q.end = time.Now().UnixNano()
		m.left(q)
		if m.o.AnswerNew {
			front, back = back, front
		}
		m.compare(q, &front, &back)
	})
	return shadow, answered
}

// begun counts a question's hits and returns those of questions that ended before it began.
func (m *Mirror) begun(q *question) uint64 {
	ended := m.ended.Load()
	m.began.Add(q.hits)
	return ended + q.hits // so that its own are not beside it
}

func (m *Mirror) left(q *question) { m.ended.Add(q.hits) }

// miss notes that from now on the counts of the two services differ, until the windows end.
func (m *Mirror) miss() { m.missed.Store(time.Now().UnixNano()) }

func (m *Mirror) compare(q *question, old, new *outcome) {
	switch {
	case old.err != nil && new.err != nil:
		m.report.notCompared(bothFailed)
		m.miss()
	case old.err != nil && q.known != "":
		m.report.difference(q, known, []string{"error"}, old, new)
	case old.err != nil:
		m.report.notCompared(oldFailed)
		m.miss()
	case new.err != nil:
		m.report.notCompared(newFailed)
		m.miss()
	default:
		a, b := decode(old.out.data), decode(new.out.data)
		m.report.counted(a, b)
		fields, at := differ(a, b)
		if len(fields) == 0 {
			m.report.agreed()
			return
		}
		m.report.difference(q, m.class(q, a, b, at), fields, old, new)
	}
}

// pass hands a call that is no rate limit question on to the service that answers.
func (m *Mirror) pass(_ any, in grpc.ServerStream) error {
	name, _ := grpc.MethodFromServerStream(in)
	ctx, cancel := context.WithCancel(in.Context())
	defer cancel()
	md, _ := metadata.FromIncomingContext(ctx)
	front, _ := m.answers()
	out, err := front.NewStream(metadata.NewOutgoingContext(ctx, md), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, name)
	if err != nil {
		return err
	}
	go func() {
		if copyFrames(in.RecvMsg, out.SendMsg) != nil {
			cancel()
			return
		}
		_ = out.CloseSend() // it always succeeds
	}()
	if header, err := out.Header(); err == nil {
		_ = in.SetHeader(header) // nothing has been sent yet
	}
	err = copyFrames(out.RecvMsg, in.SendMsg)
	in.SetTrailer(out.Trailer())
	return err
}

// copyFrames copies until the stream ends, which is no error.
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

// Healthy is nil while a service whose verdict callers may get says that it is healthy.
func (m *Mirror) Healthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.o.Timeout)
	defer cancel()
	err := healthy(ctx, m.old)
	if err != nil && m.o.AnswerNew {
		err = healthy(ctx, m.new)
	}
	return err
}

// healthName is the service that envoyproxy/ratelimit and Keyward tell the health of.
const healthName = "ratelimit"

func healthy(ctx context.Context, c *grpc.ClientConn) error {
	in, out := encodeHealth(&healthpb.HealthCheckRequest{Service: healthName}), new(frame)
	if err := c.Invoke(ctx, healthpb.Health_Check_FullMethodName, in, out); err != nil {
		return err
	}
	return readHealth(out)
}
