package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/federation/redis"
	"github.com/keyward/keyward/internal/lab"
)

const (
	regionOneWay = 75 * time.Millisecond // between a region and the coordinator
	regionLimit  = 1500                  // of a window
	regionWindow = 10 * time.Second
)

// sharedLimit is a limit of all regions together, of which a part is divided statically under another key.
type sharedLimit struct {
	hits   int // of a window
	window time.Duration
}

// usualLimit is the one that most tests share.
var usualLimit = sharedLimit{regionLimit, regionWindow}

func (x sharedLimit) rules(outage string) string {
	return fmt.Sprintf(`domain: app
descriptors:
  - key: shared
    rate_limit: {unit: minute, requests_per_unit: %d}
    metadata: {keyward: {window: %s, federation: {outage: %s}}}
  - key: static
    rate_limit: {unit: minute, requests_per_unit: %d}
    metadata: {keyward: {window: %s, federation: {mechanism: static}}}
  - key: alone
    rate_limit: {unit: minute, requests_per_unit: %d}
    metadata: {keyward: {window: %s}}
`, x.hits, x.window, outage, x.hits, x.window, x.hits, x.window)
}

// of returns the index of the window that contains a time.
func (x sharedLimit) of(at time.Time) int64 { return at.UnixNano() / int64(x.window) }

// begin returns when a window begins.
func (x sharedLimit) begin(window int64) time.Time { return time.Unix(0, window*int64(x.window)) }

// realRegion is one region: a cluster of two members, far from the coordinator.
type realRegion struct {
	name      string
	lab       *lab.Lab
	wan       *wan
	clients   []rlsv3.RateLimitServiceClient
	layout    string            // its file; only of newHomeRegions
	addresses map[string]string // of all regions, as it reaches them; only of newHomeRegions
}

// realRegions are three regions whose coordinator is a real Redis.
type realRegions struct {
	t     *testing.T
	dir   string
	addr  string // of Redis
	redis *lab.Process
	list  []*realRegion
	limit sharedLimit
}

// newRealRedis returns a Redis that runs and in which nothing was lent before, without regions.
func newRealRedis(t *testing.T) *realRegions {
	t.Helper()
	x := &realRegions{t: t, dir: tempDir(t), limit: usualLimit}
	var ports lab.Ports
	var err error
	if x.addr, err = ports.Addr(); err != nil {
		t.Fatal(err)
	}
	x.startRedis()
	x.rememberNothing()
	return x
}

func newRealRegions(t *testing.T, outage string, shared sharedLimit) *realRegions {
	t.Helper()
	x := newRealRedis(t)
	x.limit = shared
	x.addRegions(outage, func(addr string) string { return "redis://" + addr }, lab.Options{})
	return x
}

// addRegions starts three regions, which reach the coordinator at x.addr through a WAN each. authority returns its URL.
func (x *realRegions) addRegions(outage string, authority func(addr string) string, o lab.Options) {
	x.t.Helper()
	for _, name := range []string{"eu", "us", "ap"} {
		r := &realRegion{name: name, wan: startWAN(x.t, x.addr, regionOneWay)}
		o.Rules, o.Expect, o.Args = map[string]string{"app.yaml": x.limit.rules(outage)}, 2, []string{
			"--cluster", name, "--region", name, "--federation", x.layout(), "--authority", "home=" + authority(r.wan.addr),
		}
		r.lab = newLab(x.t, o)
		start(x.t, r.lab, "pod-a", "pod-b")
		for _, s := range r.lab.Sidecars {
			r.clients = append(r.clients, dial(x.t, s.RLS, nil))
		}
		x.list = append(x.list, r)
	}
}

// layout writes the layout of the federation and returns its path.
func (x *realRegions) layout() string {
	x.t.Helper()
	path := filepath.Join(x.dir, "federation.yaml")
	text := "name: shop\nepoch: 1\ncoordinator: home\nregions: [{name: eu}, {name: us}, {name: ap}]\n"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		x.t.Fatal(err)
	}
	return path
}

func (x *realRegions) startRedis() {
	x.t.Helper()
	x.redis = startRedis(x.t, x.dir, x.addr)
}

// startRedis starts a Redis that ends with the test. It skips the test if there is none.
func startRedis(t *testing.T, dir, addr string, args ...string) *lab.Process {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil && os.Getenv("KEYWARD_REDIS") == "required" {
		t.Fatal(err)
	}
	if err != nil {
		t.Skip("no redis-server")
	}
	p, err := lab.StartProcess(dir, lab.Spec{Name: "redis-" + port(addr), Path: path, Args: append([]string{
		"--bind", "127.0.0.1", "--port", port(addr), "--save", "", "--appendonly", "no", "--daemonize", "no", "--dir", dir,
	}, args...)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Stop(10 * time.Second) })
	return p
}

// rememberNothing declares that the empty Redis knows everything: nothing was lent before.
func (x *realRegions) rememberNothing() {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(x.t.Context(), 20*time.Second)
	defer cancel()
	c, err := redis.Open(ctx, redis.Options{URL: "redis://" + x.addr, Terms: federation.Always(1)})
	if err != nil {
		x.t.Fatal(err)
	}
	defer c.Close()
	if err := lab.Await(ctx, "Redis", c.Init); err != nil {
		x.t.Fatal(err)
	}
}

// windowTally counts the hits of one key by window, as their clients saw them.
type windowTally struct {
	limit    sharedLimit
	mu       sync.Mutex
	admitted map[int64]int // both sent and answered in that window
	all      map[int64]int // answered in that window
	refused  int
	failed   int
	times    []time.Duration
}

func newWindowTally(limit sharedLimit) *windowTally {
	return &windowTally{limit: limit, admitted: map[int64]int{}, all: map[int64]int{}}
}

// spend sends hits of key, by a rule, to region i at a rate, from now until the end.
func (x *realRegions) spend(i int, rule, key string, perSecond int, until time.Time, to *windowTally) {
	r := x.list[i]
	var calls sync.WaitGroup
	defer calls.Wait()
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for n := 0; time.Now().Before(until); n++ {
		<-tick.C
		calls.Go(func() {
			ctx, cancel := context.WithTimeout(x.t.Context(), 2*time.Second)
			defer cancel()
			sent := time.Now()
			res, err := r.clients[n%len(r.clients)].ShouldRateLimit(ctx, request("app", 1, rule, key))
			done := time.Now()
			to.mu.Lock()
			defer to.mu.Unlock()
			to.times = append(to.times, done.Sub(sent))
			switch {
			case err != nil:
				to.failed++
			case res.OverallCode != rlsv3.RateLimitResponse_OK:
				to.refused++
			default:
				to.all[x.limit.of(done)]++
				if x.limit.of(sent) == x.limit.of(done) {
					to.admitted[x.limit.of(done)]++
				}
			}
		})
	}
}

// load spends key in all regions, at the given rates, for some whole windows. It returns the first and the windowTally.
func (x *realRegions) load(rule, key string, windows int, rates ...int) (first int64, sum *windowTally) {
	first = x.limit.of(time.Now()) + 1
	return first, x.loadFrom(first, rule, key, windows, rates...)
}

func (x *realRegions) loadFrom(first int64, rule, key string, windows int, rates ...int) (sum *windowTally) {
	sum = newWindowTally(x.limit)
	begin := x.limit.begin(first)
	time.Sleep(time.Until(begin.Add(-2 * time.Second))) // so that the demand is known
	until := begin.Add(time.Duration(windows) * x.limit.window).Add(-50 * time.Millisecond)
	var all sync.WaitGroup
	for i, rate := range rates {
		if rate > 0 {
			all.Go(func() { x.spend(i, rule, key, rate, until, sum) })
		}
	}
	all.Wait()
	return sum
}

// check requires that no window has admitted more than the limit.
func (x *realRegions) check(what string, s *windowTally) {
	x.t.Helper()
	for w, n := range s.admitted {
		if n > x.limit.hits {
			x.t.Errorf("%s: %d of %d admitted in window %d", what, n, x.limit.hits, w)
		}
	}
}

// used returns which part of the limit was admitted in some windows.
func (s *windowTally) used(first int64, windows int) float64 {
	n := 0
	for i := range windows {
		n += s.all[first+int64(i)]
	}
	return float64(n) / float64(windows*s.limit.hits)
}

func (s *windowTally) quantile(q float64) time.Duration {
	slices.Sort(s.times)
	return s.times[min(len(s.times)-1, int(q*float64(len(s.times))))]
}

// metric sums a metric over all members of region i.
func (x *realRegions) metric(i int, name string) (sum float64) {
	x.t.Helper()
	for _, s := range x.list[i].lab.Sidecars {
		b, err := lab.Get(x.t.Context(), "http://"+s.Metrics+"/metrics")
		if err != nil {
			x.t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if strings.HasPrefix(line, name) {
				var v float64
				_, _ = fmt.Sscan(line[strings.LastIndex(line, " ")+1:], &v)
				sum += v
			}
		}
	}
	return sum
}

// regionsLoad is one key that all regions spend at their rates, for some windows.
type regionsLoad struct {
	rule, key string
	windows   int
	rates     []int

	first int64
	sum   *windowTally
}

// loadTogether spends keys at the same time. They have nothing in common but the members.
func (x *realRegions) loadTogether(all ...*regionsLoad) {
	x.t.Helper()
	var done sync.WaitGroup
	for _, l := range all {
		done.Go(func() { l.first, l.sum = x.load(l.rule, l.key, l.windows, l.rates...) })
	}
	done.Wait()
	for _, l := range all {
		x.check(l.rule+" "+l.key, l.sum)
	}
}

func (l *regionsLoad) used() float64 { return l.sum.used(l.first, l.windows) }

// TestRegions shares limits between three regions, of which one has ten times the demand of the others, or all of it.
// Static parts would leave most of it unused.
func TestRegions(t *testing.T) {
	x := newRealRegions(t, "fail_closed", usualLimit)
	skewed := &regionsLoad{rule: "shared", key: "skewed", windows: 2, rates: []int{200, 20, 20}}
	one := &regionsLoad{rule: "shared", key: "one", windows: 1, rates: []int{0, 240, 0}}
	static := &regionsLoad{rule: "static", key: "skewed", windows: 1, rates: []int{200, 20, 20}}
	below := &regionsLoad{rule: "shared", key: "below", windows: 2, rates: []int{100, 10, 10}}
	x.loadTogether(skewed, one, static, below)
	if used := skewed.used(); used < 0.95 {
		t.Errorf("%.1f %% of the limit used at 10:1:1", 100*used)
	} else {
		t.Logf("10:1:1: %.1f %% used, p99 %v, %d failed", 100*used, skewed.sum.quantile(0.99), skewed.sum.failed)
	}
	if used := one.used(); used < 0.90 {
		t.Errorf("%.1f %% of the limit used by one region", 100*used)
	} else {
		t.Logf("one region: %.1f %% used, p99 %v", 100*used, one.sum.quantile(0.99))
	}
	if used := static.used(); used > 0.7 {
		t.Errorf("%.1f %% of the limit used with static parts: the comparison shows nothing", 100*used)
	} else {
		t.Logf("static parts at 10:1:1: %.1f %% used", 100*used)
	}
	s := below.sum
	if part := float64(s.refused) / float64(len(s.times)); part > 0.03 {
		t.Errorf("%.2f %% refused at 80 %% of the limit", 100*part)
	} else {
		t.Logf("80 %% of the limit: %.2f %% refused, p50 %v, p99 %v", 100*part, s.quantile(0.5), s.quantile(0.99))
	}
	calls, decided := 0.0, 0.0
	for i := range x.list {
		calls += x.metric(i, "keyward_federation_requests_total")
		decided += x.metric(i, `keyward_authority_total{authority="escrow"`) + x.metric(i, `keyward_authority_total{authority="full"`)
	}
	if calls == 0 || calls > 0.03*decided {
		t.Errorf("%.0f requests to the coordinator for %.0f decisions", calls, decided)
	} else {
		t.Logf("%.4f requests to the coordinator for each decision", calls/decided)
	}
}

// TestRegionsUnderFaults cuts regions off, kills owners, and lets the coordinator lose its memory: no window admits more
// than the limit.
func TestRegionsUnderFaults(t *testing.T) {
	x := newRealRegions(t, "fail_closed", usualLimit)
	for _, f := range []struct {
		name       string
		begin, end func()
	}{
		{"cut", func() { x.list[0].wan.cut(true) }, func() { x.list[0].wan.cut(false) }},
		{"requests are lost", func() { x.list[0].wan.deaf[0].Store(true) }, func() {
			x.list[0].wan.deaf[0].Store(false)
			x.list[0].wan.cut(true) // a stream that has lost bytes is useless
			x.list[0].wan.cut(false)
		}},
		{"replies are lost", func() { x.list[0].wan.deaf[1].Store(true) }, func() {
			x.list[0].wan.deaf[1].Store(false)
			x.list[0].wan.cut(true)
			x.list[0].wan.cut(false)
		}},
		{"a member dies", func() { _ = x.list[0].lab.Sidecars[0].Signal(syscall.SIGKILL) }, func() {
			_ = x.list[0].lab.Sidecars[0].Stop(5 * time.Second)
			if err := x.list[0].lab.Restart(x.list[0].lab.Sidecars[0]); err != nil {
				t.Error(err)
			}
		}},
		{"Redis restarts empty", func() {
			_ = x.redis.Signal(syscall.SIGKILL)
			_ = x.redis.Stop(5 * time.Second)
		}, x.startRedis},
	} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			time.Sleep(time.Until(x.limit.begin(x.limit.of(time.Now()) + 1).Add(2 * time.Second)))
			f.begin()
			time.Sleep(3 * time.Second)
			f.end()
		}()
		first, s := x.load("shared", f.name, 1, 150, 60, 60)
		<-done
		x.check(f.name, s)
		if used := s.used(first, 1); used < 0.2 {
			t.Errorf("%s: only %.0f %% used", f.name, 100*used)
		} else {
			t.Logf("%s: %.0f %% used, %d failed", f.name, 100*used, s.failed)
		}
	}
}
