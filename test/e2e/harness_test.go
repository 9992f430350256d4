// Package e2e tests the binaries as black boxes: real processes, real sockets, a real Envoy.
package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/keyward/keyward/internal/lab"
)

// bin is where the binaries are; `make build` put them there.
func bin(t testing.TB) string {
	t.Helper()
	dir, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range []string{"sidecar", "xds", "keyward", "ratelimit"} {
		if _, err := os.Stat(filepath.Join(dir, b)); err != nil {
			t.Fatalf("%v: run `make build` first", err)
		}
	}
	return dir
}

// envoyBinary is the Envoy under test.
func envoyBinary(t testing.TB) string {
	t.Helper()
	if p := os.Getenv("ENVOY_BIN"); p != "" {
		return p
	}
	p, err := exec.LookPath("envoy")
	if err != nil {
		t.Fatal("no Envoy: run `make e2e`, set ENVOY_BIN or put envoy on PATH")
	}
	return p
}

func init() { lab.ReservePorts = true } // tests of several processes run side by side

// long reports whether the tests may take their time, as `make deep` lets them.
func long() bool { return os.Getenv("KEYWARD_LONG") != "" }

// newLab makes a lab that is stopped at the end, and whose logs are shown when the test fails.
func newLab(t testing.TB, o lab.Options) *lab.Lab {
	t.Helper()
	o.Dir, o.Bin = tempDir(t), bin(t)
	l, err := lab.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.StopTogether(); err != nil {
			t.Error(err)
		}
		logs, _ := filepath.Glob(filepath.Join(o.Dir, "log", "*.log"))
		for _, f := range logs {
			b, _ := os.ReadFile(f)
			if bytes.Contains(b, []byte("panic:")) || bytes.Contains(b, []byte("DATA RACE")) || bytes.Contains(b, []byte("fatal error:")) {
				t.Errorf("%s panicked:\n%s", filepath.Base(f), tail(b, 6000))
			} else if t.Failed() {
				t.Logf("%s:\n%s", filepath.Base(f), tail(b, 12000))
			}
		}
	})
	return l
}

// tempDir is a folder that goes with the test, also when it is killed.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := lab.TempDir("keyward-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func tail(b []byte, n int) []byte { return b[max(0, len(b)-n):] }

// start starts named sidecars and waits until they agree and are ready.
func start(t testing.TB, l *lab.Lab, names ...string) {
	t.Helper()
	for _, n := range names {
		if _, err := l.AddSidecar(n); err != nil {
			t.Fatal(err)
		}
	}
	awaitRing(t, l, names...)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, s := range l.Sidecars {
		if err := lab.Await(ctx, s.Name+" to be ready", func(ctx context.Context) error {
			_, err := lab.Get(ctx, "http://"+s.Metrics+"/readyz")
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
}

func awaitRing(t testing.TB, l *lab.Lab, names ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	if err := l.AwaitRing(ctx, names...); err != nil {
		t.Fatal(err)
	}
}

// names is n member names in the order of the ring's list.
func names(n int) []string {
	s := make([]string, n)
	for i := range s {
		s[i] = fmt.Sprintf("pod-%c", 'a'+i)
	}
	return s
}

// upstream is the application behind Envoy; it counts what reaches it.
type upstream struct {
	addr  string
	calls atomic.Int64
}

func startUpstream(t testing.TB) *upstream {
	t.Helper()
	u := &upstream{}
	u.addr = startHandler(t, func(w http.ResponseWriter, _ *http.Request) {
		u.calls.Add(1)
		_, _ = io.WriteString(w, "ok")
	})
	return u
}

// startHandler serves HTTP until the test ends, and returns the address.
func startHandler(t testing.TB, serve http.HandlerFunc) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: serve}
	go func() { _ = srv.Serve(ln) }()
	t.Cleanup(func() { srv.Close() })
	return ln.Addr().String()
}

// addEnvoy starts an Envoy and waits until it knows all members.
func addEnvoy(t testing.TB, l *lab.Lab, o lab.EnvoyOptions, cluster string, members int) *lab.Envoy {
	t.Helper()
	if o.Path == "" {
		o.Path = envoyBinary(t)
	}
	if o.Name == "" {
		o.Name = "envoy"
	}
	e, err := l.AddEnvoy(o)
	if err != nil {
		t.Fatal(err)
	}
	awaitEnvoy(t, e, cluster, members)
	return e
}

// misrouted returns how many requests another member than the owner got, without those that Envoy sent again. It does so if the
// owner answers later than one of its attempts may take, as on a busy machine.
func misrouted(t testing.TB, l *lab.Lab, e *lab.Envoy) float64 {
	t.Helper()
	retries, err := e.Stat(t.Context(), "cluster.keyward.upstream_rq_retry")
	if err != nil {
		t.Fatal(err)
	}
	return max(0, sum(t, l, "keyward_misrouted_total")-retries)
}

// ownerDirect starts xDS and an Envoy that asks each key's owner, for the lab's sidecars.
func ownerDirect(t testing.TB, l *lab.Lab, envoy string, args ...string) (*lab.XDSServer, *lab.Envoy) {
	t.Helper()
	return ownerDirectWithin(t, l, "2s", envoy, args...) // see startXDS
}

// ownerDirectWithin is ownerDirect with an Envoy that asks the successor when it has no connection to the owner after that time.
func ownerDirectWithin(t testing.TB, l *lab.Lab, connect, envoy string, args ...string) (*lab.XDSServer, *lab.Envoy) {
	t.Helper()
	xds, err := l.AddXDS("xds", "--envoy-connect-timeout", connect)
	if err != nil {
		t.Fatal(err)
	}
	members := make([]string, len(l.Sidecars))
	for i, s := range l.Sidecars {
		members[i] = s.Name
	}
	awaitRing(t, l, members...)
	return xds, addEnvoy(t, l, lab.EnvoyOptions{
		Path: envoy, Shape: "owner-direct", XDS: xds.Addr, Upstream: startUpstream(t).addr,
		Args: append([]string{"--from", "api_key=header:x-api-key"}, args...),
	}, "keyward", len(members))
}

func awaitEnvoy(t testing.TB, e *lab.Envoy, cluster string, members int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := e.Await(ctx, cluster, members); err != nil {
		t.Fatal(err)
	}
}

// answer is the result of one request through Envoy.
type answer struct {
	key    string
	status int
	err    error
}

// sendKeys sends one request a key through Envoy, from several connections at once.
func sendKeys(envoy string, keys []string, workers int) []answer {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: workers}}
	defer client.CloseIdleConnections()
	answers := make([]answer, len(keys))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(keys) {
					return
				}
				answers[i] = send(client, envoy, keys[i])
			}
		})
	}
	wg.Wait()
	return answers
}

func send(client *http.Client, envoy, key string) answer {
	req, err := http.NewRequest(http.MethodGet, "http://"+envoy+"/", nil)
	if err != nil {
		return answer{key: key, err: err}
	}
	req.Header["x-api-key"] = []string{key}
	res, err := client.Do(req)
	if err != nil {
		return answer{key: key, err: err}
	}
	_, _ = io.Copy(io.Discard, res.Body)
	res.Body.Close()
	return answer{key: key, status: res.StatusCode}
}

// tally counts answers by status; errors count as status 0.
func tally(answers []answer) map[int]int {
	n := map[int]int{}
	for _, a := range answers {
		n[a.status]++
	}
	return n
}

// owners asks the operators' tool who owns each key.
func owners(t testing.TB, l *lab.Lab, members []string, keys []string) map[string]string {
	t.Helper()
	owner := make(map[string]string, len(keys))
	for chunk := range chunks(keys, 2000) {
		args := append([]string{"ring", "owner", "--members", strings.Join(members, ",")}, chunk...)
		out, err := exec.Command(filepath.Join(l.Bin, "keyward"), args...).Output()
		if err != nil {
			t.Fatalf("keyward ring owner: %v", err)
		}
		for line := range strings.Lines(string(out)) {
			k, o, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
			if !ok {
				t.Fatalf("keyward ring owner printed %q", line)
			}
			owner[k] = o
		}
	}
	return owner
}

func chunks(s []string, n int) func(func([]string) bool) {
	return func(yield func([]string) bool) {
		for len(s) > 0 {
			k := min(n, len(s))
			if !yield(s[:k]) {
				return
			}
			s = s[k:]
		}
	}
}

// dial connects to an RLS address; with certificates when cert is not empty.
func dial(t testing.TB, addr string, creds credentials.TransportCredentials) rlsv3.RateLimitServiceClient {
	t.Helper()
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	c, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return rlsv3.NewRateLimitServiceClient(c)
}

// clientTLS is credentials by the demo CA, with a certificate of who, or none when who is empty.
func clientTLS(t testing.TB, l *lab.Lab, who string) credentials.TransportCredentials {
	t.Helper()
	pem, err := os.ReadFile(l.CertFile("ca", ".crt"))
	if err != nil {
		t.Fatal(err)
	}
	cfg := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "localhost"}
	cfg.RootCAs.AppendCertsFromPEM(pem)
	if who != "" {
		c, err := tls.LoadX509KeyPair(l.CertFile(who, ".crt"), l.CertFile(who, ".key"))
		if err != nil {
			t.Fatal(err)
		}
		cfg.Certificates = []tls.Certificate{c}
	}
	return credentials.NewTLS(cfg)
}

// request asks about one descriptor of key=value pairs.
func request(domain string, hits uint32, kv ...string) *rlsv3.RateLimitRequest {
	d := &ratelimitv3.RateLimitDescriptor{}
	for i := 0; i < len(kv); i += 2 {
		d.Entries = append(d.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: kv[i], Value: kv[i+1]})
	}
	return &rlsv3.RateLimitRequest{Domain: domain, HitsAddend: hits, Descriptors: []*ratelimitv3.RateLimitDescriptor{d}}
}

// peek reads a counter and charges nothing.
func peek(domain string, kv ...string) *rlsv3.RateLimitRequest {
	r := request(domain, 0, kv...)
	r.Descriptors[0].HitsAddend = wrapperspb.UInt64(0) // 0 on the request itself would mean one hit
	return r
}

// ask asks and fails the test on an error.
func ask(t testing.TB, c rlsv3.RateLimitServiceClient, r *rlsv3.RateLimitRequest) *rlsv3.RateLimitResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	res, err := c.ShouldRateLimit(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	return res
}
