package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/keyward/keyward/certs"
	"github.com/keyward/keyward/lab"
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
	needsRedis  bool
	start       func(ctx context.Context, a *arena, r *running) error
}

// The names of the contestants.
const (
	nameConstant  = "constant"
	nameOne       = "keyward-1"
	nameThree     = "keyward-3"
	nameDirect    = "keyward-3-direct"
	nameAlone     = "keyward-3-alone"
	nameRatelimit = "ratelimit"
)

func contestants() []contestant {
	return []contestant{
		{Name: nameConstant, Title: "constant grpc-go server", start: startConstant},
		{Name: nameOne, Title: "Keyward, one node", start: func(ctx context.Context, a *arena, r *running) error {
			return startKeyward(ctx, a, r, "a")
		}},
		{Name: nameThree, Title: "Keyward, three nodes, asked anywhere", start: func(ctx context.Context, a *arena, r *running) error {
			return startKeyward(ctx, a, r, "a", "b", "c")
		}},
		{Name: nameDirect, Title: "Keyward, three nodes, asked at the owner", start: startDirect},
		{Name: nameAlone, Title: "Keyward, three nodes, each alone", start: startAlone},
		{Name: nameRatelimit, Title: "envoyproxy/ratelimit + Redis", needsRedis: true, start: func(ctx context.Context, a *arena, r *running) error {
			return startRatelimit(ctx, a, r)
		}},
		{Name: nameRatelimit + "-piped", Title: "envoyproxy/ratelimit + Redis, piped 150us", needsRedis: true, start: func(ctx context.Context, a *arena, r *running) error {
			return startRatelimit(ctx, a, r, "REDIS_PIPELINE_WINDOW=150us")
		}},
	}
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
	targets   []target       // where it is asked
	processes []*lab.Process // whose CPU is counted
	metrics   []string       // of Keyward: where /metrics is
	debug     []string       // where /debug/pprof is
	load      *load
	before    int // hits counted before the first round
	sent      int // calls answered since
	failed    int // calls since of which nobody knows whether they were counted

	dir   string
	labs  []*lab.Lab
	ports lab.Ports
}

// start starts c and waits until each of its processes decides by the rules. What it returns must be closed, also with
// an error.
func start(ctx context.Context, a *arena, c contestant) (*running, error) {
	r := &running{contestant: c, dir: filepath.Join(a.dir, c.Name)}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return nil, err
	}
	if err := c.start(ctx, a, r); err != nil {
		return r, err
	}
	var err error
	if r.load, err = newLoad(a.options, r.targets); err != nil {
		return r, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err = lab.Await(ctx, c.Title, func(ctx context.Context) error {
		for _, p := range r.processes {
			if !p.Running() {
				return fmt.Errorf("%s has ended: %s", p.Name, p.Tail(2000))
			}
		}
		return r.load.probe(ctx)
	})
	if err == nil {
		r.before, err = r.load.counted(ctx)
	}
	return r, err
}

// close ends what was started, the last first.
func (r *running) close() error {
	var errs []error
	if r.load != nil {
		r.load.close()
	}
	for _, l := range r.labs {
		errs = append(errs, l.Stop())
	}
	if r.labs != nil {
		return errors.Join(errs...)
	}
	for i := len(r.processes) - 1; i >= 0; i-- {
		errs = append(errs, r.processes[i].Stop(10*time.Second))
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

func startConstant(_ context.Context, a *arena, r *running) error {
	addrs, err := r.addrs(1)
	if err != nil {
		return err
	}
	r.targets = []target{{addr: addrs[0]}}
	return r.process(lab.Spec{Name: "constant", Path: a.self, Args: []string{constantCommand, addrs[0]}})
}

// startKeyward starts members as users do: with mTLS between them. The door that is asked is the plain one, as the
// competitors' are.
func startKeyward(ctx context.Context, a *arena, r *running, members ...string) error {
	_, err := startCluster(ctx, a, r, r.dir, members...)
	return err
}

// startCluster starts members that know each other, and no others.
func startCluster(ctx context.Context, a *arena, r *running, dir string, members ...string) (*lab.Lab, error) {
	l, err := lab.New(lab.Options{Dir: dir, Bin: a.bin, Expect: len(members), Rules: map[string]string{"bench.yaml": rules}})
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

// startRatelimit starts a Redis without persistence and the service over it, with the same metrics on as Keyward has.
func startRatelimit(ctx context.Context, a *arena, r *running, env ...string) error {
	path, err := buildRatelimit(ctx, a)
	if err != nil {
		return err
	}
	addrs, err := r.addrs(5) // Redis, gRPC, HTTP, debug, Prometheus
	if err != nil {
		return err
	}
	port := make([]string, len(addrs))
	for i, addr := range addrs {
		_, port[i], _ = strings.Cut(addr, ":")
	}
	config := filepath.Join(r.dir, "ratelimit", "config")
	if err := errors.Join(os.MkdirAll(config, 0o755), os.WriteFile(filepath.Join(config, "bench.yaml"), []byte(rules), 0o644)); err != nil {
		return err
	}
	err = r.process(lab.Spec{Name: "redis", Path: a.redis, Args: []string{
		"--bind", "127.0.0.1", "--port", port[0], "--save", "", "--appendonly", "no", "--daemonize", "no",
	}})
	if err != nil {
		return err
	}
	if err := awaitTCP(ctx, addrs[0]); err != nil { // the service gives up when there is no Redis
		return err
	}
	r.targets, r.debug = []target{{addr: addrs[1]}}, addrs[3:4]
	return r.process(lab.Spec{Name: "ratelimit", Path: path, Env: append([]string{
		"GRPC_HOST=127.0.0.1", "GRPC_PORT=" + port[1], "HOST=127.0.0.1", "PORT=" + port[2], "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=" + port[3],
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + addrs[0], "USE_STATSD=false", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=" + addrs[4],
		"RUNTIME_ROOT=" + r.dir, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false",
	}, env...)})
}

// buildRatelimit builds the competitor with the versions that its maintainers pinned: ratelimit/go.mod asks for nothing
// else, and go.sum holds them.
func buildRatelimit(ctx context.Context, a *arena) (string, error) {
	path := filepath.Join(a.bin, "bench", "ratelimit")
	cmd := exec.CommandContext(ctx, "go", "build", "-C", "ratelimit", "-o", path, "github.com/envoyproxy/ratelimit/src/service_cmd")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build envoyproxy/ratelimit: %w\n%s", err, out)
	}
	return path, nil
}
