package loadtest

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/keyward/keyward/internal/certs"
)

// counting lets calls pass, but every third is refused and every seventh fails.
type counting struct {
	pb.UnimplementedRateLimitServiceServer
	calls atomic.Int64
	delay time.Duration
	keys  chan string
}

func (c *counting) ShouldRateLimit(ctx context.Context, req *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	n := c.calls.Add(1)
	time.Sleep(c.delay)
	if c.keys != nil {
		select {
		case c.keys <- req.Domain + " " + fmt.Sprint(metadata.ValueFromIncomingContext(ctx, "x-key")):
		default:
		}
	}
	switch {
	case n%7 == 0:
		return nil, status.Error(codes.Unavailable, "every seventh")
	case n%3 == 0:
		return &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OVER_LIMIT}, nil
	}
	return &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OK}, nil
}

func serve(t *testing.T, s pb.RateLimitServiceServer, o ...grpc.ServerOption) Target {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(o...)
	pb.RegisterRateLimitServiceServer(g, s)
	go func() { _ = g.Serve(ln) }()
	t.Cleanup(g.Stop)
	return Target{Addr: ln.Addr().String()}
}

func message(t *testing.T, domain string) []byte {
	t.Helper()
	b, err := proto.Marshal(&pb.RateLimitRequest{Domain: domain})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func newLoad(t *testing.T, o Options) *Load {
	t.Helper()
	if o.Service.Read == nil {
		o.Service = RLS()
	}
	if o.Calls == nil {
		o.Calls = []LoadCall{{Message: message(t, "a")}}
	}
	l, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

func run(t *testing.T, l *Load, p Phase, length time.Duration) Calls {
	t.Helper()
	r, err := l.Run(t.Context(), p, length)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Every call is seen once, with its own answer, whatever the shape of the load.
func TestEveryCallIsCounted(t *testing.T) {
	s := &counting{}
	l := newLoad(t, Options{Targets: []Target{serve(t, s)}, Conns: 3})
	for _, p := range []Phase{{Inflight: 1}, {Inflight: 7}, {Inflight: 256}, {Rate: 500}, {Inflight: 2}} {
		s.calls.Store(0)
		r := run(t, l, p, 200*time.Millisecond)
		n := int(s.calls.Load())
		fails, over := n/7, n/3-n/21
		if n == 0 || r.Errors != fails || r.Over != over || r.OK != n-fails-over || r.Latency.Count() != r.Answered() {
			t.Errorf("%v: %d calls arrived; seen %d ok, %d over, %d failed, %d latencies (%v)", p, n, r.OK, r.Over, r.Errors, r.Latency.Count(), r.Err)
		}
		if p.Rate > 0 && n != 100 {
			t.Errorf("%d calls at 500 a second in 0.2 s", n)
		}
		if fails > 0 && !strings.Contains(r.Err.Error(), "every seventh") {
			t.Errorf("%v: %v", p, r.Err)
		}
	}
}

// The calls in flight are as many as were asked for, at the server.
func TestInflight(t *testing.T) {
	for _, n := range []int{1, 5, 40} {
		s := &gauge{want: int64(n), full: make(chan struct{})}
		l := newLoad(t, Options{Targets: []Target{serve(t, s)}, Conns: 4})
		run(t, l, Phase{Inflight: n}, 200*time.Millisecond)
		if got := int(s.most.Load()); got != n {
			t.Errorf("%d calls at a time, want %d", got, n)
		}
	}
}

// gauge answers no call until as many as are wanted are there, and then a little later, for more to be seen.
type gauge struct {
	pb.UnimplementedRateLimitServiceServer
	want      int64
	full      chan struct{} // closed once they are
	now, most atomic.Int64
}

func (g *gauge) ShouldRateLimit(context.Context, *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	n := g.now.Add(1)
	for m := g.most.Load(); n > m; m = g.most.Load() {
		if g.most.CompareAndSwap(m, n) && n == g.want {
			close(g.full)
		}
	}
	select {
	case <-g.full:
		time.Sleep(10 * time.Millisecond)
	case <-time.After(10 * time.Second): // there are fewer
	}
	g.now.Add(-1)
	return &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OK}, nil
}

// A server that is slower than the rate makes later calls late: their time counts from when they were due.
func TestLatencyIsFromWhenCallsWereDue(t *testing.T) {
	s := &counting{delay: 50 * time.Millisecond}
	l := newLoad(t, Options{Targets: []Target{serve(t, s, grpc.MaxConcurrentStreams(1))}, Conns: 1})
	r := run(t, l, Phase{Rate: 100}, 200*time.Millisecond) // 20 calls, one at a time, a second in all
	if got := r.Latency.Quantile(1); got < 600*time.Millisecond {
		t.Errorf("the slowest of %d took %v", r.Answered(), got)
	}
	if s.calls.Load() != 20 {
		t.Errorf("%d calls", s.calls.Load())
	}
}

// A load that is late itself charges that, too.
func TestLateLoad(t *testing.T) {
	l := newLoad(t, Options{Targets: []Target{serve(t, &counting{})}, Conns: 1})
	now := time.Now()
	r := &round{begin: now.Add(-time.Minute), end: now.Add(-time.Minute + time.Second), paced: true, open: make(chan struct{})}
	r.calls.Store(1)
	l.conns[0].enter(r)
	l.pace(t.Context(), r, 10)
	r.leave()
	<-r.open
	got := l.conns[0].exit()
	if got.Latency.Count() == 0 || got.Latency.Quantile(0) < 58*time.Second || got.OK+got.Over+got.Errors != 10 {
		t.Errorf("%d ok, %d over, %d failed; the fastest took %v", got.OK, got.Over, got.Errors, got.Latency.Quantile(0))
	}
}

func TestAllTargetsAreAsked(t *testing.T) {
	for _, p := range []Phase{{Inflight: 1}, {Inflight: 2}, {Inflight: 9}, {Rate: 300}} {
		var servers [3]counting
		var targets []Target
		for i := range servers {
			targets = append(targets, serve(t, &servers[i]))
		}
		r := run(t, newLoad(t, Options{Targets: targets, Conns: 3}), p, 200*time.Millisecond)
		least, all := int64(1<<62), int64(0)
		for i := range servers {
			n := servers[i].calls.Load()
			least, all = min(least, n), all+n
		}
		if least == 0 || int(all) != r.Answered()+r.Errors {
			t.Errorf("%v: %d calls, at least %d at each; seen %d", p, all, least, r.Answered()+r.Errors)
		}
	}
}

// Calls with a place go there, with headers of their own.
func TestPlacedCalls(t *testing.T) {
	var servers [2]counting
	var targets []Target
	var calls []LoadCall
	for i := range servers {
		servers[i].keys = make(chan string, 1000)
		targets = append(targets, serve(t, &servers[i]))
		name := fmt.Sprint("domain-", i)
		calls = append(calls, LoadCall{Message: message(t, name), Target: i, Headers: []hpack.HeaderField{{Name: "x-key", Value: name}}})
	}
	l := newLoad(t, Options{Targets: targets, Calls: calls, Placed: true, Conns: 4})
	for _, p := range []Phase{{Inflight: 8}, {Rate: 200}} {
		run(t, l, p, 100*time.Millisecond)
	}
	for i := range servers {
		if len(servers[i].keys) == 0 {
			t.Errorf("server %d was not asked", i)
		}
		for len(servers[i].keys) > 0 {
			if got, want := <-servers[i].keys, fmt.Sprintf("domain-%d [domain-%d]", i, i); got != want {
				t.Fatalf("server %d got %q, want %q", i, got, want)
			}
		}
	}
}

// A server that goes away fails the calls in flight, and no run waits for it for long.
func TestServerGone(t *testing.T) {
	s := &gauge{}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	pb.RegisterRateLimitServiceServer(g, s)
	go func() { _ = g.Serve(ln) }()
	l := newLoad(t, Options{Targets: []Target{{Addr: ln.Addr().String()}}, Conns: 2})
	time.AfterFunc(50*time.Millisecond, g.Stop)
	r := run(t, l, Phase{Inflight: 4}, time.Minute)
	if r.Errors == 0 || r.Err == nil {
		t.Errorf("%+v", r)
	}
	if _, err := l.Run(t.Context(), Phase{Inflight: 1}, time.Second); err == nil {
		t.Error("no error from a server that has gone")
	}
}

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	if err := certs.MakeDemo(dir, certs.DemoOptions{}); err != nil {
		t.Fatal(err)
	}
	server, err := certs.Server(certs.DemoFiles(dir, "sidecar"), certs.ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client, err := certs.Client(certs.DemoFiles(dir, "envoy"), certs.ClientOptions{ServerSANs: []string{certs.DemoSAN("sidecar")}})
	if err != nil {
		t.Fatal(err)
	}
	server.NextProtos = []string{"h2"}
	to := serve(t, &counting{}, grpc.Creds(credentials.NewTLS(server)))
	to.TLS = client
	if r := run(t, newLoad(t, Options{Targets: []Target{to}, Conns: 2}), Phase{Inflight: 4}, 50*time.Millisecond); r.OK == 0 {
		t.Errorf("%+v", r)
	}
	to.TLS = &tls.Config{MinVersion: tls.VersionTLS13}
	if _, err := New(t.Context(), Options{Service: RLS(), Targets: []Target{to}, Calls: []LoadCall{{}}, Conns: 1}); err == nil {
		t.Error("an unknown CA is trusted")
	}
}

func TestReadRLS(t *testing.T) {
	for code, want := range map[pb.RateLimitResponse_Code]string{pb.RateLimitResponse_OK: "false", pb.RateLimitResponse_OVER_LIMIT: "true", 0: "error"} {
		b, err := proto.Marshal(&pb.RateLimitResponse{OverallCode: code, Statuses: []*pb.RateLimitResponse_DescriptorStatus{{LimitRemaining: 7}}, RawBody: []byte("x")})
		if err != nil {
			t.Fatal(err)
		}
		over, err := ReadRLS(b)
		got := fmt.Sprint(over)
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%v: %s, want %s", code, got, want)
		}
		if _, err := ReadRLS(b[:len(b)-1]); err == nil {
			t.Errorf("%v: cut short, and no error", code)
		}
	}
}

func TestListener(t *testing.T) {
	to := serve(t, &counting{})
	pid, err := Listener(to.Addr)
	if err != nil {
		t.Skip(err) // no Linux
	}
	before, err := CPUOf(pid)
	after, err2 := before, error(nil)
	for end := time.Now().Add(30 * time.Second); after <= before && err2 == nil && time.Now().Before(end); {
		after, err2 = CPUOf(pid)
	}
	if err != nil || err2 != nil || after <= before {
		t.Errorf("%v, then %v (%v, %v)", before, after, err, err2)
	}
	link, err := filepath.EvalSymlinks(fmt.Sprintf("/proc/%d", pid))
	if self, _ := filepath.EvalSymlinks("/proc/self"); err != nil || link != self {
		t.Errorf("%s listens, not %s", link, self)
	}
}
