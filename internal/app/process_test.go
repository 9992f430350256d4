package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/lab"
)

// asSidecar is the environment variable that makes the test binary a sidecar.
const asSidecar = "KEYWARD_TEST_AS_SIDECAR"

func TestMain(m *testing.M) {
	if os.Getenv(asSidecar) != "" {
		os.Exit(Program{Name: "sidecar", Run: RunSidecar}.Main(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// process is a running sidecar.
type process struct {
	cmd                               *exec.Cmd
	name, grpc, json, metrics, socket string
	gossip                            string
	log                               log
	ended                             chan struct{} // closed when it has; cmd.ProcessState holds how
}

// log holds the output of a process.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// addresses returns free loopback addresses outside of the range for clients.
func addresses(t *testing.T, n int) (out []string) {
	t.Helper()
	var ports lab.Ports
	for range n {
		a, err := ports.Addr()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, a)
	}
	return out
}

const rules = `
domain: d
descriptors:
  - key: k
    rate_limit: {unit: hour, requests_per_unit: 1000}
  - key: lent
    rate_limit: {unit: hour, requests_per_unit: 100000}
    metadata: {keyward: {mechanism: lease, audit: true}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1000}}
  - {key: quota, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1000}}
  - {key: budget, rate_limit: {unit: hour, requests_per_unit: 100}, metadata: {keyward: {reserve: 50}}}
  - {key: audited, rate_limit: {unit: hour, requests_per_unit: 100}, metadata: {keyward: {reserve: 50, audit: true}}}
  - {key: streams, rate_limit: {unit: hour, requests_per_unit: 16}, metadata: {keyward: {algorithm: in_flight, window: 10m}}}
  - {key: none, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: short, rate_limit: {unit: second, requests_per_unit: 1000}, metadata: {keyward: {window: 20ms}}}
  - {key: fair, rate_limit: {unit: hour, requests_per_unit: 1000}, metadata: {keyward: {fair: {entry: fair}}}}
  - {key: replaced, rate_limit: {unit: hour, requests_per_unit: 1000, name: replaced}}
  - {key: by, rate_limit: {unit: hour, requests_per_unit: 1000, replaces: [{name: replaced}]}}
`

// launch starts a sidecar that ends with the test.
func launch(t *testing.T, name string, args ...string) *process {
	t.Helper()
	dir := t.TempDir()
	files := filepath.Join(dir, "ratelimit", "config")
	if err := errors.Join(os.MkdirAll(files, 0o755), os.WriteFile(filepath.Join(files, "a.yaml"), []byte(rules), 0o644)); err != nil {
		t.Fatal(err)
	}
	at := addresses(t, 6)
	p := &process{
		name: name, grpc: at[0], json: at[1], metrics: at[2], gossip: at[3], socket: filepath.Join(dir, "a.sock"), ended: make(chan struct{}),
	}
	_, json, _ := net.SplitHostPort(at[1])
	_, port, _ := net.SplitHostPort(at[0])
	_, debug, _ := net.SplitHostPort(at[5])
	all := []string{
		"--node", name, "--insecure", "--gossip", p.gossip, "--peer", at[4], "--metrics", p.metrics, "--admin", "unix:" + p.socket,
		"--decision-timeout", "1s",
	}
	p.cmd = exec.Command(os.Args[0], append(all, args...)...)
	p.cmd.Env = append(os.Environ(), asSidecar+"=1", "RUNTIME_ROOT="+dir, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false",
		"USE_STATSD=false", "LOG_LEVEL=info", "HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1", "PORT="+json, "GRPC_PORT="+port, "DEBUG_PORT="+debug)
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // ProcessState says how it ended
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("log of %s:\n%s", name, p.log.String())
		}
	})
	return p
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	end := time.NewTimer(60 * time.Second)
	defer end.Stop()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for !ok() {
		select {
		case <-end.C:
			t.Fatalf("never: %s", what)
		case <-again.C:
		}
	}
}

func (p *process) get(path string) (int, []byte) {
	res, err := http.Get("http://" + p.metrics + path)
	if err != nil {
		return 0, nil
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, nil
	}
	return res.StatusCode, b
}

func (p *process) ready() bool { code, _ := p.get("/readyz"); return code == http.StatusOK }

// up reports whether p is ready and listens on its socket, which it does a little later.
func (p *process) up() bool {
	if !p.ready() {
		return false
	}
	conn, err := net.Dial("unix", p.socket)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// ring returns the members of the ring that p uses.
func (p *process) ring(t *testing.T) []string {
	var c api.ClusterStatus
	if code, b := p.get("/cluster"); code != http.StatusOK || json.Unmarshal(b, &c) != nil {
		return nil
	}
	return c.Ring.Members
}

// hit sends a call for n hits on a key to p.
func (p *process) hit(t *testing.T, value string, n uint32) *pb.RateLimitResponse {
	t.Helper()
	return p.hitKey(t, "k", value, n)
}

func (p *process) hitKey(t *testing.T, key, value string, n uint32) *pb.RateLimitResponse {
	t.Helper()
	conn, err := grpc.NewClient(p.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), &pb.RateLimitRequest{
		Domain: "d", HitsAddend: n,
		Descriptors: []*common.RateLimitDescriptor{{Entries: []*common.RateLimitDescriptor_Entry{{Key: key, Value: value}}}},
	})
	if err != nil {
		t.Fatalf("%s: %v", p.name, err)
	}
	return r
}

// end waits until p has ended and returns its exit code.
func (p *process) end(t *testing.T) int {
	t.Helper()
	eventually(t, "the end of "+p.name, func() bool {
		select {
		case <-p.ended:
			return true
		default:
			return false
		}
	})
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) signal(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

// trio starts three members of one ring.
func trio(t *testing.T) []*process {
	a := launch(t, "a-0", "--join", "127.0.0.1:1")
	eventually(t, "the first", a.up)
	all := []*process{a, launch(t, "b-1", "--join", a.gossip), launch(t, "c-2", "--join", a.gossip)}
	for _, p := range all {
		eventually(t, "all ready on one ring", func() bool { return p.up() && len(p.ring(t)) == 3 })
	}
	return all
}

// counter returns a key's counter as p reports it.
func (p *process) counter(t *testing.T, key string) (c api.CounterStatus) {
	t.Helper()
	code, b := p.get("/v1/counters?domain=d&key=k=" + key)
	if err := json.Unmarshal(b, &c); code != http.StatusOK || err != nil {
		t.Fatalf("%s: %d %s %v", p.name, code, b, err)
	}
	return c
}

func TestCountersAreTheOwners(t *testing.T) {
	t.Parallel()
	all := trio(t)
	for i := range 6 {
		key := fmt.Sprint("key", i)
		all[i%3].hit(t, key, 5)
		var first api.CounterStatus
		for j, p := range all {
			c := p.counter(t, key)
			if j == 0 {
				first = c
			}
			if c.Count != 5 || c.Limit != 1000 || c.Remaining != 995 || c.Owner != first.Owner || c.Authority != "full" || c.Window != "1h0m0s" || c.Reset <= 0 {
				t.Errorf("%s says %+v, %s %+v", all[0].name, first, p.name, c)
			}
		}
	}
	for path, want := range map[string]int{"?domain=d&key=other=1": 404, "?domain=x&key=k=1": 404, "?key=k=1": 400, "?domain=d": 400, "?domain=d&descriptor=7": 400} {
		if code, b := all[0].get("/v1/counters" + path); code != want {
			t.Errorf("%s: %d %s, want %d", path, code, b, want)
		}
	}
}

// drain requests a drain over p's socket and returns the last line of progress.
func (p *process) drain(t *testing.T) (last api.DrainStatus) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", p.socket)
	}}}
	defer client.CloseIdleConnections()
	res, err := client.Post("http://x/drain", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	for lines := json.NewDecoder(res.Body); ; {
		if err := lines.Decode(&last); err != nil {
			break
		}
	}
	return last
}

func TestDrainThenEnd(t *testing.T) {
	t.Parallel()
	all := trio(t)
	c := all[2]
	c.hit(t, "x", 1)
	const keys = 20
	for i := range keys {
		all[i%3].hit(t, fmt.Sprint("z", i), uint32(i+1))
	}
	counted := func(when string, by ...*process) {
		t.Helper()
		for i := range keys {
			p := by[i%len(by)]
			if got := p.counter(t, fmt.Sprint("z", i)); got.Count != uint64(i+1) || got.Authority != "full" {
				t.Errorf("%s: %s counts %+v, want %d", when, p.name, got, i+1)
			}
		}
	}
	counted("before", all...)
	if info, err := os.Stat(c.socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v %v", info, err)
	}
	if last := c.drain(t); !last.Done || !last.Complete || last.State != "leaving" {
		t.Errorf("drained: %+v", last)
	}
	if c.ready() {
		t.Error("ready after the drain")
	}
	for _, p := range all {
		eventually(t, "two on the ring", func() bool { return slices.Equal(p.ring(t), []string{"a-0", "b-1"}) })
	}
	counted("drained", all...)
	for i := range 10 {
		if r := c.hit(t, fmt.Sprint("y", i), 1); r.OverallCode != pb.RateLimitResponse_OK || r.Statuses[0].LimitRemaining != 999 {
			t.Errorf("forwarded: %v", r)
		}
	}
	if last := c.drain(t); !last.Done || !last.Complete {
		t.Errorf("drained once more: %+v", last)
	}
	c.signal(t)
	if code := c.end(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if _, err := os.Stat(c.socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
	for _, p := range all[:2] {
		if strings.Contains(p.log.String(), "died=c-2") {
			t.Errorf("to %s it has died", p.name)
		}
	}
	counted("ended", all[:2]...)
	all[1].signal(t)
	if code := all[1].end(t); code != 0 {
		t.Errorf("exit code %d without a drain before", code)
	}
	counted("the last", all[0])
	if s := all[1].log.String(); !strings.Contains(s, "msg=drained") {
		t.Error("ended without a drain")
	}
}

func TestASecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	p := launch(t, "alone")
	eventually(t, "ready", p.ready)
	p.hit(t, "x", 1) // so that it waits for more
	p.signal(t)
	eventually(t, "leaving", func() bool { return strings.Contains(p.log.String(), "msg=drained") })
	if p.ready() {
		t.Error("ready while it leaves")
	}
	if r := p.hit(t, "x", 1); r.Statuses[0].LimitRemaining != 998 {
		t.Errorf("while it leaves: %v", r)
	}
	p.signal(t)
	if code := p.end(t); code != 1 || !strings.Contains(p.log.String(), "second signal") {
		t.Errorf("exit code %d, log:\n%s", code, p.log.String())
	}
}

func TestAdminSocketThatCannotBe(t *testing.T) {
	t.Parallel()
	p := launch(t, "alone", "--admin", "unix:"+filepath.Join(t.TempDir(), "nowhere", "a.sock"))
	if code := p.end(t); code != 1 || !strings.Contains(p.log.String(), "nowhere") {
		t.Errorf("asked for: exit code %d", code)
	}
	if _, err := os.Stat(filepath.Dir(strings.TrimPrefix(DefaultAdmin, "unix:"))); err == nil {
		t.Skip("the default place exists here")
	}
	p = launch(t, "alone", "--admin", DefaultAdmin)
	eventually(t, "ready without", p.ready)
	eventually(t, "that said", func() bool { return strings.Contains(p.log.String(), "no admin socket") })
}
