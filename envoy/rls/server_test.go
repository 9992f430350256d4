package rls

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/keyward/keyward/envoy/internal/names"
	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/owner"
)

func TestGRPC(t *testing.T) { eachServer(t, testGRPC) }

func testGRPC(t *testing.T, kind serverKind) {
	r := newRig(t, basic)
	s := r.start(t, kind, NewHealthServer())
	client := pb.NewRateLimitServiceClient(dial(t, s.Addrs[0].String(), nil))
	ctx := t.Context()
	for i := range 3 {
		resp, err := client.ShouldRateLimit(ctx, request("basic", descriptor("key1", "alice"), descriptor("free", "v")))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := brief(resp), fmt.Sprintf("OK OK:%d OK", 49-i); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	for want, req := range map[string]*pb.RateLimitRequest{
		"rate limit domain must not be empty":          request("", descriptor("k", "v")),
		"rate limit descriptor list must not be empty": request("basic"),
	} {
		_, err := client.ShouldRateLimit(ctx, req)
		if st := status.Convert(err); st.Code() != codes.Unknown || st.Message() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	keyed := metadata.AppendToOutgoingContext(ctx, names.KeyHeader, "alice")
	if _, err := client.ShouldRateLimit(keyed, request("basic", descriptor("key1", "alice"))); err != nil {
		t.Fatal(err)
	}
	if got := r.metric(t, "keyward_direct_total"); got != 1 {
		t.Errorf("keyward_direct_total %v", got)
	}
	if got := r.stats.Counter("ratelimit_server.ShouldRateLimit.total_requests").Value(); got != 6 {
		t.Errorf("%d requests counted", got)
	}
}

func TestCallTimeout(t *testing.T) { eachServer(t, testCallTimeout) }

func testCallTimeout(t *testing.T, kind serverKind) {
	r := newRig(t, basic)
	client := pb.NewRateLimitServiceClient(dial(t, r.start(t, kind, NewHealthServer()).Addrs[0].String(), nil))
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	if _, err := client.ShouldRateLimit(ctx, request("basic", descriptor("key1", "v"))); err != nil {
		t.Fatal(err)
	}
	got := time.Unix(0, r.lone.deadline.Load())
	if low, high := begin.Add(35*time.Minute), time.Now().Add(36*time.Minute+time.Second); got.Before(low) || got.After(high) {
		t.Errorf("deadline %v is not 60 %% of the caller's hour from %v", got, begin)
	}
}

// Envoy sends the same grpc-timeout with its second attempt, but waits for less: the attempt's timeout applies.
func TestTryTimeout(t *testing.T) { eachServer(t, testTryTimeout) }

func testTryTimeout(t *testing.T, kind serverKind) {
	for _, tt := range []struct {
		timeout time.Duration
		millis  string
		want    time.Duration
	}{
		{time.Second, "400", 400 * time.Millisecond}, {time.Second, "4000", time.Second}, {0, "40", 40 * time.Millisecond},
		{time.Second, "", time.Second}, {time.Second, "-1", time.Second}, {time.Second, "0", time.Second}, {0, "1e9", 0},
	} {
		if got := minTimeout(tt.timeout, tt.millis); got != tt.want {
			t.Errorf("shorter(%v, %q) = %v, want %v", tt.timeout, tt.millis, got, tt.want)
		}
	}
	r := newRig(t, basic)
	client := pb.NewRateLimitServiceClient(dial(t, r.start(t, kind, NewHealthServer()).Addrs[0].String(), nil))
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), attemptTimeoutHeader, "60000"), time.Hour)
	defer cancel()
	if _, err := client.ShouldRateLimit(ctx, request("basic", descriptor("key1", "v"))); err != nil {
		t.Fatal(err)
	}
	if got := time.Unix(0, r.lone.deadline.Load()); got.After(time.Now().Add(36 * time.Second)) {
		t.Errorf("deadline %v is not 60 %% of the try's minute", got)
	}
}

// Hostile input gets a response or a clear error. The server continues, and nothing is admitted uncounted.
func TestHostile(t *testing.T) { eachServer(t, testHostile) }

func testHostile(t *testing.T, kind serverKind) {
	r := newRig(t, basic)
	conn := dial(t, r.start(t, kind, NewHealthServer()).Addrs[0].String(), nil)
	one := func(value string) []byte {
		b := encodeRequest(t, request("basic", descriptor("one", strings.Repeat("x", len(value)))))
		return bytes.Replace(b, bytes.Repeat([]byte("x"), len(value)), []byte(value), 1)
	}
	flood, heavy := request("basic"), request("basic")
	for range 10_000 {
		flood.Descriptors = append(flood.Descriptors, descriptor("one", "v"))
	}
	for range 200 {
		heavy.Descriptors = append(heavy.Descriptors, descriptor("one", strings.Repeat("v", 64<<10)))
	}
	sum := request("basic", addend(descriptor("one", "sum"), math.MaxUint64-1), addend(descriptor("one", "sum"), math.MaxUint64-1))
	for _, tt := range []struct {
		name    string
		message []byte
		want    string // of the second time
	}{
		{"bytes that are no UTF-8", one("a\xff\xfeb"), "OVER OVER:0"},
		{"a value of 64 KiB", one(strings.Repeat("v", 64<<10)), "OVER OVER:0"},
		{"a value beyond", one(strings.Repeat("v", 64<<10+1)), "OVER OVER"},
		{"10,000 descriptors", encodeRequest(t, flood), "OVER" + strings.Repeat(" OVER", 256)},
		{"13 MB", encodeRequest(t, heavy), "OVER"},
		{"the largest addend", encodeRequest(t, request("basic", addend(descriptor("one", "max"), math.MaxUint64))), "OVER OVER:0"},
		{"addends beyond 64 bits", encodeRequest(t, sum), "OVER OVER:0 OVER:0"},
		{"an entry of nothing", encodeRequest(t, request("basic", descriptor("", ""), descriptor("one", ""))), "OVER OK OVER:0"},
		{"garbage", bytes.Repeat([]byte{0xfe}, 100), codes.Internal.String()},
		{"nothing", nil, codes.Unknown.String()},
		{"cut short", one("v")[:10], codes.Internal.String()},
		{"no unit", encodeRequest(t, request("basic", override(descriptor("one", "u"), 1, typev3.RateLimitUnit_UNKNOWN))), codes.Unknown.String()},
		{"larger than gRPC accepts", make([]byte, 17<<20), codes.ResourceExhausted.String()},
	} {
		var got string
		for range 2 {
			resp, err := send(t.Context(), conn, tt.message)
			got = brief(resp)
			if err != nil {
				got = status.Code(err).String()
			}
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestExactUnderConcurrency(t *testing.T) { eachServer(t, testExactUnderConcurrency) }

func testExactUnderConcurrency(t *testing.T, kind serverKind) {
	r := newRig(t, "{domain: d, descriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 300}}]}")
	addr := r.start(t, kind, NewHealthServer()).Addrs[0].String()
	var admitted [4]int
	var callers sync.WaitGroup
	for i := range admitted {
		client := pb.NewRateLimitServiceClient(dial(t, addr, nil))
		callers.Go(func() {
			for range 100 {
				resp, err := client.ShouldRateLimit(t.Context(), request("d", descriptor("k", "v")))
				if err != nil {
					t.Error(err)
					return
				}
				if resp.OverallCode == pb.RateLimitResponse_OK {
					admitted[i]++
				}
			}
		})
	}
	callers.Wait()
	sum := 0
	for _, n := range admitted {
		sum += n
	}
	if sum != 300 {
		t.Errorf("admitted %d of a limit of 300", sum)
	}
}

func TestUnixSocket(t *testing.T) { eachServer(t, testUnixSocket) }

func testUnixSocket(t *testing.T, kind serverKind) {
	path := filepath.Join(t.TempDir(), "rls.sock")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	_ = stale.Close()
	only := func(o *StartOptions) {
		o.Listeners, o.HTTP, o.Debug = []Listener{{Address: path, Unix: true}}, "", ""
	}
	r := newRig(t, basic)
	r.start(t, kind, NewHealthServer(), only)
	client := pb.NewRateLimitServiceClient(dial(t, "unix:"+path, nil))
	if _, err := client.ShouldRateLimit(t.Context(), request("basic", descriptor("key1", "v"))); err != nil {
		t.Error(err)
	}
	o := StartOptions{Service: r.Service, Health: NewHealthServer()}
	only(&o)
	if _, err := Start(o); err == nil {
		t.Error("took a socket from one who listens on it")
	}
}

func TestStartReportsAllFaults(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	a := busy.Addr().String()
	_, err = Start(StartOptions{Service: New(Options{Stats: newRig(t, "").stats}), Health: NewHealthServer(), Listeners: []Listener{{Address: a}}, HTTP: a, Debug: "nonsense"})
	for _, want := range []string{"listen for gRPC", "listen for HTTP", "listen for debug"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v lacks %q", err, want)
		}
	}
}

// Two listeners: plaintext with all services, and mTLS with rate limiting only.
func TestTLS(t *testing.T) { eachServer(t, testTLS) }

func testTLS(t *testing.T, kind serverKind) {
	dir := t.TempDir()
	if err := certs.MakeDemo(dir, certs.DemoOptions{}); err != nil {
		t.Fatal(err)
	}
	server, err := certs.Server(certs.DemoFiles(dir, "sidecar"), certs.ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, basic)
	s := r.start(t, kind, NewHealthServer(), func(o *StartOptions) {
		o.Listeners = append(o.Listeners, Listener{Address: "127.0.0.1:0", TLS: server, NoHealth: true})
	})
	secure := s.Addrs[1].String()
	trusted, err := certs.Client(certs.DemoFiles(dir, "envoy"), certs.ClientOptions{ServerName: "localhost"})
	if err != nil {
		t.Fatal(err)
	}
	nameless, err := certs.Client(certs.Files{CA: filepath.Join(dir, "ca.crt")}, certs.ClientOptions{ServerName: "localhost"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		creds credentials.TransportCredentials
		want  codes.Code
	}{
		{"a certificate", credentials.NewTLS(trusted), codes.OK},
		{"no certificate", credentials.NewTLS(nameless), codes.Unavailable},
		{"no TLS", nil, codes.Unavailable},
	} {
		conn := dial(t, secure, tt.creds)
		if _, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request("basic", descriptor("key1", "v"))); status.Code(err) != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
	health := healthpb.NewHealthClient(dial(t, secure, credentials.NewTLS(trusted)))
	if _, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("health on the listener without health: %v", err)
	}
}

// A call in flight completes when the server stops. One that hangs is cut off.
func TestStop(t *testing.T) { eachServer(t, testStop) }

func testStop(t *testing.T, kind serverKind) {
	for _, hangs := range []bool{false, true} {
		r := newRig(t, basic)
		in, out := make(chan bool), make(chan bool)
		r.lone.after = func([]owner.Request, []owner.Result) { in <- true; <-out }
		s := r.start(t, kind, NewHealthServer())
		client := pb.NewRateLimitServiceClient(dial(t, s.Addrs[0].String(), nil))
		result := make(chan error)
		go func() {
			_, err := client.ShouldRateLimit(context.Background(), request("basic", descriptor("key1", "v")))
			result <- err
		}()
		<-in
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan bool)
		go func() { s.Stop(ctx); close(stopped) }()
		if hangs {
			cancel()
			if err := <-result; err == nil {
				t.Error("a call that was cut off succeeded")
			}
			close(out)
		} else {
			close(out)
			if err := <-result; err != nil {
				t.Error(err)
			}
		}
		<-stopped
		cancel()
	}
}

// Fuzz: for any input, the service returns an error or a status for every descriptor.
func FuzzService(f *testing.F) {
	for _, b := range decodeSeeds(f) {
		f.Add(b, "key")
	}
	r := newRig(f, basic, func(o *Options, sw *Switches) {
		sw.DynamicMetadata, sw.Headers = true, true
		o.Limits = RequestLimits{Message: 1 << 10, Value: 64, Descriptors: 8, Entries: 4}
	})
	for _, req := range []*pb.RateLimitRequest{
		request("basic", descriptor("key1", "v"), descriptor("free", ""), addend(descriptor("zero", "v"), math.MaxUint64)),
		request("basic", override(descriptor("one", "v"), 3, typev3.RateLimitUnit_YEAR), override(descriptor("one", "v"), 3, 0)),
	} {
		f.Add(encodeRequest(f, req), "")
	}
	f.Fuzz(func(t *testing.T, message []byte, key string) {
		resp, err := r.tryWire(t, message, Caller{Key: key})
		var req RateLimitRequest
		switch bad := req.Decode(message, r.limits); {
		case bad != nil:
			if !errors.Is(err, errMalformed) {
				t.Errorf("malformed: %v", err)
			}
		case err != nil:
			if req.Excess != within {
				t.Errorf("an error for a request beyond the bounds: %v", err)
			}
		case len(resp.Statuses) != len(req.Descriptors):
			t.Errorf("%d statuses for %d descriptors", len(resp.Statuses), len(req.Descriptors))
		case req.Excess != within && resp.OverallCode != pb.RateLimitResponse_OVER_LIMIT:
			t.Errorf("a request beyond the bounds is let through")
		}
	})
}
