package trace

import (
	"context"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	pb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/stats"
	"github.com/keyward/keyward/owner"
)

// sink is an OTLP collector over gRPC and HTTP.
type sink struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []*pb.Span
}

func (s *sink) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rs := range r.ResourceSpans {
		for _, ss := range rs.ScopeSpans {
			s.spans = append(s.spans, ss.Spans...)
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var req collector.ExportTraceServiceRequest
	if err := proto.Unmarshal(body, &req); err != nil || r.URL.Path != "/v1/traces" {
		http.Error(w, "what is this?", http.StatusBadRequest)
		return
	}
	_, _ = s.Export(r.Context(), &req)
}

// listen starts the collector and sets the exporter's environment to its address.
func (s *sink) listen(t *testing.T, protocol string) {
	if protocol == "http" {
		h := httptest.NewServer(s)
		t.Cleanup(h.Close)
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", h.URL)
		return
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	collector.RegisterTraceServiceServer(g, s)
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+l.Addr().String())
}

// alone is a member without a cluster.
type alone struct{ *owner.Node }

func (a alone) Decide(_ policy.Deadline, stop bool, qs []owner.Request, as []owner.Result) {
	a.DecideAll(time.Now().UnixNano(), stop, qs, as)
}

const rules = `
domain: d
descriptors:
- key: user
  rate_limit: {unit: hour, requests_per_unit: 1}
`

func service(t *testing.T, tracer rls.Tracer) (url string) {
	t.Helper()
	r, err := config.Load([]config.File{{Name: "r.yaml", Content: []byte(rules)}}, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := rls.New(rls.Options{Decider: alone{owner.New(owner.Options{Self: "a", BootID: 3})}, Stats: stats.New(stats.Options{}), Tracer: tracer})
	s.SetRules(r, rls.Switches{})
	server, err := rls.Start(rls.StartOptions{Service: s, Health: rls.NewHealthServer(), HTTP: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Stop(context.Background()) })
	return "http://" + server.Addrs[0].String() + "/json"
}

func ask(t *testing.T, url, traceparent string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(`{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"secret-of-alice"}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if traceparent != "" {
		r.Header.Set("traceparent", traceparent)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
}

const trace1, span1 = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"

func TestCallsAreTraced(t *testing.T) {
	for _, protocol := range []string{"http", "grpc"} {
		t.Run(protocol, func(t *testing.T) {
			var s sink
			s.listen(t, protocol)
			name := func(*rls.DecisionSample) string { return "x" }
			tracer, err := Start(t.Context(), Options{Service: "RateLimit", Protocol: protocol, Rate: 0, Path: name, Authority: name, Owner: name})
			if err != nil {
				t.Fatal(err)
			}
			h := service(t, tracer)
			ask(t, h, "")                               // at a rate of 0 nothing begins here
			ask(t, h, "00-"+trace1+"-"+span1+"-00")     // the caller does not record
			ask(t, h, "00-"+trace1+"-"+span1+"-01")     // the caller does
			ask(t, h, "00-not a traceparent at all-01") // hostile
			if err := tracer.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			check(t, s.spans)
		})
	}
}

func check(t *testing.T, spans []*pb.Span) {
	t.Helper()
	if len(spans) != 2 {
		t.Fatalf("%d spans, want the call and its decisions: %v", len(spans), spans)
	}
	decide, call := spans[0], spans[1]
	if hex.EncodeToString(call.TraceId) != trace1 || hex.EncodeToString(call.ParentSpanId) != span1 || call.Kind != pb.Span_SPAN_KIND_SERVER {
		t.Errorf("the call does not follow its caller: %v", call)
	}
	if string(decide.ParentSpanId) != string(call.SpanId) || decide.StartTimeUnixNano < call.StartTimeUnixNano || decide.EndTimeUnixNano > call.EndTimeUnixNano {
		t.Errorf("deciding is no part of the call: %v in %v", decide, call)
	}
	text := call.String()
	for _, want := range []string{"over_limit", "d.user", "rl.owner", "rl.limit"} {
		if !strings.Contains(text, want) {
			t.Errorf("nothing of %s: %s", want, text)
		}
	}
	if strings.Contains(text, "alice") {
		t.Errorf("a caller's value is in the trace: %s", text)
	}
}

func TestUnknownProtocolIsRefused(t *testing.T) {
	if _, err := Start(t.Context(), Options{Protocol: "carrier pigeon"}); err == nil || !strings.Contains(err.Error(), "TRACING_EXPORTER_PROTOCOL") {
		t.Errorf("error %v", err)
	}
}
