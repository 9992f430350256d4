package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/keyward/keyward/ring"
)

// counting answers as the constant server does, but every third call is over the limit and every seventh fails.
type counting struct {
	constant
	calls atomic.Int64
}

func (c *counting) ShouldRateLimit(ctx context.Context, req *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	n := c.calls.Add(1)
	if n%7 == 0 {
		return nil, status.Error(codes.Unavailable, "every seventh")
	}
	res, err := c.constant.ShouldRateLimit(ctx, req)
	if n%3 == 0 {
		res.OverallCode = pb.RateLimitResponse_OVER_LIMIT
	}
	return res, err
}

func serve(t *testing.T, s pb.RateLimitServiceServer) target {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	pb.RegisterRateLimitServiceServer(g, s)
	go func() { _ = g.Serve(ln) }()
	t.Cleanup(g.Stop)
	return target{addr: ln.Addr().String()}
}

func loadFor(t *testing.T, targets ...target) *load {
	t.Helper()
	l, err := newLoad(options{inflight: 5, conns: 2, keys: 10}, targets)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	return l
}

func TestLoadCountsEveryCall(t *testing.T) {
	s := &counting{}
	l := loadFor(t, serve(t, s))
	for _, rate := range []float64{0, 200} {
		s.calls.Store(0)
		m := l.run(t.Context(), 200*time.Millisecond, rate)
		n := int(s.calls.Load())
		fails, over := n/7, n/3-n/21
		if n == 0 || m.Errors != fails || m.Over != over || m.OK != n-fails-over || m.answered() != len(m.latencies) {
			t.Errorf("rate %v: %d calls arrived; seen %d ok, %d over, %d failed, %d latencies", rate, n, m.OK, m.Over, m.Errors, len(m.latencies))
		}
		if m.err == nil && fails > 0 || !slices.IsSorted(m.latencies) {
			t.Errorf("rate %v: error %v, sorted %v", rate, m.err, slices.IsSorted(m.latencies))
		}
		if most := int(200*m.Elapsed.Seconds()) + 5; rate > 0 && n > most {
			t.Errorf("%d calls at 200 a second in %v", n, m.Elapsed)
		}
	}
}

func TestLoadAsksAllTargets(t *testing.T) {
	var servers [3]counting
	var targets []target
	for i := range servers {
		targets = append(targets, serve(t, &servers[i]))
	}
	l := loadFor(t, targets...)
	if err := l.probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range servers {
		if servers[i].calls.Load() == 0 {
			t.Errorf("target %d was not asked", i)
		}
	}
}

// placed fails calls that arrive where their key is not owned.
type placed struct {
	constant
	ring  *ring.Ring
	self  int
	calls atomic.Int64
}

func (p *placed) ShouldRateLimit(ctx context.Context, req *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	p.calls.Add(1)
	key := req.GetDescriptors()[0].GetEntries()[1].GetValue()
	if told := metadata.ValueFromIncomingContext(ctx, "x-keyward-key"); len(told) != 1 || told[0] != key || p.ring.Owner(ring.Hash(key)) != p.self {
		return nil, status.Errorf(codes.InvalidArgument, "key %s, told %q, is not of member %d", key, told, p.self)
	}
	return p.constant.ShouldRateLimit(ctx, req)
}

func TestLoadAsksTheOwner(t *testing.T) {
	r := ring.New([]ring.Member{{ID: "a", Weight: 1}, {ID: "b", Weight: 1}, {ID: "c", Weight: 1}})
	var targets []target
	var servers []*placed
	for i := range r.Len() {
		s := &placed{ring: r, self: i}
		to := serve(t, s)
		to.member = r.At(i).ID
		servers, targets = append(servers, s), append(targets, to)
	}
	m := loadFor(t, targets[1], targets[2], targets[0]).run(t.Context(), 100*time.Millisecond, 0)
	if m.Errors > 0 || m.OK == 0 {
		t.Errorf("%d ok, %d at another member: %v", m.OK, m.Errors, m.err)
	}
	for i, s := range servers {
		if s.calls.Load() == 0 {
			t.Errorf("member %d was not asked", i)
		}
	}
}

func TestProbeWantsTheLimit(t *testing.T) {
	l := loadFor(t, serve(t, pb.UnimplementedRateLimitServiceServer{}))
	if err := l.probe(t.Context()); err == nil {
		t.Error("no error")
	}
}

// A call that became due while its worker still waited for the one before began when it was due.
func TestLateCallsBeginWhenDue(t *testing.T) {
	due := time.Now().Add(-time.Second)
	w := worker{every: 10 * time.Millisecond, next: due}
	if got := w.wait(); got != due {
		t.Errorf("began %v after it was due", got.Sub(due))
	}
	if !w.next.Equal(due.Add(w.every)) {
		t.Errorf("next in %v", w.next.Sub(due))
	}
	w.next = time.Now().Add(5 * time.Millisecond)
	if due := w.next; w.wait().Before(due) {
		t.Error("began early")
	}
}

func TestLeanCodec(t *testing.T) {
	res, _ := constant{}.ShouldRateLimit(t.Context(), nil)
	b, err := proto.Marshal(res)
	if err != nil {
		t.Fatal(err)
	}
	for i := range len(b) + 1 {
		var code uint64
		err := lean{}.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b[:i])}, &code)
		if i == len(b) && (err != nil || code != uint64(pb.RateLimitResponse_OK)) {
			t.Errorf("code %d, %v", code, err)
		}
		if whole := proto.Unmarshal(b[:i], new(pb.RateLimitResponse)) == nil; whole != (err == nil) && i < 3 {
			t.Errorf("cut to %d bytes: %v", i, err)
		}
	}
}

func TestQuantile(t *testing.T) {
	var v []time.Duration
	for i := range 1000 {
		v = append(v, time.Duration(i+1))
	}
	for _, tt := range []struct {
		v    []time.Duration
		q    float64
		want time.Duration
	}{{v, 0.5, 500}, {v, 0.9, 900}, {v, 0.999, 999}, {v, 1, 1000}, {v[:1], 0.999, 1}, {v[:3], 0.5, 2}, {nil, 0.5, 0}} {
		if got := quantile(tt.v, tt.q); got != tt.want {
			t.Errorf("%g of %d: %d, want %d", tt.q, len(tt.v), got, tt.want)
		}
	}
}

func TestDecisions(t *testing.T) {
	const scrape = `# TYPE keyward_decisions_total counter
keyward_decisions_total{decision="ok",path="degraded"} 0
keyward_decisions_total{decision="ok",path="forwarded"} 1.2e+01
keyward_decisions_total{decision="over",path="forwarded"} 3
keyward_decisions_total{decision="ok",path="local"} 5
keyward_direct_total 7
`
	before, after := decisions{}, decisions{"degraded": 5}
	for _, d := range []decisions{before, after, after} {
		if err := d.read([]byte(scrape)); err != nil {
			t.Fatal(err)
		}
	}
	forwarded, degraded := after.since(before)
	if forwarded != 15.0/25 || degraded != 5.0/25 {
		t.Errorf("%v and %v", forwarded, degraded)
	}
	if f, d := before.since(before); f != 0 || d != 0 {
		t.Errorf("of nothing: %v and %v", f, d)
	}
	if err := before.read([]byte(`keyward_decisions_total{path="x"} y`)); err == nil {
		t.Error("nonsense is read")
	}
}

func TestChoose(t *testing.T) {
	for _, tt := range []struct {
		only         string
		redis        bool
		chosen, left int
		err          string
	}{
		{"", true, 7, 0, ""},
		{"", false, 5, 2, ""},
		{"keyward-1, constant", false, 2, 0, ""},
		{"ratelimit", false, 0, 1, ""},
		{"constant,x,gubernator", true, 1, 0, `["gubernator" "x"]`},
	} {
		chosen, left, err := choose(tt.only, tt.redis)
		if len(chosen) != tt.chosen || len(left) != tt.left || (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%+v: %d chosen, left out %q, %v", tt, len(chosen), left, err)
		}
	}
}

// report is a run of three rounds in which one node took twice the constant server's CPU, and the machine changed its pace.
func report() *Report {
	rep := newReport(options{rate: 1000, rounds: 3})
	for round, slow := range []float64{1, 3, 10} {
		for name, us := range map[string]float64{nameConstant: 10, nameOne: 20, nameRatelimit: 40} {
			rep.add(&running{contestant: contestant{Name: name, Title: name}}, Sample{
				Round: round + 1, Full: Figures{Calls: 100, CPU: us * slow, P99: 1000 * slow}, Paced: Figures{Calls: 10}, RSS: int64(slow),
			})
		}
	}
	rep.audit(&running{contestant: contestant{Name: nameOne}, sent: 330}, 329)
	rep.finish()
	return rep
}

func TestReport(t *testing.T) {
	rep := report()
	one := rep.row(nameOne)
	if want := (Spread{60, 20, 200}); one.CPU != want || one.Ratio != 2 || one.RSS != 10 || one.Latency.P99 != 3000 || *one.Uncounted != 1 {
		t.Errorf("%+v", one)
	}
	var out bytes.Buffer
	rep.print(&out)
	for _, want := range []string{
		"60.0 (20.0..200.0)", "aim: one node's CPU at most 1.3 x the constant server's: 2.00 x, NOT MET",
		"with Redis: 0.50 of it, NOT MET", "330 calls measured, 0 failed, 0 over the limit; 1 answered and not counted",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, &out)
		}
	}
	one.Ratio = aimConstant
	out.Reset()
	rep.print(&out)
	if !strings.Contains(out.String(), "1.30 x, met") {
		t.Errorf("the aim itself does not meet it:\n%s", &out)
	}
}

func TestReportIsWritten(t *testing.T) {
	rep, file := report(), filepath.Join(t.TempDir(), "new", "r.json")
	if err := rep.write(file); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(b, &back); err != nil || back.row(nameOne).CPU != rep.row(nameOne).CPU {
		t.Errorf("%v: %s", err, b)
	}
}

func TestSpread(t *testing.T) {
	s := func(v ...float64) (samples []Sample) {
		for _, x := range v {
			samples = append(samples, Sample{RSS: int64(x)})
		}
		return samples
	}
	for _, tt := range []struct {
		in   []Sample
		want Spread
	}{{nil, Spread{}}, {s(7), Spread{7, 7, 7}}, {s(3, 1), Spread{2, 1, 3}}, {s(9, 1, 3), Spread{3, 1, 9}}} {
		if got := spread(tt.in, func(s *Sample) float64 { return float64(s.RSS) }); got != tt.want {
			t.Errorf("%v, want %v", got, tt.want)
		}
	}
}

// The decision path's steps answer by the rules: what does nothing is fast, too.
func TestPathDecides(t *testing.T) {
	p, err := newPath(3)
	if err != nil {
		t.Fatal(err)
	}
	defer p.peer.Close()
	c := p.service.NewCall()
	for want := limitPerYear - 1; want > limitPerYear-4; want-- {
		if err := p.service.Decode(c, p.wire[2]); err != nil {
			t.Fatal(err)
		}
		p.service.Decide(c, rlsCaller)
		if c.Err != nil || len(c.Response.Statuses) != 1 || c.Response.Statuses[0].Remaining != uint32(want) {
			t.Fatalf("%+v, want %d remaining", c.Response, want)
		}
	}
	for _, s := range p.steps() {
		s.run(1)
	}
	if got := p.node.Facts(p.peer.Now()); got.Keys == 0 {
		t.Errorf("nothing was counted: %+v", got)
	}
}

// Ratios are taken within a round: a round in which the machine was busy must not be set against one in which it was not.
func TestRatioIsOfRounds(t *testing.T) {
	s := func(cpu ...float64) (samples []Sample) {
		for _, us := range cpu {
			samples = append(samples, Sample{Full: Figures{CPU: us}})
		}
		return samples
	}
	if got := ratio(s(20, 90, 50), s(10, 90, 10)); got != 2 {
		t.Errorf("%v, want 2", got)
	}
	if got := ratio(s(20), nil); got != 0 {
		t.Errorf("to nothing: %v", got)
	}
}
