package e2e

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	dto "github.com/prometheus/client_model/go"

	"github.com/keyward/keyward/internal/lab"
)

// originalBinary is envoyproxy/ratelimit as its maintainers release it: KEYWARD_ORIGINAL names it, scripts/original builds
// it; or it is built once, for which the Go modules must be at hand.
var originalBinary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("KEYWARD_ORIGINAL"); path != "" {
		return path, nil
	}
	path, err := filepath.Abs("../../bin/bench/ratelimit")
	if err != nil {
		return "", err
	}
	out, err := exec.Command("go", "build", "-C", "../../bench/ratelimit", "-o", path, "github.com/envoyproxy/ratelimit/src/service_cmd").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build envoyproxy/ratelimit: %w\n%s", err, out)
	}
	return path, nil
})

// original is a deployment of envoyproxy/ratelimit: its Redis, its environment, and the process that runs now.
type original struct {
	dir, grpc, http, prometheus string
	env                         []string
	process                     *lab.Process
}

// newOriginal starts a Redis and writes the rules. Nothing answers until run.
func newOriginal(t *testing.T, rules map[string]string, env ...string) *original {
	t.Helper()
	redis, err := exec.LookPath("redis-server")
	if err != nil && os.Getenv("KEYWARD_REDIS") == "required" {
		t.Fatal(err)
	}
	if err != nil {
		t.Skip("no redis-server: envoyproxy/ratelimit needs it")
	}
	o := &original{dir: t.TempDir()}
	conf := filepath.Join(o.dir, "ratelimit", "config")
	if err := os.MkdirAll(conf, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range rules {
		if err := os.WriteFile(filepath.Join(conf, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var ports lab.Ports
	addrs := make([]string, 6)
	for i := range addrs {
		if addrs[i], err = ports.Addr(); err != nil {
			t.Fatal(err)
		}
	}
	o.grpc, o.http, o.prometheus = addrs[0], addrs[1], addrs[3]
	p, err := lab.StartProcess(o.dir, lab.Spec{Name: "redis", Path: redis, Args: []string{
		"--bind", "127.0.0.1", "--port", port(addrs[4]), "--save", "", "--appendonly", "no", "--daemonize", "no",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Stop(10 * time.Second) })
	o.env = append([]string{
		"RUNTIME_ROOT=" + o.dir, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false",
		"HOST=127.0.0.1", "PORT=" + port(o.http), "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=" + port(addrs[2]), "GRPC_HOST=127.0.0.1", "GRPC_PORT=" + port(o.grpc),
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + addrs[4], "LIMIT_RESPONSE_HEADERS_ENABLED=true",
		"KEYWARD_METRICS=" + addrs[5], "KEYWARD_ADMIN=unix:" + filepath.Join(o.dir, "admin.sock"), // of this machine, which others share
	}, env...)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "Redis", func(ctx context.Context) error { // without it the service does not start
		c, err := new(net.Dialer).DialContext(ctx, "tcp", addrs[4])
		if err == nil {
			c.Close()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return o
}

// run takes the program that runs away and starts another one in its place: the same environment, the same addresses.
func (o *original) run(t *testing.T, name, path string, env ...string) {
	t.Helper()
	if o.process != nil {
		if err := o.process.Stop(20 * time.Second); err != nil {
			t.Fatal(err)
		}
	}
	p, err := lab.StartProcess(o.dir, lab.Spec{Name: name, Path: path, Env: append(slices.Clone(o.env), env...)})
	if err != nil {
		t.Fatal(err)
	}
	o.process = p
	t.Cleanup(func() {
		_ = p.Stop(20 * time.Second)
		if t.Failed() {
			t.Logf("%s:\n%s", name, p.Tail(3000))
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "health of "+name, func(ctx context.Context) error {
		_, err := lab.Get(ctx, "http://"+o.http+"/healthcheck")
		return err
	}); err != nil {
		t.Fatalf("%v\n%s", err, p.Tail(4000))
	}
}

// theirs and ours run the two programs.
func (o *original) theirs(t *testing.T, env ...string) {
	t.Helper()
	path, err := originalBinary()
	if err != nil {
		t.Fatal(err)
	}
	o.run(t, "original", path, env...)
}

func (o *original) ours(t *testing.T, env ...string) {
	t.Helper()
	o.run(t, "ratelimit", filepath.Join(bin(t), "ratelimit"), env...)
}

const movedRules = `domain: edge
descriptors:
  - key: api_key
    rate_limit: {unit: year, requests_per_unit: 10}
  - key: api_key
    value: vip
    rate_limit: {unit: year, requests_per_unit: 100, name: vip}
  - key: route
    value: search
    descriptors:
      - key: user
        rate_limit: {unit: year, requests_per_unit: 2}
        detailed_metric: true
  - key: tenant
    shadow_mode: true
    rate_limit: {unit: year, requests_per_unit: 3}
  - key: path_*
    rate_limit: {unit: year, requests_per_unit: 5}
  - key: plan
    value: free
    descriptors:
      - key: region
        descriptors:
          - key: user
            rate_limit: {unit: year, requests_per_unit: 4}
  - key: internal
    rate_limit: {unlimited: true}
`

// movedTraffic is every kind of request that moves a statistic.
func movedTraffic(t *testing.T, addr string) (codes []string) {
	t.Helper()
	c := dial(t, addr, nil)
	send := func(n int, r *rlsv3.RateLimitRequest) {
		for range n {
			res := ask(t, c, r)
			code := res.OverallCode.String()
			for _, s := range res.Statuses {
				code += fmt.Sprintf(" %s/%d/%d", s.Code, s.CurrentLimit.GetRequestsPerUnit(), s.LimitRemaining)
			}
			codes = append(codes, code)
		}
	}
	send(13, request("edge", 1, "api_key", "alice"))
	send(2, request("edge", 40, "api_key", "vip"))
	send(3, request("edge", 1, "route", "search", "user", "bob"))
	send(5, request("edge", 1, "tenant", "t1"))
	send(2, request("edge", 3, "path_a", "x"))
	send(6, request("edge", 1, "plan", "free", "region", "eu", "user", "carol"))
	send(2, request("edge", 1, "internal", "x"))
	send(1, request("edge", 1, "nothing", "x"))
	send(2, request("nowhere", 1, "api_key", "x"))
	two := request("edge", 1, "api_key", "dave")
	two.Descriptors = append(two.Descriptors, request("edge", 1, "tenant", "t2").Descriptors...)
	send(4, two)
	own := request("edge", 1, "api_key", "erin")
	own.Descriptors[0].Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 2, Unit: typev3.RateLimitUnit_YEAR}
	send(3, own)
	return codes
}

// movedHits is the hits of movedTraffic that have statistics.
const movedHits = 13 + 80 + 3 + 5 + 6 + 6 + 2*4 + 3

// series lists a page's ratelimit_* series as name{labels}, with the values of those that speak of requests: times and
// what the runtime says of itself differ from run to run. There is no pool of Redis connections any more.
func series(fam map[string]*dto.MetricFamily) map[string]float64 {
	all := map[string]float64{}
	for name, f := range fam {
		if !strings.HasPrefix(name, "ratelimit_") || strings.HasPrefix(name, "ratelimit_redis_pool_") {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			at := name + "{" + strings.Join(labels, ",") + "} " + strings.ToLower(f.GetType().String())
			all[at] = 0
			if !strings.HasPrefix(name, "ratelimit_go_") {
				all[at] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return all
}

// The image is changed and nothing else: the same answers, the same series with the same numbers, so every board stays
// filled. And back again: the old program finds its counts where it left them.
func TestMoveOverAndBack(t *testing.T) {
	o := newOriginal(t, map[string]string{"edge.yaml": movedRules}, "USE_STATSD=false", "USE_PROMETHEUS=true", "STATS_FLUSH_INTERVAL=1s", "GOSTATS_FLUSH_INTERVAL_SECONDS=1")
	o.env = append(o.env, "PROMETHEUS_ADDR="+o.prometheus)
	// scraped waits until all hits are reported and nothing changes any more: the original reports them once a second.
	scraped := func() (got map[string]float64) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := lab.Await(ctx, "the statistics", func(context.Context) error {
			fam := metrics(t, o.prometheus)
			before := got
			got = series(fam)
			if hits := value(fam, "ratelimit_service_rate_limit_total_hits"); hits != movedHits || !maps.Equal(got, before) {
				return fmt.Errorf("%v hits of %d", hits, movedHits)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return got
	}
	o.theirs(t)
	theirCodes := movedTraffic(t, o.grpc)
	theirs := scraped()

	o.ours(t)
	ourCodes := movedTraffic(t, o.grpc)
	ours := scraped()
	if !slices.Equal(theirCodes, ourCodes) {
		t.Errorf("answers differ:\n%s\n%s", strings.Join(theirCodes, "; "), strings.Join(ourCodes, "; "))
	}
	if len(theirs) < 20 {
		t.Errorf("only %d series were compared", len(theirs))
	}
	for _, name := range slices.Sorted(maps.Keys(theirs)) {
		if got, ok := ours[name]; !ok || got != theirs[name] {
			t.Errorf("%s: theirs %v, ours %v %v", name, theirs[name], got, ok)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(ours)) {
		if _, ok := theirs[name]; !ok {
			t.Errorf("%s: only ours, %v", name, ours[name])
		}
	}

	o.theirs(t)
	res := ask(t, dial(t, o.grpc, nil), request("edge", 1, "api_key", "vip"))
	if res.OverallCode != rlsv3.RateLimitResponse_OK || res.Statuses[0].LimitRemaining != 19 {
		t.Errorf("back again: %v", res)
	}
}

// statsd is a collector that counts the lines of each name and type.
type statsd struct {
	addr  string
	mu    sync.Mutex
	lines map[string]int // guarded by mu; by name|type
}

func startStatsd(t *testing.T) *statsd {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	s := &statsd{addr: ln.Addr().String(), lines: map[string]int{}}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go s.read(c)
		}
	}()
	return s
}

func (s *statsd) read(c net.Conn) {
	defer c.Close()
	for lines := bufio.NewScanner(c); lines.Scan(); {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		_, kind, _ := strings.Cut(rest, "|")
		kind, _, _ = strings.Cut(kind, "|")
		s.mu.Lock()
		s.lines[name+"|"+kind]++
		s.mu.Unlock()
	}
}

func (s *statsd) seen() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.lines)
}

// Boards that are fed by statsd stay filled, too.
func TestMoveOverStatsd(t *testing.T) {
	o := newOriginal(t, map[string]string{"edge.yaml": movedRules}, "USE_STATSD=true", "STATS_FLUSH_INTERVAL=1s", "GOSTATS_FLUSH_INTERVAL_SECONDS=1")
	names := func(run func(t *testing.T, env ...string)) map[string]int {
		s := startStatsd(t)
		run(t, "STATSD_HOST=127.0.0.1", "STATSD_PORT="+port(s.addr))
		movedTraffic(t, o.grpc)
		const everyFlush = "ratelimit.go.numGoroutine|g"
		flushes := s.seen()[everyFlush]
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if err := lab.Await(ctx, "statsd lines", func(context.Context) error {
			if n := s.seen()[everyFlush] - flushes; n < 3 { // one that was under way, one whole, and its end
				return fmt.Errorf("%d flushes", n)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return s.seen()
	}
	theirs, ours := names(o.theirs), names(o.ours)
	if len(theirs) < 40 {
		t.Errorf("only %d names were compared", len(theirs))
	}
	for _, n := range slices.Sorted(maps.Keys(theirs)) {
		if strings.HasPrefix(n, "ratelimit.redis_pool.") || strings.HasPrefix(n, "runtime.") { // docs/differences.md
			continue
		}
		if ours[n] == 0 {
			t.Errorf("only theirs: %s", n)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(ours)) {
		if theirs[n] == 0 {
			t.Errorf("only ours: %s", n)
		}
	}
}
