package rls

import (
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/credentials"

	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/connguard"
)

const ten = "{domain: d, descriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 10}}]}"

// back returns a request that refunds n hits.
func back(n uint64) *pb.RateLimitRequest {
	return request("d", with(addend(descriptor("k", "v"), n), func(d *common.RateLimitDescriptor) { d.IsNegativeHits = true }))
}

// Hits are refunded for callers that the listener trusts, and for others where it is allowed. A call with refused
// refunds is answered and counted, refunds nothing, and its other requests are charged.
func TestRefundsByListener(t *testing.T) { eachServer(t, testRefundsByListener) }

func testRefundsByListener(t *testing.T, kind serverKind) {
	dir := t.TempDir()
	if err := certs.MakeDemo(dir, certs.DemoOptions{}); err != nil {
		t.Fatal(err)
	}
	listenerTLS := func(files certs.Files) *tls.Config {
		c, err := certs.Server(files, certs.ServerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	member, anybody := certs.DemoFiles(dir, "sidecar"), certs.DemoFiles(dir, "sidecar")
	anybody.CA = ""
	envoy, err := certs.Client(certs.DemoFiles(dir, "envoy"), certs.ClientOptions{ServerName: "localhost"})
	if err != nil {
		t.Fatal(err)
	}
	outside := ownAddress(t)
	callers := map[string]string{"mTLS": outside, "TLS": outside, "all addresses": outside, "from this machine": "127.0.0.1"}
	listeners := map[string]Listener{
		"mTLS":              {Address: "0.0.0.0:0", TLS: listenerTLS(member)},
		"TLS":               {Address: "0.0.0.0:0", TLS: listenerTLS(anybody)},
		"all addresses":     {Address: "0.0.0.0:0"},
		"from this machine": {Address: "0.0.0.0:0"},
		"loopback":          {Address: "127.0.0.1:0"},
		"IPv6's loopback":   {Address: "[::1]:0"},
		"unix socket":       {Address: filepath.Join(dir, "s"), Unix: true},
	}
	for policy, may := range map[string][]string{
		refundsLocal: {"mTLS", "loopback", "IPv6's loopback", "from this machine", "unix socket"}, refundsCertified: {"mTLS"}, refundsAny: slices.Collect(maps.Keys(listeners)),
	} {
		for name, d := range listeners {
			t.Run(fmt.Sprintf("%s %s", policy, name), func(t *testing.T) {
				r := newRig(t, ten)
				a := r.start(t, kind, NewHealthServer(), func(o *StartOptions) {
					o.Listeners, o.HTTP, o.Debug, o.Refunds, o.Guards = []Listener{d}, "", "", policy, connguard.New(r.reg)
				}).Addrs[0]
				target := "unix:" + d.Address
				if tcp, ok := a.(*net.TCPAddr); ok {
					target = tcp.String()
					if host := callers[name]; host != "" {
						target = net.JoinHostPort(host, strconv.Itoa(tcp.Port))
					} else if tcp.IP.IsUnspecified() {
						t.Skip("this machine has no address but loopback")
					}
				}
				creds := credentials.TransportCredentials(nil)
				if d.TLS != nil {
					creds = credentials.NewTLS(envoy)
				}
				conn := dial(t, target, creds)
				client := pb.NewRateLimitServiceClient(conn)
				req := back(4)
				req.Descriptors = append([]*common.RateLimitDescriptor{addend(descriptor("k", "v"), 6)}, req.Descriptors...)
				resp, err := client.ShouldRateLimit(t.Context(), req)
				if err != nil {
					t.Fatal(err)
				}
				want, refused := "OK OK:4 OK:4", 1.0
				if slices.Contains(may, name) {
					want, refused = "OK OK:4 OK:8", 0
				}
				if got := brief(resp); got != want {
					t.Errorf("%s, want %s", got, want)
				}
				if refused > 0 {
					if got := r.metric(t, "keyward_refused_total", negativeHits, "rls"); got != refused {
						t.Errorf("%v refused, want %v", got, refused)
					}
				}
			})
		}
	}
}

// ownAddress returns an address of this machine that is not loopback, or "".
func ownAddress(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && !n.IP.IsLoopback() && n.IP.To4() != nil {
			return n.IP.String()
		}
	}
	return ""
}

// /json refunds hits only where every caller may, and decides nothing for a page of another site.
func TestJSONRefunds(t *testing.T) {
	for policy, want := range map[string]string{refundsLocal: "OK OK:4", refundsCertified: "OK OK:4", refundsAny: "OK OK:8"} {
		r := newRig(t, ten)
		addrs := r.start(t, inlineKind, NewHealthServer(), func(o *StartOptions) { o.Refunds, o.Guards = policy, connguard.New(r.reg) }).Addrs
		spend := `{"domain":"d","descriptors":[{"hitsAddend":"6","entries":[{"key":"k","value":"v"}]}]}`
		if code, body := do(t, "POST", addrs[1], "/json", spend); code != 200 {
			t.Fatalf("%d %s", code, body)
		}
		if code, _ := do(t, "POST", addrs[1], "/json", strings.Replace(spend, `"6"`, `"4","isNegativeHits":true`, 1)); code != 200 {
			t.Errorf("the refund: %d", code)
		}
		if got := brief(r.ask(t, request("d", addend(descriptor("k", "v"), 0)))); got != want {
			t.Errorf("policy %s: %s, want %s", policy, got, want)
		}
		if policy != refundsAny && r.metric(t, "keyward_refused_total", negativeHits, "http") != 1 {
			t.Error("not counted")
		}
		for header, value := range map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"} {
			if code, body := from(t, addrs[1], "/json", spend, header, value); code != 403 {
				t.Errorf("%s %s: %d %s", header, value, code, body)
			}
		}
		if got := brief(r.ask(t, request("d", addend(descriptor("k", "v"), 0)))); got != want {
			t.Errorf("a page of another site has spent: %s, want %s", got, want)
		}
		if n := r.metric(t, "keyward_refused_total", "cross_site", "http"); n != 2 {
			t.Errorf("%v refusals counted", n)
		}
	}
}

// Neither HTTP listener serves a foreign host name, except for health.
func TestHostsOfPorts(t *testing.T) {
	r := newRig(t, basic)
	addrs := r.start(t, inlineKind, NewHealthServer(), func(o *StartOptions) { o.Guards = connguard.New(r.reg) }).Addrs
	for i, path := range map[int]string{1: "/json", 2: "/rlconfig"} {
		if code, body := from(t, addrs[i], path, "", "Host", "evil.example"); code != 421 || !strings.Contains(body, "evil.example") {
			t.Errorf("%s: %d %s", path, code, body)
		}
		if code, _ := from(t, addrs[i], path, "", "Host", "keyward.prod.svc:8080"); code == 421 {
			t.Errorf("%s by a Service's name: %d", path, code)
		}
	}
	if code, _ := from(t, addrs[1], "/healthcheck", "", "Host", "evil.example"); code != 200 {
		t.Errorf("/healthcheck: %d", code)
	}
	if http, debug := r.metric(t, "keyward_refused_total", "host", "http"), r.metric(t, "keyward_refused_total", "host", "debug"); http != 1 || debug != 1 {
		t.Errorf("counted %v and %v", http, debug)
	}
}

// from posts a request with one header.
func from(t *testing.T, a net.Addr, path, body, header, value string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+a.String()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if header == "Host" {
		req.Host = value
	} else {
		req.Header.Set(header, value)
	}
	return roundTrip(t, req)
}
