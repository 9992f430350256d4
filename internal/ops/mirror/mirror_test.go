package mirror

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/owner"
)

func TestTheSameRulesDoNotDiffer(t *testing.T) {
	added := rls.Additions{
		RetryAfter: true, RateLimitFields: true, DecisionHeaders: true, DecisionMetadata: true, DelayHeader: "x-delay",
		Authority: func(owner.Authority) string { return "full" }, Path: func(owner.Path) string { return "local" },
	}
	m, c := start(t, Options{Old: keyward(t, rules), New: keyward(t, rules, added)})
	aged(m)
	for i := range 30 {
		res, err := askFor(t, c, "alice")
		if err != nil || (res.OverallCode == rlsv3.RateLimitResponse_OVER_LIMIT) != (i >= 20) {
			t.Fatalf("%d: %v %v", i, res, err)
		}
		m.open.Wait() // otherwise the next call may reach the new service before this one
	}
	if s := m.Totals(); s.Same != 30 || s.Compared != 30 || s.Old.Admitted != 20 || s.New.Admitted != 20 || s.Ratio != 1 || s.Old.OverLimit != 10 || s.New.OverLimit != 10 {
		t.Errorf("%+v", s)
	}
}

// Bytes (including unknown fields), metadata, trailers and errors pass unchanged in both directions.
func TestBytesGoThrough(t *testing.T) {
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 999, protowire.VarintType), 7)
	in, err := proto.Marshal(about("alice"))
	if err != nil {
		t.Fatal(err)
	}
	in = append(in, unknown...)
	answer := append([]byte{8, 1}, unknown...)
	type seen struct {
		in  []byte
		key []string
	}
	got := make(chan seen, 2)
	service := func(ctx context.Context, b []byte) ([]byte, error) {
		got <- seen{b, metadata.ValueFromIncomingContext(ctx, "x-keyward-key")}
		_ = grpc.SetTrailer(ctx, metadata.Pairs("x-end", "e"))
		_ = grpc.SetHeader(ctx, metadata.Pairs("x-begin", "b"))
		return answer, nil
	}
	_, c := start(t, Options{Old: odd(t, service), New: odd(t, service)})
	var header, trailer metadata.MD
	out := new(frame)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-keyward-key", "alice")
	err = c.Invoke(ctx, method, &frame{in}, out, grpc.ForceCodecV2(codec{}), grpc.Header(&header), grpc.Trailer(&trailer))
	if err != nil || !bytes.Equal(out.data, answer) || len(header["x-begin"]) != 1 || len(trailer["x-end"]) != 1 {
		t.Errorf("%x %v %v %v", out.data, err, header, trailer)
	}
	for range 2 {
		if s := <-got; !bytes.Equal(s.in, in) || len(s.key) != 1 || s.key[0] != "alice" {
			t.Errorf("a service got %x with %v", s.in, s.key)
		}
	}
}

// A new service that hangs or fails has no effect on callers, and the number of concurrent calls to it is limited.
func TestCallersDoNotWaitForTheNewService(t *testing.T) {
	release := make(chan struct{})
	hangs := odd(t, func(ctx context.Context, _ []byte) ([]byte, error) {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return nil, status.Error(codes.Unavailable, "late")
	})
	m, c := start(t, Options{Old: keyward(t, rules), New: hangs, InFlight: 2, Timeout: time.Hour})
	for i := range 5 {
		if res, err := askFor(t, c, "alice"); err != nil || res.OverallCode != rlsv3.RateLimitResponse_OK {
			t.Fatalf("%d: %v %v", i, res, err)
		}
	}
	close(release)
	m.open.Wait()
	s := m.Totals()
	if s.NotCompared[tooMany] != 3 || s.NotCompared[newFailed] != 2 || s.Old.OK != 5 || s.New.Errors != 2 || s.Compared != 0 {
		t.Errorf("%+v", s)
	}
	if !strings.Contains(s.New.LastError, "late") {
		t.Errorf("last error %q", s.New.LastError)
	}
}

func TestAnErrorOfTheOldServiceIsTheAnswer(t *testing.T) {
	fails := odd(t, func(context.Context, []byte) ([]byte, error) {
		return nil, status.Error(codes.Unknown, "redis is down")
	})
	m, c := start(t, Options{Old: fails, New: keyward(t, rules)})
	if _, err := askFor(t, c, "alice"); status.Code(err) != codes.Unknown || !strings.Contains(err.Error(), "redis is down") {
		t.Errorf("%v", err)
	}
	m.open.Wait()
	if s := m.Totals(); s.NotCompared[oldFailed] != 1 || s.New.OK != 1 {
		t.Errorf("%+v", s)
	}
}

func TestAnswerNewFallsBack(t *testing.T) {
	fails := odd(t, func(context.Context, []byte) ([]byte, error) {
		return nil, status.Error(codes.Unavailable, "not there")
	})
	tight := strings.Replace(rules, "20", "2", 1)
	m, c := start(t, Options{Old: keyward(t, tight), New: fails, AnswerNew: true})
	for i := range 4 {
		if res, err := askFor(t, c, "alice"); err != nil || (res.OverallCode == rlsv3.RateLimitResponse_OVER_LIMIT) != (i >= 2) {
			t.Errorf("%d: %v %v", i, res, err)
		}
	}
	m.open.Wait()
	if s := m.Totals(); s.FellBack != 4 || s.Answers != "new" {
		t.Errorf("%+v", s)
	}
	m, c = start(t, Options{Old: keyward(t, tight), New: keyward(t, rules), AnswerNew: true})
	for range 3 {
		if res, err := askFor(t, c, "alice"); err != nil || res.OverallCode != rlsv3.RateLimitResponse_OK {
			t.Errorf("the answer is not the new service's: %v %v", res, err)
		}
	}
	m.open.Wait()
	if s := m.Totals(); s.FellBack != 0 || s.Old.Admitted != 2 || s.New.Admitted != 3 || s.Ratio != 1.5 {
		t.Errorf("%+v", s)
	}
}

func TestClasses(t *testing.T) {
	for name, c := range map[string]struct {
		old, new string
		before   func(m *Mirror) // after one hit at the new service only
		want     Class
	}{
		"another limit":      {rules, strings.Replace(rules, "20", "21", 1), aged, other},
		"another count":      {rules, rules, aged, other},
		"a window under way": {rules, rules, func(*Mirror) {}, firstWindow},
		"a call was missed":  {rules, rules, func(m *Mirror) { aged(m); m.miss() }, missed},
		"no rule":            {rules, strings.Replace(rules, "api_key", "other", 1), aged, other},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			n := keyward(t, c.new)
			direct, err := grpc.NewClient(n, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer direct.Close()
			if _, err := askFor(t, direct, "alice"); err != nil {
				t.Fatal(err)
			}
			m, front := start(t, Options{Old: keyward(t, c.old), New: n, Log: &log})
			c.before(m)
			if _, err := askFor(t, front, "alice"); err != nil {
				t.Fatal(err)
			}
			m.open.Wait()
			var d logLine
			if err := json.Unmarshal(log.Bytes(), &d); err != nil {
				t.Fatalf("%v: %s", err, log.Bytes())
			}
			if d.Class != c.want || m.Totals().Differences[c.want] != 1 || d.Descriptors[0] != "api_key=alice" || d.Domain != "edge" {
				t.Errorf("%s", log.Bytes())
			}
		})
	}
}

// A call that arrived as a window ended may be counted in either window.
func TestWindowEdge(t *testing.T) {
	m := &Mirror{}
	st := func(left uint32) *rlsv3.RateLimitResponse {
		return &rlsv3.RateLimitResponse{OverallCode: rlsv3.RateLimitResponse_OK, Statuses: []*rlsv3.RateLimitResponse_DescriptorStatus{{
			Code: rlsv3.RateLimitResponse_OK, LimitRemaining: left, CurrentLimit: &rlsv3.RateLimitResponse_RateLimit{RequestsPerUnit: 9, Unit: rlsv3.RateLimitResponse_RateLimit_MINUTE},
		}}}
	}
	end := time.Date(2026, 11, 1, 10, 1, 0, 0, time.UTC).UnixNano()
	for at, want := range map[time.Duration]Class{
		-time.Second: other, -100 * time.Millisecond: windowEdge, 100 * time.Millisecond: windowEdge, time.Second: other,
	} {
		c := &call{begin: end + int64(at), end: end + int64(at)}
		if got := m.class(c, st(8), st(2), []int{0}); got != want {
			t.Errorf("%v: %s, want %s", at, got, want)
		}
	}
	if got := m.class(&call{begin: end - 1e9, end: end - 1e9, concurrent: 6}, st(8), st(2), []int{0}); got != order {
		t.Errorf("6 apart, 6 concurrent: %s", got)
	}
	if got := m.class(&call{begin: end - 1e9, end: end - 1e9, concurrent: 5}, st(8), st(2), []int{0}); got != other {
		t.Errorf("6 apart, 5 concurrent: %s", got)
	}
}

// With many concurrent callers all differences are explained by their order, and the services admit the same number.
func TestOrderExplainsConcurrentCalls(t *testing.T) {
	many := strings.Replace(rules, "20", "300", 1)
	m, c := start(t, Options{Old: keyward(t, many), New: keyward(t, many)})
	aged(m)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 40 {
				if _, err := askFor(t, c, "alice"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	m.open.Wait()
	s := m.Totals()
	if s.Compared != 640 || s.Differences[other] != 0 || s.Old.Admitted != 300 || s.New.Admitted != 300 {
		t.Errorf("%+v", s)
	}
	if s.Same+s.Differences[order] != 640 {
		t.Errorf("same %d, order %d", s.Same, s.Differences[order])
	}
}

// An invalid byte makes a standard gRPC server fail the call. Keyward does not, as docs/differences.md states.
func TestKnownDifferences(t *testing.T) {
	g := grpc.NewServer()
	rlsv3.RegisterRateLimitServiceServer(g, strict{})
	var log bytes.Buffer
	m, c := start(t, Options{Old: serve(t, g), New: keyward(t, rules), Log: &log})
	in, err := proto.Marshal(about("a??b"))
	if err != nil {
		t.Fatal(err)
	}
	in = bytes.Replace(in, []byte("??"), []byte("\xff\xfe"), 1)
	if err := c.Invoke(t.Context(), method, &frame{in}, new(frame), grpc.ForceCodecV2(codec{})); status.Code(err) != codes.Internal {
		t.Errorf("the old service says %v", err)
	}
	m.open.Wait()
	if s := m.Totals(); s.Differences[known] != 1 || !strings.Contains(log.String(), "not UTF-8") {
		t.Errorf("%+v %s", s, log.String())
	}
}

func TestTheLogIsBounded(t *testing.T) {
	var log bytes.Buffer
	m, c := start(t, Options{Old: keyward(t, rules), New: keyward(t, strings.Replace(rules, "20", "21", 1)), Log: &log, LogRate: 1e-9})
	for i := range 10 {
		if _, err := askFor(t, c, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	m.open.Wait()
	if n := strings.Count(log.String(), "\n"); n != 1 || m.Totals().Differences[other] != 10 {
		t.Errorf("%d lines, %+v", n, m.Totals())
	}
}

func TestHealthIsThatOfTheServiceThatAnswers(t *testing.T) {
	g, h := grpc.NewServer(), health.NewServer()
	healthpb.RegisterHealthServer(g, h)
	h.SetServingStatus(healthName, healthpb.HealthCheckResponse_NOT_SERVING)
	m, c := start(t, Options{Old: serve(t, g), New: keyward(t, rules)})
	client := healthpb.NewHealthClient(c)
	res, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: healthName})
	if err != nil || res.Status != healthpb.HealthCheckResponse_NOT_SERVING || m.Healthy(t.Context()) == nil {
		t.Errorf("%v %v", res, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	watch, err := client.Watch(ctx, &healthpb.HealthCheckRequest{Service: healthName})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []healthpb.HealthCheckResponse_ServingStatus{healthpb.HealthCheckResponse_NOT_SERVING, healthpb.HealthCheckResponse_SERVING} {
		if res, err := watch.Recv(); err != nil || res.Status != want {
			t.Fatalf("%v %v, want %v", res, err, want)
		}
		h.SetServingStatus(healthName, healthpb.HealthCheckResponse_SERVING)
	}
	if err := m.Healthy(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "nothing"}); status.Code(err) != codes.NotFound {
		t.Errorf("an unknown service: %v", err)
	}
}

// The latency for a caller: of the old service alone, and of the mirror while the new service answers and hangs.
func BenchmarkAnswer(b *testing.B) {
	in, err := proto.Marshal(about("alice"))
	if err != nil {
		b.Fatal(err)
	}
	hang := make(chan struct{})
	defer close(hang)
	hangs := func() string {
		g := grpc.NewServer(grpc.ForceServerCodecV2(codec{}), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
			select {
			case <-hang:
			case <-s.Context().Done():
			}
			return status.Error(codes.Unavailable, "late")
		}))
		return serve(b, g)
	}
	direct, err := dial(keyward(b, rules), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer direct.Close()
	_, mirrored := start(b, Options{Old: keyward(b, rules), New: keyward(b, rules)})
	_, hanging := start(b, Options{Old: keyward(b, rules), New: hangs(), InFlight: 64})
	for name, c := range map[string]*grpc.ClientConn{"direct": direct, "mirrored": mirrored, "new hangs": hanging} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := c.Invoke(b.Context(), method, &frame{in}, new(frame), grpc.ForceCodecV2(codec{})); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
