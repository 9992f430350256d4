package source

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/config"
)

func resourceOf(name, domain string, limit uint32) *rlsconf.RateLimitConfig {
	return &rlsconf.RateLimitConfig{Name: name, Domain: domain, Descriptors: []*rlsconf.RateLimitDescriptor{{
		Key: "k", RateLimit: &rlsconf.RateLimitPolicy{Unit: rlsconf.RateLimitUnit_MINUTE, RequestsPerUnit: limit},
	}}}
}

func watchingXDS(t *testing.T, o XDSOptions) <-chan LoadResult {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	events, done := make(chan LoadResult, 100), make(chan error, 1)
	go func() { done <- WatchXDS(ctx, o, func(e LoadResult) { events <- e }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("WatchXDS: %v", err)
		}
	})
	return events
}

func TestXDS(t *testing.T) {
	c := newControl(t, insecure.NewCredentials())
	c.set("1", resourceOf("ra", "a", 3), resourceOf("rb", "b", 3))
	o := c.quick()
	o.NodeMetadata, o.Headers = map[string]string{"k": "v"}, map[string]string{"x-token": "secret"}
	events := watchingXDS(t, o)

	e := <-events
	if outcome(e) != "a b" || e.Source != FromXDS || e.Detail != c.addr {
		t.Fatalf("first answer: %q %+v", outcome(e), e)
	}
	if got := strings.Join(e.Rules.Dump(), ""); !strings.Contains(got, "a.k: unit=MINUTE requests_per_unit=3") {
		t.Errorf("rules: %s", got)
	}
	c.acked("1")
	hello := c.said("first request", func(r *discovery.DiscoveryRequest) bool { return r.GetResponseNonce() == "" })
	if hello.GetTypeUrl() != resource.RateLimitConfigType || hello.GetNode().GetId() != "node" || hello.GetVersionInfo() != "" ||
		hello.GetNode().GetMetadata().GetFields()["k"].GetStringValue() != "v" {
		t.Errorf("first request: %v", hello)
	}
	c.mu.Lock()
	if got := c.headers.Get("x-token"); fmt.Sprint(got) != "[secret]" {
		t.Errorf("headers: %v", c.headers)
	}
	c.mu.Unlock()

	c.set("2", resourceOf("ra", "a", 3))
	until(t, events, "a")
	c.acked("2")

	// A bad response is rejected with the fault's text and the version that stays in force. The next one is loaded.
	c.set("3", resourceOf("ra", "a", 3), resourceOf("rb", "", 3))
	const fault = "rb: config file cannot have empty domain"
	until(t, events, fault)
	no := c.said("refusal", func(r *discovery.DiscoveryRequest) bool { return r.GetErrorDetail() != nil })
	if no.GetErrorDetail().GetMessage() != fault || no.GetVersionInfo() != "2" || no.GetResponseNonce() == "" {
		t.Errorf("refusal: %v", no)
	}
	c.set("4", resourceOf("rc", "c", 3))
	until(t, events, "c")
	c.acked("4")

	// The server restarts: the first request of the new stream has no version, so the server sends the version in force
	// again.
	c.forget()
	c.stop()
	c.start()
	again := c.said("request after the restart", func(r *discovery.DiscoveryRequest) bool { return r.GetResponseNonce() == "" })
	if again.GetVersionInfo() != "" {
		t.Errorf("after the restart: %v", again)
	}
	until(t, events, "c")
	c.acked("4")
	c.set("5", resourceOf("rd", "d", 3))
	until(t, events, "d")

	c.set("6")
	until(t, events, "")
	c.acked("6")
}

// A control plane that numbers versions from 1 again after a restart has different rules under an old version, either
// when the stream begins or later.
func TestXDSRestartedServerCountsAgain(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("late=%v", late), func(t *testing.T) {
			c := newControl(t, insecure.NewCredentials())
			c.set("1", resourceOf("ra", "old", 3))
			events := watchingXDS(t, c.quick())
			until(t, events, "old")
			c.acked("1")

			c.stop()
			c.forget()
			c.cache = cache.NewSnapshotCache(true, cache.IDHash{}, nil)
			if late {
				c.start()
				c.said("first request", func(r *discovery.DiscoveryRequest) bool { return r.GetResponseNonce() == "" })
				c.set("1", resourceOf("ra", "new", 3))
			} else {
				c.set("1", resourceOf("ra", "new", 3))
				c.start()
			}
			until(t, events, "new")
			c.acked("1")
		})
	}
}

// A fault on a new stream is rejected without a version of the previous stream: the server may have reused that number.
func TestXDSRefusalOnNewStream(t *testing.T) {
	c := newControl(t, insecure.NewCredentials())
	c.set("1", resourceOf("ra", "a", 3))
	events := watchingXDS(t, c.quick())
	until(t, events, "a")
	c.acked("1")
	c.stop()
	c.forget()
	c.cache = cache.NewSnapshotCache(true, cache.IDHash{}, nil)
	c.set("1", resourceOf("ra", "", 3))
	c.start()
	no := c.said("refusal", func(r *discovery.DiscoveryRequest) bool { return r.GetErrorDetail() != nil })
	if no.GetVersionInfo() != "" {
		t.Errorf("refusal: %v", no)
	}
}

// If several resources add to one domain, their order decides which wildcard comes first, and servers send them in any
// order.
func TestXDSOrder(t *testing.T) {
	load := func(resources ...*rlsconf.RateLimitConfig) string {
		w := &xdsWatch{o: XDSOptions{Config: func() config.Options { return config.Options{MergeDomains: true} }}.withDefaults()}
		answer := &discovery.DiscoveryResponse{TypeUrl: rateLimitConfigType}
		for _, r := range resources {
			answer.Resources = append(answer.Resources, mustAny(t, r))
		}
		rules, err := w.load(answer)
		if err != nil {
			t.Fatal(err)
		}
		return Hex(rules.Hash())
	}
	a, b := resourceOf("a", "x", 1), resourceOf("b", "x", 2)
	a.Descriptors[0].Value, b.Descriptors[0].Value = "v*", "*v"
	if one, other := load(a, b), load(b, a); one != other {
		t.Errorf("versions %s and %s", one, other)
	}
}

// The client retries if a server is not running yet, or does not support ADS.
func TestXDSWaitsForServer(t *testing.T) {
	c := newControl(t, insecure.NewCredentials())
	c.stop()
	events := watchingXDS(t, c.quick())
	l, err := net.Listen("tcp", c.addr)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{}, 1000)
	other := grpc.NewServer(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
		asked <- struct{}{}
		return fmt.Errorf("no such service")
	}))
	done := make(chan struct{})
	go func() { defer close(done); other.Serve(l) }()
	for range 3 {
		<-asked
	}
	other.Stop()
	<-done
	c.set("1", resourceOf("ra", "a", 3))
	c.start()
	until(t, events, "a")
}

func TestXDSMessageSize(t *testing.T) {
	c := newControl(t, insecure.NewCredentials())
	big := resourceOf("ra", "a", 3)
	big.Descriptors[0].Value = strings.Repeat("x", 5<<20)
	c.set("1", big)
	o := c.quick()
	o.MaxMessage = 6 << 20
	until(t, watchingXDS(t, o), "a")
}

// newTLSControl returns a control that serves domain a with the demo certificates of dir, and a member's certificates.
func newTLSControl(t *testing.T, dir string) (*control, certs.Files) {
	t.Helper()
	server, err := certs.Server(certs.DemoFiles(dir, "xds"), certs.ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c := newControl(t, credentials.NewTLS(server))
	c.set("1", resourceOf("ra", "a", 3))
	return c, certs.DemoFiles(dir, "sidecar")
}

func TestXDSOverTLS(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	for _, d := range []string{dir, elsewhere} {
		if err := certs.MakeDemo(d, certs.DemoOptions{Hosts: []string{"xds.example"}}); err != nil {
			t.Fatal(err)
		}
	}
	c, member := newTLSControl(t, dir)
	_, port, _ := net.SplitHostPort(c.addr)
	tests := []struct {
		name  string
		alter func(*XDSOptions)
		good  bool
	}{
		{"by host", func(*XDSOptions) {}, true},
		{"by the name that is asked for", func(o *XDSOptions) { o.ServerName = "xds.example" }, true},
		{"by its URI", func(o *XDSOptions) { o.ServerName = certs.DemoSAN("xds") }, true},
		{"by address", func(o *XDSOptions) { o.Server = "127.0.0.1:" + port }, true},
		{"by address, with a resolver's name", func(o *XDSOptions) { o.Server = "passthrough:///127.0.0.1:" + port }, true},
		{"by another name", func(o *XDSOptions) { o.ServerName = "other.example" }, false},
		{"without a certificate", func(o *XDSOptions) { o.Files = certs.Files{CA: member.CA} }, false},
		{"of another CA", func(o *XDSOptions) { o.Files.CA = certs.DemoFiles(elsewhere, "xds").CA }, false},
		{"without TLS", func(o *XDSOptions) { o.TLS = false }, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := c.quick()
			o.TLS, o.Files = true, member
			tt.alter(&o)
			if tt.good {
				until(t, watchingXDS(t, o), "a")
				return
			}
			o = o.withDefaults()
			creds, err := o.credentials()
			if err != nil {
				t.Fatal(err)
			}
			conn, err := o.dial(creds)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			w := &xdsWatch{o: o, client: discovery.NewAggregatedDiscoveryServiceClient(conn), sink: func(e LoadResult) { t.Errorf("got %q", outcome(e)) }}
			if answers, err := w.stream(ctx); answers != 0 || err == nil || ctx.Err() != nil {
				t.Errorf("%d answers, error %v", answers, err)
			}
		})
	}
}

// Certificate files that are missing or incomplete are reported once, until they are valid. Without TLS no file is
// read.
func TestXDSFilesThatComeLater(t *testing.T) {
	dir, volume := t.TempDir(), t.TempDir()
	if err := certs.MakeDemo(dir, certs.DemoOptions{}); err != nil {
		t.Fatal(err)
	}
	c, member := newTLSControl(t, dir)
	o := c.quick()
	o.TLS, o.Files = true, certs.Files{Cert: filepath.Join(volume, "tls.crt"), Key: filepath.Join(volume, "tls.key"), CA: filepath.Join(volume, "ca.crt")}
	events := watchingXDS(t, o)
	for _, f := range []struct{ from, to string }{{member.Cert, o.Files.Cert}, {member.Key, o.Files.Key}, {member.CA, o.Files.CA}} {
		e := <-events
		if e.Err == nil || !strings.Contains(e.Err.Error(), f.to) || e.Source != FromXDS || e.Detail != c.addr {
			t.Fatalf("without %s: %+v", f.to, e)
		}
		text, err := os.ReadFile(f.from)
		if err != nil {
			t.Fatal(err)
		}
		put(t, f.to+"_tmp", string(text))
		if err := os.Rename(f.to+"_tmp", f.to); err != nil {
			t.Fatal(err)
		}
	}
	until(t, events, "a")

	plain := newControl(t, insecure.NewCredentials())
	plain.set("1", resourceOf("ra", "b", 3))
	p := plain.quick()
	p.Files = certs.Files{Cert: "/no/tls.crt", Key: "/no/tls.key", CA: "/no/ca.crt"}
	until(t, watchingXDS(t, p), "b")
}

func mustAny(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}
