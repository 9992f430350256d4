package e2e

import (
	"context"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/internal/lab"
)

// giveBack is a request that gives hits back.
func giveBack(hits uint64, kv ...string) *rlsv3.RateLimitRequest {
	r := request("another", 1, kv...)
	r.Descriptors[0].HitsAddend, r.Descriptors[0].IsNegativeHits = wrapperspb.UInt64(hits), true
	return r
}

// otherAddress is an address of this machine that is not loopback.
func otherAddress(t *testing.T) string {
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
	const spare = "192.0.2.77" // RFC 5737; in a network namespace of the test's own
	if out, err := exec.CommandContext(t.Context(), "ip", "address", "add", spare+"/32", "dev", "lo").CombinedOutput(); err != nil {
		t.Skipf("this machine has no address but loopback, and gets none: %v %s", err, out)
	}
	return spare
}

// TestStrangersGiveNothingBack: a port that is open to other pods without certificates takes their requests, and no refunds; the
// pod's own Envoy on loopback may give hits back, as it can with the original.
func TestStrangersGiveNothingBack(t *testing.T) {
	for from, kept := range map[string]bool{otherAddress(t): true, "127.0.0.1": false} {
		_, addr, httpAddr, _, prom := ratelimit(t, "GRPC_HOST=0.0.0.0")
		_, port, _ := strings.Cut(addr, ":")
		host := net.JoinHostPort(from, port)
		client := dial(t, host, nil)
		left := func() uint32 { return ask(t, client, peek("another", "key2", "x")).Statuses[0].LimitRemaining }
		full := left()
		ask(t, client, request("another", 3, "key2", "x"))
		ask(t, client, giveBack(2, "key2", "x"))
		want := full - 1
		if kept {
			want = full - 3
		}
		if got := left(); got != want {
			t.Errorf("%s: %d left of %d, want %d", host, got, full, want)
		}
		code, body := post(t, httpAddr, `{"domain":"another","descriptors":[{"hitsAddend":"1","isNegativeHits":true,"entries":[{"key":"key2","value":"x"}]}]}`)
		if got := left(); code != 200 || got != want {
			t.Errorf("/json: %d %s, %d left, want %d", code, body, got, want)
		}
		calls := map[bool]float64{true: 1, false: 0}[kept]
		fam := metrics(t, prom)
		if n := value(fam, "keyward_refused_total", "surface", "rls", "reason", "negative_hits"); n != calls {
			t.Errorf("%s: %v refused, want %v", host, n, calls)
		}
		if n := value(fam, "keyward_refused_total", "surface", "http", "reason", "negative_hits"); n != 1 {
			t.Errorf("%s: %v refused at /json", host, n)
		}
	}
}

// TestBrowsersOfOthers: a page of another site neither reads a port by a name of its own nor spends by /json.
func TestBrowsersOfOthers(t *testing.T) {
	_, addr, httpAddr, debug, prom := ratelimit(t)
	client := dial(t, addr, nil)
	before := ask(t, client, peek("another", "key2", "x")).Statuses[0].LimitRemaining
	const spend = `{"domain":"another","descriptors":[{"entries":[{"key":"key2","value":"x"}]}]}`
	for _, tt := range []struct {
		addr, path, header, value, reason, surface string
		want                                       int
	}{
		{prom, "/v1/self", "Host", "evil.example", "host", "metrics", 421},
		{prom, "/metrics", "Host", "evil.example:9090", "host", "metrics", 421},
		{httpAddr, "/json", "Host", "evil.example", "host", "http", 421},
		{debug, "/rlconfig", "Host", "evil.example", "host", "debug", 421},
		{httpAddr, "/json", "Origin", "https://evil.example", "cross_site", "http", 403},
		{httpAddr, "/json", "Sec-Fetch-Site", "cross-site", "cross_site", "http", 403},
	} {
		was := value(metrics(t, prom), "keyward_refused_total", "surface", tt.surface, "reason", tt.reason)
		if code, body := post(t, tt.addr+tt.path, spend, tt.header, tt.value); code != tt.want {
			t.Errorf("%+v: %d %s", tt, code, body)
		}
		if n := value(metrics(t, prom), "keyward_refused_total", "surface", tt.surface, "reason", tt.reason) - was; n != 1 {
			t.Errorf("%+v: counted %v", tt, n)
		}
	}
	if after := ask(t, client, peek("another", "key2", "x")).Statuses[0].LimitRemaining; after != before {
		t.Errorf("%d left, %d before", after, before)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := lab.Get(ctx, "http://"+prom+"/v1/self"); err != nil {
		t.Error(err)
	}
}

// TestCallersThatAreAllowed: what the flags allow is done.
func TestCallersThatAreAllowed(t *testing.T) {
	_, addr, httpAddr, _, prom := ratelimit(t, "GRPC_HOST=0.0.0.0", "KEYWARD_ALLOW_NEGATIVE_HITS=any", "KEYWARD_ALLOWED_HOSTS=*.example.org,keyward.example")
	client := dial(t, addr, nil)
	full := ask(t, client, peek("another", "key2", "x")).Statuses[0].LimitRemaining
	ask(t, client, request("another", 3, "key2", "x"))
	ask(t, client, giveBack(2, "key2", "x"))
	code, body := post(t, httpAddr, `{"domain":"another","descriptors":[{"hitsAddend":"1","isNegativeHits":true,"entries":[{"key":"key2","value":"x"}]}]}`)
	if left := ask(t, client, peek("another", "key2", "x")).Statuses[0].LimitRemaining; code != 200 || left != full {
		t.Errorf("%d %s, %d left of %d", code, body, left, full)
	}
	for host, want := range map[string]int{"keyward.example": 200, "a.example.org:9090": 200, "evil.example": 421} {
		if code, body := post(t, prom+"/v1/self", "", "Host", host); code != want {
			t.Errorf("%s: %d %.200s", host, code, body)
		}
	}
}

// post sends a body to an address, to /json unless it names another path, with one header set, and says what came of it.
func post(t *testing.T, to, body string, header ...string) (int, string) {
	t.Helper()
	if !strings.Contains(to, "/") {
		to += "/json"
	}
	method := http.MethodPost
	if !strings.HasSuffix(to, "/json") {
		method = http.MethodGet
	}
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+to, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if len(header) == 2 {
		r.Header.Set(header[0], header[1])
		if header[0] == "Host" {
			r.Host = header[1]
		}
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}
