package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/internal/ops/loadtest"
	"github.com/keyward/keyward/ring"
)

// limitPerYear is a limit that no run reaches, in a window that hardly any run sees the end of.
const limitPerYear = 4_000_000_000

// rules are the same file for Keyward and for envoyproxy/ratelimit.
var rules = fmt.Sprintf(`domain: bench
descriptors:
  - key: route
    value: search
    descriptors:
      - key: api_key
        rate_limit: {unit: year, requests_per_unit: %d}
`, uint32(limitPerYear))

// contestant is something that can be measured.
type contestant struct {
	Name, Title string
	envoy       bool // it is asked through an Envoy
	extra       bool // it runs only when it is named
	quick       bool // it is part of a first impression
	lacks       func(a *arena) string
	start       func(ctx context.Context, a *arena, r *running) error
}

// The names of the contestants.
const (
	nameConstant    = "constant"
	nameFloor       = "floor"
	nameOne         = "keyward-1"
	nameThree       = "keyward-3"
	nameDirect      = "keyward-3-direct"
	nameAlone       = "keyward-3-alone"
	nameRatelimit   = "ratelimit"
	nameLimitador   = "limitador"
	nameGubernator  = "gubernator-1"
	nameGubernators = "gubernator-3"
)

func contestants() []contestant {
	cluster := func(members ...string) func(context.Context, *arena, *running) error {
		return func(ctx context.Context, a *arena, r *running) error {
			_, err := newCluster(ctx, a, r, lab.Options{Dir: r.dir}, members...)
			return err
		}
	}
	all := []contestant{
		{Name: nameConstant, Title: "constant grpc-go server", quick: true, start: func(_ context.Context, a *arena, r *running) error {
			return startServer(a, r, constantCommand)
		}},
		{Name: nameFloor, Title: "the floor: a bare loop", quick: true, start: func(_ context.Context, a *arena, r *running) error {
			return startServer(a, r, floorCommand)
		}},
		{Name: nameOne, Title: "Keyward, one node", quick: true, start: cluster("a")},
		{Name: nameThree, Title: "Keyward, three nodes, calls to any", quick: true, start: cluster("a", "b", "c")},
		{Name: nameDirect, Title: "Keyward, three nodes, calls to the owner, mTLS", start: startDirect},
		{Name: nameAlone, Title: "Keyward, three nodes, each alone", extra: true, start: startAlone},
	}
	return slices.Concat(all, rivals(), behindEnvoy(), withoutCalls())
}

func rivals() []contestant {
	redis := func(a *arena) string {
		return unless(a.redis != "", "there is no redis-server on PATH (Debian: apt-get install redis-server)")
	}
	gubernator := func(a *arena) string { return unless(a.gubernator != "", "give its binary with -gubernator") }
	return []contestant{
		{Name: nameRatelimit, Title: "envoyproxy/ratelimit + Redis", lacks: redis, start: func(ctx context.Context, a *arena, r *running) error {
			return startRatelimit(ctx, a, r)
		}},
		{Name: nameRatelimit + "-piped", Title: "envoyproxy/ratelimit + Redis, piped 150us", extra: true, lacks: redis, start: func(ctx context.Context, a *arena, r *running) error {
			return startRatelimit(ctx, a, r, "REDIS_PIPELINE_WINDOW=150us")
		}},
		{Name: nameLimitador, Title: "Limitador, in memory", lacks: func(a *arena) string {
			return unless(a.limitador != "", "give its binary with -limitador")
		}, start: startLimitador},
		{Name: nameGubernator, Title: "Gubernator, one node", lacks: gubernator, start: func(ctx context.Context, a *arena, r *running) error {
			return startGubernator(ctx, a, r, 1)
		}},
		{Name: nameGubernators, Title: "Gubernator, three nodes, calls to any", lacks: gubernator, start: func(ctx context.Context, a *arena, r *running) error {
			return startGubernator(ctx, a, r, 3)
		}},
	}
}

func unless(ok bool, why string) string {
	if ok {
		return ""
	}
	return why
}

func names() []string {
	var all []string
	for _, c := range contestants() {
		all = append(all, c.Name)
	}
	return all
}

// target is one server of a contestant.
type target struct {
	addr   string
	member ring.ID     // with it, a key is asked of the member that counts it, as Envoy does in the shape owner-direct
	tls    *tls.Config // nil: in the clear
}

// running is a started contestant.
type running struct {
	contestant
	targets   []target            // where it is asked
	processes []*lab.Process      // whose CPU is counted
	proxies   []*lab.Process      // whose CPU is counted apart: Envoy
	others    []*lab.Process      // whose CPU is not counted
	metrics   []string            // of Keyward: where /metrics is
	debug     []string            // where /debug/pprof is
	service   loadtest.LoadTarget // how it is asked; the zero value: as a rate limit service
	calls     []loadtest.LoadCall // what it is asked; nil: about all keys
	blind     bool                // it does not tell limits and remaining hits: what it has counted is not known
	load      *loadtest.Load
	audit     *audit // nil if blind
	before    int    // hits counted before the first round
	sent      int    // calls answered since
	failed    int    // calls since that failed; they may have been counted

	dir   string
	labs  []*lab.Lab
	ports lab.Ports
}

// start starts c and waits until each of its processes decides by the rules. What it returns must be closed, also with
// an error.
func start(ctx context.Context, a *arena, c contestant) (*running, error) {
	r := &running{contestant: c, dir: filepath.Join(a.dir, c.Name), service: loadtest.RLS()}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return nil, err
	}
	if err := c.start(ctx, a, r); err != nil {
		return r, err
	}
	if !r.blind {
		var err error
		if r.audit, err = newAudit(r.targets, a.keys); err != nil {
			return r, err
		}
		if r.calls, err = r.audit.calls(); err != nil {
			return r, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := lab.Await(ctx, c.Title, func(ctx context.Context) error { return r.probe(ctx, a) })
	if err == nil && r.audit != nil {
		r.before, err = r.audit.counted(ctx)
	}
	return r, err
}

// probe asks every target once; the last one that is made stays connected.
func (r *running) probe(ctx context.Context, a *arena) (err error) {
	for _, p := range r.processes {
		if !p.Running() {
			return fmt.Errorf("%s has ended: %s", p.Name, p.Tail(2000))
		}
	}
	if r.audit != nil {
		if err := r.audit.probe(ctx); err != nil {
			return err
		}
	}
	if r.load == nil {
		if r.load, err = r.newLoad(ctx, a.conns); err != nil {
			return err
		}
	}
	return r.load.Once(ctx)
}

func (r *running) newLoad(ctx context.Context, conns int) (*loadtest.Load, error) {
	o := loadtest.Options{Service: r.service, Calls: r.calls, Conns: conns}
	for _, t := range r.targets {
		o.Targets = append(o.Targets, loadtest.Target{Addr: t.addr, TLS: t.tls})
		o.Placed = t.member != ""
	}
	return loadtest.New(ctx, o)
}

// close ends what was started, the last first.
func (r *running) close() error {
	var errs []error
	if r.audit != nil {
		r.audit.close()
	}
	if r.load != nil {
		r.load.Close()
	}
	for _, l := range r.labs {
		errs = append(errs, l.Stop())
	}
	for _, p := range slices.Backward(append(r.others, r.processes...)) { // those of a lab have ended by now
		if err := p.Stop(10 * time.Second); !r.blind { // a rival's members may wait for each other for longer: nothing of them is kept
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// addrs hands out n free addresses and one error for all.
func (r *running) addrs(n int) ([]string, error) {
	out := make([]string, n)
	var err error
	for i := range out {
		var e error
		out[i], e = r.ports.Addr()
		err = errors.Join(err, e)
	}
	return out, err
}

func (r *running) process(s lab.Spec) error {
	s.Dir = r.dir
	p, err := lab.StartProcess(r.dir, s)
	if err == nil {
		r.processes = append(r.processes, p)
	}
	return err
}

// usualQuota is a sidecar's default quota of one domain.
const usualQuota = 250_000

// newCluster starts members that know each other, and no others, as users do: with mTLS between them. The door that is asked is the plain
// one, as the competitors' are.
func newCluster(ctx context.Context, a *arena, r *running, o lab.Options, members ...string) (*lab.Lab, error) {
	o.Bin, o.Expect, o.Rules = a.bin, len(members), map[string]string{"bench.yaml": rules}
	if n := a.fill + a.keys; n > usualQuota {
		o.Args = append(o.Args, "--max-keys", strconv.Itoa(2*n), "--domain-quota", strconv.Itoa(2*n))
	}
	l, err := lab.New(o)
	if err != nil {
		return nil, err
	}
	r.labs = append(r.labs, l)
	for _, m := range members {
		s, err := l.AddSidecar(m)
		if err != nil {
			return nil, err
		}
		r.targets = append(r.targets, target{addr: s.RLS})
		r.processes = append(r.processes, s.Process)
		r.metrics = append(r.metrics, s.Metrics)
		r.debug = append(r.debug, s.Debug)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return l, l.AwaitRing(ctx, members...)
}

// startCluster starts such members.
func startCluster(ctx context.Context, a *arena, r *running, dir string, members ...string) (*lab.Lab, error) {
	return newCluster(ctx, a, r, lab.Options{Dir: dir}, members...)
}

// askDirectly has a lab's members asked at the doors that they open to other pods' Envoys, with mTLS.
func askDirectly(l *lab.Lab, targets []target) error {
	conf, err := certs.Client(certs.DemoFiles(filepath.Join(l.Dir, "certs"), "envoy"), certs.ClientOptions{ServerSANs: []string{certs.DemoSAN("sidecar")}})
	if err != nil {
		return err
	}
	for i, s := range l.Sidecars {
		targets[i] = target{addr: s.Direct, member: ring.ID(s.Name), tls: conf}
	}
	return nil
}

// startDirect starts three members, each to be asked for the keys that it owns.
func startDirect(ctx context.Context, a *arena, r *running) error {
	l, err := startCluster(ctx, a, r, r.dir, "a", "b", "c")
	if err != nil {
		return err
	}
	return askDirectly(l, r.targets)
}

// startAlone starts three clusters of one member, asked for the same keys as the members of one cluster of three would be:
// what is missing is that they tell each other anything.
func startAlone(ctx context.Context, a *arena, r *running) error {
	for i, m := range []string{"a", "b", "c"} {
		dir := filepath.Join(r.dir, m)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		l, err := startCluster(ctx, a, r, dir, m)
		if err != nil {
			return err
		}
		if err := askDirectly(l, r.targets[i:]); err != nil {
			return err
		}
	}
	return nil
}
