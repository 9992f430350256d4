package main

import (
	"bytes"
	"context"
	"math"
	"net"
	"net/http"
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
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/keyward/keyward/internal/ops/loadtest"
	"github.com/keyward/keyward/ring"
)

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

func auditFor(t *testing.T, targets ...target) *audit {
	t.Helper()
	a, err := newAudit(targets, 10)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.close)
	return a
}

func loadFor(t *testing.T, targets ...target) *loadtest.Load {
	t.Helper()
	calls, err := auditFor(t, targets...).calls()
	if err != nil {
		t.Fatal(err)
	}
	r := running{service: loadtest.RLS(), targets: targets, calls: calls}
	l, err := r.newLoad(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
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
	if got := metadata.ValueFromIncomingContext(ctx, "x-keyward-key"); len(got) != 1 || got[0] != key || p.ring.Owner(ring.Hash(key)) != p.self {
		return nil, status.Errorf(codes.InvalidArgument, "key %s, header %q, is not of member %d", key, got, p.self)
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
	m, err := loadFor(t, targets[1], targets[2], targets[0]).Run(t.Context(), loadtest.Phase{Inflight: 5}, 100*time.Millisecond)
	if err != nil || m.Errors > 0 || m.OK == 0 {
		t.Errorf("%d ok, %d at another member: %v, %v", m.OK, m.Errors, m.Err, err)
	}
	for i, s := range servers {
		if s.calls.Load() == 0 {
			t.Errorf("member %d was not asked", i)
		}
	}
}

func TestProbeWantsTheLimit(t *testing.T) {
	a := auditFor(t, serve(t, pb.UnimplementedRateLimitServiceServer{}))
	if err := a.probe(t.Context()); err == nil {
		t.Error("no error")
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
	everything := arena{redis: "r", options: options{envoy: "e", limitador: "l", gubernator: "g"}}
	for _, tt := range []struct {
		only         string
		quick        bool
		have         arena
		chosen, left int
		err          string
	}{
		{"", false, everything, len(contestants()) - 5, 0, ""},
		{"", true, everything, 7, 0, ""},
		{"", false, arena{}, 5, 10, ""},
		{"keyward-1, constant", false, arena{}, 2, 0, ""},
		{"keyward-3-alone", true, arena{}, 1, 0, ""},
		{"ratelimit", false, arena{}, 0, 1, ""},
		{"constant,x,gubernator", false, everything, 1, 0, `["gubernator" "x"]`},
	} {
		a := tt.have
		a.only, a.quick = tt.only, tt.quick
		chosen, left, err := choose(&a)
		if len(chosen) != tt.chosen || len(left) != tt.left || (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%q: %d chosen, left out %q, %v", tt.only, len(chosen), left, err)
		}
	}
}

// report is a run of three rounds in which one node took twice the constant server's CPU, and the machine changed its pace.
func report() *Report {
	rep := newReport(options{rate: 1000, rounds: 3, levels: []int{1, 64}, seconds: 1})
	missing := 1
	for name, us := range map[string]float64{
		nameConstant: 10, nameOne: 20, nameRatelimit: 40, nameEnvoyNone: 1, nameEnvoyConstant: 11, nameEnvoyOne: 6,
	} {
		rep.Contestants = append(rep.Contestants, &Entry{Name: name, Title: name, Envoy: strings.HasPrefix(name, "envoy"), RSS: 10e6, Uncounted: &missing})
		for _, phase := range rep.phases() {
			r := &loadtest.Measurement{Name: name, Phase: phase}
			for _, slow := range []float64{1, 3, 10} {
				r.Rounds = append(r.Rounds, loadtest.Figures{Calls: 100, CPU: us * slow, Proxy: 5, P50: us * slow, P99: 1000 * slow, Throughput: 1e6 / us})
			}
			rep.Results = append(rep.Results, r)
		}
	}
	rep.judge()
	return rep
}

func TestReport(t *testing.T) {
	var out bytes.Buffer
	report().print(&out)
	for _, want := range []string{
		"NOT MET  2.00 (2.00..2.00), at most 0.2: CPU of one node over the constant server's, 64 in flight",
		"NOT MET  0.50 (0.50..0.50), at most 0.062: CPU of one node over envoyproxy/ratelimit's",
		"met      0.50 (0.50..0.50), at most 0.8: latency (p50) that one node adds to Envoy's",
		"900 calls measured, 0 failed, 0 over the limit; 1 answered and not counted",
		"Through Envoy",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, &out)
		}
	}
	if met(0.2, 0.2) != "met" || met(math.NaN(), 1) == "met" || met(0.21, 0.2) == "met" {
		t.Error("what is met?")
	}
}

func TestReportIsWritten(t *testing.T) {
	rep, dir := report(), t.TempDir()
	file := filepath.Join(dir, "new", "r.json")
	if err := rep.write(file); err != nil {
		t.Fatal(err)
	}
	page := filepath.Join(dir, "page.md")
	if err := os.WriteFile(page, []byte("before\n"+docsBegin+"old\n"+docsEnd+"after\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	back, err := readReport(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := back.writeDocs(page); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(page)
	text := string(b)
	if err != nil || !strings.HasPrefix(text, "before\n"+docsBegin+"Run on ") || !strings.HasSuffix(text, docsEnd+"after\n") || strings.Contains(text, "old") {
		t.Errorf("%v: %s", err, text)
	}
	if want := "| keyward-1 | 60.0 | 2.00 | 2.00 | 50000 | 0.06 | 0.00 | 3.00 | 0.00 | 10 | - |"; !strings.Contains(strings.ReplaceAll(text, " - | 3.00 | - ", " 0.00 | 3.00 | 0.00 "), want) {
		t.Errorf("%s is not in %s", want, text)
	}
	if err := rep.writeDocs(file); err == nil {
		t.Error("tables were put where there is no place")
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
	if got := p.node.Stats(p.peer.Now()); got.Keys == 0 {
		t.Errorf("nothing was counted: %+v", got)
	}
}

// The page needs nothing but itself, and shows every contestant in the table.
func TestPage(t *testing.T) {
	rep, file := report(), filepath.Join(t.TempDir(), "r.html")
	rep.Contestants[0].Title = "<script>alert(1)</script>"
	if err := rep.writeHTML(file); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for _, never := range []string{"http:", "https:", "<script", "<link", "NaN", "url("} {
		if strings.Contains(text, never) {
			t.Errorf("%q is in the page", never)
		}
	}
	if n := strings.Count(text, "<svg "); n != 6 {
		t.Errorf("%d plots", n)
	}
	if n := strings.Count(text, `<tr class="ours">`); n != 2 {
		t.Errorf("%d rows are marked", n)
	}
}

// The floor answers as the constant server does, however calls are sent to it.
func TestFloor(t *testing.T) {
	addr := listen(t, serveFloor)
	if err := auditFor(t, target{addr: addr}).probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, inflight := range []int{5, 50} {
		m, err := loadFor(t, target{addr: addr}).Run(t.Context(), loadtest.Phase{Inflight: inflight}, 100*time.Millisecond)
		if err != nil || m.OK < 100 || m.Errors > 0 {
			t.Errorf("%d answered, %d failed: %v, %v", m.OK, m.Errors, m.Err, err)
		}
	}
}

func listen(t *testing.T, serve func(net.Conn) error) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_ = serve(c)
			}()
		}
	}()
	return ln.Addr().String()
}

func TestUpstream(t *testing.T) {
	url := "http://" + listen(t, serveUpstream)
	for range 3 {
		res, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusOK {
			t.Error(res.Status)
		}
	}
}

// Gubernator's protocol: status 1 refuses, a text in field 5 is a failure.
func TestGubernatorProtocol(t *testing.T) {
	text := func(b []byte, n protowire.Number, s string) []byte {
		return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), s)
	}
	number := func(n protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, n, protowire.VarintType), v)
	}
	wrap := func(b []byte) []byte { return text(nil, 1, string(b)) }
	for _, tt := range []struct {
		message []byte
		want    string
	}{
		{wrap(number(2, 100)), "passes"},
		{wrap(append(number(2, 100), number(1, 1)...)), "refused"},
		{wrap(text(nil, 5, "no peers")), "gubernator: no peers"},
		{nil, errResponse.Error()},
		{wrap([]byte{0xff}), errResponse.Error()},
	} {
		over, err := gubernator().Read(&loadtest.Reply{Code: "0", Body: tt.message})
		got := map[bool]string{false: "passes", true: "refused"}[over]
		if err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%x: %s, want %s", tt.message, got, tt.want)
		}
	}
	inner, err := bytesOf(gubernatorCalls(2)[1].Message, 1)
	if err != nil {
		t.Fatal(err)
	}
	if key, err := bytesOf(inner, 2); err != nil || string(key) != keyName(1) {
		t.Errorf("asked about %q, %v", key, err)
	}
}

// The rivals that cannot be had here are started with these arguments: a program that writes down how it was called takes their place.
func TestRivalsArguments(t *testing.T) {
	dir := t.TempDir()
	fake := filepath.Join(dir, "fake")
	if err := os.WriteFile(fake, []byte("#!/bin/sh\necho \"$@\" > called; env | sort >> called\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	a := &arena{options: options{keys: 3, limitador: fake, gubernator: fake}}
	for name, want := range map[string][]string{
		nameLimitador:   {"limits.yaml memory", "ENVOY_RLS_PORT=", "LIMITS_FILE="},
		nameGubernators: {"GUBER_GRPC_ADDRESS=127.0.0.1:", "GUBER_MEMBERLIST_KNOWN_NODES=127.0.0.1:"},
	} {
		i := slices.IndexFunc(contestants(), func(c contestant) bool { return c.Name == name })
		r := &running{contestant: contestants()[i], dir: filepath.Join(dir, name)}
		if err := os.Mkdir(r.dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := r.start(t.Context(), a, r); err != nil {
			t.Fatal(err)
		}
		for _, p := range r.processes {
			<-p.Exited()
		}
		b, err := os.ReadFile(filepath.Join(r.dir, "called"))
		for _, w := range want {
			if err != nil || !strings.Contains(string(b), w) {
				t.Errorf("%s: %q is not in %s (%v)", name, w, b, err)
			}
		}
	}
}

func TestReplaceFilter(t *testing.T) {
	const config = `          address: {address: "127.0.0.1", port_value: 1}
          - name: envoy.filters.http.ratelimit
            typed_config: {}
          - name: envoy.filters.http.router
`
	got, err := replaceFilter(config, "          - name: another\n")
	want := "          address: {address: \"@HOST@\", port_value: @PORT@}\n          - name: another\n          - name: envoy.filters.http.router\n"
	if err != nil || got != want {
		t.Errorf("%v: %s", err, got)
	}
	if _, err := replaceFilter("nothing", ""); err == nil {
		t.Error("no error without a filter")
	}
}

// A commit is worse only when most rounds say so, and by more than is allowed.
func TestVerdict(t *testing.T) {
	plan := loadtest.Plan{Phases: []loadtest.Phase{{Inflight: 64}}}
	for _, tt := range []struct {
		cpu    []float64 // of the newer commit; the older one's is 10
		allocs float64   // the older one's is 2
		want   string    // in the table
		worse  bool
	}{
		{[]float64{10, 10.5, 10.9, 9, 10}, 2, "as before", false},
		{[]float64{12, 12, 12, 12, 9}, 2, "WORSE", true},
		{[]float64{12, 10, 9, 30, 10}, 2, "as before", false},
		{[]float64{5, 5, 5, 5, 9}, 2, "better", false},
		{[]float64{10, 10, 10, 10, 10}, 2.05, "as before", false},
		{[]float64{10, 10, 10, 10, 10}, 3, "WORSE", true},
	} {
		c := &compared{name: "one", old: &running{contestant: contestant{Name: "old"}}, new: &running{contestant: contestant{Name: "new"}}}
		before, after := &loadtest.Measurement{Name: "old", Phase: plan.Phases[0]}, &loadtest.Measurement{Name: "new", Phase: plan.Phases[0]}
		for _, us := range tt.cpu {
			before.Rounds, after.Rounds = append(before.Rounds, loadtest.Figures{CPU: 10}), append(after.Rounds, loadtest.Figures{CPU: us})
			c.allocs[0], c.allocs[1] = append(c.allocs[0], 2), append(c.allocs[1], tt.allocs)
		}
		var out bytes.Buffer
		err := verdict(&out, 0.1, plan, []*loadtest.Measurement{before, after}, []*compared{c})
		if (err != nil) != tt.worse || !strings.Contains(out.String(), tt.want) {
			t.Errorf("%v, %v allocations: %v\n%s", tt.cpu, tt.allocs, err, &out)
		}
	}
}
