package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/lab"
)

const hourRules = "domain: app\ndescriptors:\n  - key: k\n    rate_limit: {unit: hour, requests_per_unit: 5}\n"

// rises fails unless the metric grows while do runs, or a moment after.
func rises(t *testing.T, addr, what, name string, labels []string, do func()) {
	t.Helper()
	before := value(metrics(t, addr), name, labels...)
	do()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := lab.Await(ctx, what+" to be counted", func(context.Context) error {
		if now := value(metrics(t, addr), name, labels...); now <= before {
			return fmt.Errorf("%s%v is %v", name, labels, now)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func refusedBy(surface, reason string) []string {
	return []string{"surface", surface, "reason", reason}
}

// credentialsOf are TLS credentials with a certificate of dir that trust the lab's CA.
func credentialsOf(t *testing.T, l *lab.Lab, dir, who string, protos ...string) *tls.Config {
	t.Helper()
	f := certs.Files{CA: l.CertFile("ca", ".crt")}
	if who != "" {
		own := certs.DemoFiles(dir, who)
		f.Cert, f.Key = own.Cert, own.Key
	}
	c, err := certs.Client(f, certs.ClientOptions{ServerName: "localhost", NextProtos: protos})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// expired makes a folder of certificates of the lab's CA that ended yesterday.
func expired(t *testing.T, l *lab.Lab) string {
	t.Helper()
	return issue(t, l, certs.DemoOptions{Lifetime: time.Hour, Now: func() time.Time { return time.Now().Add(-24 * time.Hour) }})
}

// ownCertificate makes a folder of certificates of the lab's CA that carry one more name.
func ownCertificate(t *testing.T, l *lab.Lab, name string) string {
	t.Helper()
	return issue(t, l, certs.DemoOptions{Hosts: []string{name}})
}

func issue(t *testing.T, l *lab.Lab, o certs.DemoOptions) string {
	t.Helper()
	dir := t.TempDir()
	for _, ext := range []string{".crt", ".key"} {
		b, err := os.ReadFile(l.CertFile("ca", ext))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "ca"+ext), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	o.Renew = true
	if err := certs.MakeDemo(dir, o); err != nil {
		t.Fatal(err)
	}
	return dir
}

// handshakeFails dials with TLS 1.3, where a client learns of a refusal when it reads, and wants one.
func handshakeFails(t *testing.T, addr string, c *tls.Config) {
	t.Helper()
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: 5 * time.Second}, "tcp", addr, c)
	if err != nil {
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%s: let in: %v", addr, err)
	}
}

// TestSecurityStrangers knocks with wrong certificates at every port between pods. Each is refused and counted, none disturbs
// the cluster, and a right one is served what its role allows and nothing else.
func TestSecurityStrangers(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": hourRules}, Expect: 2, Args: []string{"--tls-envoy-names", certs.DemoSAN("envoy")}})
	start(t, l, names(2)...)
	s, dir := l.Sidecars[0], certDir(l)
	other, old := t.TempDir(), expired(t, l)
	if err := certs.MakeDemo(other, certs.DemoOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, door := range []struct{ surface, addr, proto, wrong string }{
		{"peer", s.Peer, "keyward-peer", "envoy"}, {"rls_direct", s.Direct, "h2", "xds"}, {"xds", s.XDS, "h2", "xds"},
	} {
		for _, tt := range []struct{ reason, dir, who string }{
			{"no_certificate", dir, ""}, {"authority", other, "sidecar"}, {"expired", old, "sidecar"}, {"name", dir, door.wrong},
		} {
			metric, labels := "keyward_refused_total", refusedBy(door.surface, tt.reason)
			if door.surface == "peer" {
				metric, labels = "keyward_peer_inbound_refused_total", []string{"reason", tt.reason}
			}
			rises(t, s.Metrics, door.surface+" with "+tt.reason, metric, labels, func() {
				handshakeFails(t, door.addr, credentialsOf(t, l, tt.dir, tt.who, door.proto))
			})
		}
	}
	envoyMayOnly(t, l, s)
	handsOff(t, l, s)
	awaitRing(t, l, names(2)...)
	if n := sum(t, l, "keyward_cluster_deaths_total"); n != 0 {
		t.Errorf("%v members lost", n)
	}
}

// envoyMayOnly shows an Envoy's certificate, which may ask on the RLS port and take xDS, and no more.
func envoyMayOnly(t *testing.T, l *lab.Lab, s *lab.Sidecar) {
	t.Helper()
	conn := func(addr string) *grpc.ClientConn {
		c, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(credentialsOf(t, l, certDir(l), "envoy"))))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	direct, xds := conn(s.Direct), conn(s.XDS)
	ask(t, rlsv3.NewRateLimitServiceClient(direct), request("app", 1, "k", "envoy"))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	stream := func(c *grpc.ClientConn) error {
		ads, err := discoveryv3.NewAggregatedDiscoveryServiceClient(c).StreamAggregatedResources(ctx)
		if err == nil {
			err = ads.Send(&discoveryv3.DiscoveryRequest{TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster"})
		}
		if err == nil {
			_, err = ads.Recv()
		}
		return err
	}
	if err := stream(xds); err != nil {
		t.Errorf("xDS: %v", err)
	}
	_, health := healthpb.NewHealthClient(direct).Check(ctx, &healthpb.HealthCheckRequest{})
	_, rateLimit := rlsv3.NewRateLimitServiceClient(xds).ShouldRateLimit(ctx, request("app", 1, "k", "v"))
	for what, err := range map[string]error{"xDS on the RLS port": stream(direct), "health on the RLS port for others": health, "a request on the xDS port": rateLimit} {
		if status.Code(err) != codes.Unimplemented {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// handsOff tries to change something by the port that only shows, and looks at who may use the socket that does.
func handsOff(t *testing.T, l *lab.Lab, s *lab.Sidecar) {
	t.Helper()
	for _, path := range []string{"/drain", "/hot", "/reset", "/cluster", "/metrics", "/v1/counters"} {
		res, err := http.Post("http://"+s.Metrics+path, "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusNotFound && res.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("POST %s: %s", path, res.Status)
		}
	}
	socket := filepath.Join(t.TempDir(), "admin.sock")
	if _, err := l.AddSidecar("admin", "--join=", "--admin", "unix:"+socket); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "the admin socket", func(context.Context) error {
		info, err := os.Stat(socket)
		if err == nil && info.Mode() != os.ModeSocket|0o600 {
			t.Fatalf("the admin socket is %v", info.Mode())
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	a := l.Sidecars[len(l.Sidecars)-1]
	l.Sidecars = l.Sidecars[:len(l.Sidecars)-1]
	if err := a.Stop(15 * time.Second); err != nil {
		t.Error(err)
	}
}

// TestSecurityHTTP sends what no browser and no Prometheus sends to the port that shows.
func TestSecurityHTTP(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": hourRules}})
	start(t, l, "pod-a")
	s := l.Sidecars[0]
	send := func(addr, text string) {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(15 * time.Second))
		_, _ = io.WriteString(c, text)
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %.20q: it is still open", addr, text)
		}
	}
	var sending sync.WaitGroup
	for _, addr := range []string{s.Metrics, s.HTTP, s.Debug} {
		sending.Go(func() { send(addr, "GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ") })
		sending.Go(func() { send(addr, "GET /"+strings.Repeat("u", 1<<20)+" HTTP/1.1\r\n\r\n") })
	}
	sending.Wait()
	for _, surface := range []string{"metrics", "http", "debug"} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if err := lab.Await(ctx, surface+": two refusals", func(context.Context) error { // counted when the server has closed the connection
			if n := value(metrics(t, s.Metrics), "keyward_refused_total", refusedBy(surface, "incomplete")...); n != 2 {
				return fmt.Errorf("%v counted", n)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		cancel()
	}
	if _, err := lab.Get(t.Context(), "http://"+s.Metrics+"/readyz"); err != nil {
		t.Error(err)
	}
}

// TestSecurityRequests asks what is too large, in every way. What could be read is answered OVER_LIMIT, which no Envoy lets
// through, and the rest is refused; either is counted.
func TestSecurityRequests(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": hourRules}})
	start(t, l, "pod-a")
	s := l.Sidecars[0]
	client := dial(t, s.RLS, nil)
	many, deep := request("app", 1, "k", "v"), request("app", 1, "k", "v")
	for range 10_000 {
		many.Descriptors = append(many.Descriptors, many.Descriptors[0])
	}
	for range 100 {
		deep.Descriptors[0].Entries = append(deep.Descriptors[0].Entries, deep.Descriptors[0].Entries[0])
	}
	large := request("app", 1, "k", "v")
	for size := 0; size <= 4<<20; size += 60 << 10 {
		large.Descriptors = append(large.Descriptors, request("app", 1, "k", strings.Repeat("v", 60<<10)).Descriptors[0])
	}
	for bound, r := range map[string]*rlsv3.RateLimitRequest{
		"message": large, "value": request("app", 1, "k", strings.Repeat("v", 64<<10+1)), "descriptors": many, "entries": deep,
	} {
		rises(t, s.Metrics, bound, "keyward_oversize_total", []string{"bound", bound}, func() {
			if res := ask(t, client, r); res.OverallCode != rlsv3.RateLimitResponse_OVER_LIMIT {
				t.Errorf("%s: %v", bound, res.OverallCode)
			}
		})
	}
	rises(t, s.Metrics, "17 MiB", "keyward_refused_total", refusedBy("rls", "question_resourceexhausted"), func() {
		huge := request("app", 1, "k", strings.Repeat("v", 17<<20))
		if res, err := client.ShouldRateLimit(t.Context(), huge); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("17 MiB: %v, %v", res, err)
		}
	})
	if res := ask(t, client, request("app", 1<<32-1, "k", "hits")); res.OverallCode != rlsv3.RateLimitResponse_OVER_LIMIT {
		t.Errorf("2^32-1 hits: %v", res.OverallCode)
	}
	if res := ask(t, client, request("app", 1, "k", "hits")); res.OverallCode != rlsv3.RateLimitResponse_OVER_LIMIT {
		t.Errorf("after 2^32-1 hits: %v", res.OverallCode)
	}
	for i := range 7 { // a value is bytes
		want := rlsv3.RateLimitResponse_OK
		if i >= 5 {
			want = rlsv3.RateLimitResponse_OVER_LIMIT
		}
		if res := ask(t, client, request("app", 1, "k", "nul\x00byte")); res.OverallCode != want {
			t.Errorf("hit %d of a value with NUL: %v", i+1, res.OverallCode)
		}
	}
	if rss, err := s.RSS(); err != nil || rss > 300<<20 {
		t.Errorf("%d MiB, %v", rss>>20, err)
	}
}

func certDir(l *lab.Lab) string { return filepath.Dir(l.CertFile("ca", ".crt")) }
