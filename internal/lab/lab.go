// Package lab runs a Keyward cluster on loopback: sidecars, xDS servers and Envoys as processes, for the demo, the
// end-to-end tests and the benchmarks.
//
// It treats programs as black boxes: it starts them with documented flags and environment variables and reads
// documented endpoints.
package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/keyward/keyward/internal/api"
)

// Options describes a Lab.
type Options struct {
	Dir      string            // working directory: logs, certificates, rules, Envoy's files
	Bin      string            // directory of sidecar, xds and keyward
	Rules    map[string]string // rule files by name
	Regions  []string          // regions of a federation, for which there are certificates
	Insecure bool              // no mTLS and no gossip key
	Expect   int               // --expect of the sidecars; 0: none
	Env      []string          // additional environment of every sidecar
	Args     []string          // additional flags of every sidecar
	Resolv   string            // a resolv.conf that the sidecars see in place of the machine's; needs root
}

// Lab is a cluster of processes. Its methods are for one goroutine.
type Lab struct {
	Options
	Sidecars []*Sidecar
	XDS      []*XDSServer
	Envoys   []*Envoy
	ports    Ports
	started  []*Process
}

// Sidecar is a running member and its addresses.
type Sidecar struct {
	*Process
	RLS, Direct, HTTP, Debug, Metrics, Gossip, Peer, XDS, Route string
	Runtime                                                     string // RUNTIME_ROOT
	namespace                                                   string // network namespace it runs in; empty: the machine's
}

// XDSServer is a running xDS server.
type XDSServer struct {
	*Process
	Addr, Metrics, Gossip string
}

// New creates the directory, certificates and gossip key. It starts nothing.
func New(o Options) (*Lab, error) {
	l := &Lab{Options: o}
	for _, d := range []string{"log", "certs"} {
		if err := os.MkdirAll(filepath.Join(o.Dir, d), 0o755); err != nil {
			return nil, fmt.Errorf("prepare the lab: %w", err)
		}
	}
	if o.Insecure {
		return l, nil
	}
	args := []string{"certs", "--dir", l.path("certs")}
	if len(o.Regions) > 0 {
		args = append(args, "--region", strings.Join(o.Regions, ","))
	}
	out, err := exec.Command(filepath.Join(o.Bin, "keyward"), args...).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("prepare the lab: keyward certs: %w\n%s", err, out)
	}
	return l, nil
}

func (l *Lab) path(parts ...string) string {
	return filepath.Join(append([]string{l.Dir}, parts...)...)
}

// CertFile returns the path of a file of the demo CA: of "sidecar", "xds", "envoy" or "ca".
func (l *Lab) CertFile(who, ext string) string { return l.path("certs", who+ext) }

// security returns the flags for TLS and gossip keys, or --insecure.
func (l *Lab) security(who string) []string {
	if l.Insecure {
		return []string{"--insecure"}
	}
	return []string{
		"--tls-cert", l.CertFile(who, ".crt"), "--tls-key", l.CertFile(who, ".key"), "--tls-ca", l.CertFile("ca", ".crt"),
		"--gossip-key-file", l.CertFile("gossip", ".key"),
	}
}

// join returns the gossip addresses of own and of all members started so far.
func (l *Lab) join(own string) string {
	addrs := []string{own}
	for _, s := range l.Sidecars {
		addrs = append(addrs, s.Gossip)
	}
	return strings.Join(addrs, ",")
}

// AddSidecar starts one more member. Extra flags come after the lab's own.
func (l *Lab) AddSidecar(name string, args ...string) (*Sidecar, error) {
	s := &Sidecar{Runtime: l.path("runtime-" + name)}
	if err := l.ports.fill(&s.RLS, &s.Direct, &s.HTTP, &s.Debug, &s.Metrics, &s.Gossip, &s.Peer, &s.XDS, &s.Route); err != nil {
		return nil, err
	}
	if err := l.WriteRules(s, l.Rules); err != nil {
		return nil, err
	}
	if err := l.startSidecar(s, name, args); err != nil {
		return nil, err
	}
	l.Sidecars = append(l.Sidecars, s)
	return s, nil
}

// Restart starts a member that has ended, under the same name and addresses.
func (l *Lab) Restart(s *Sidecar, args ...string) error { return l.startSidecar(s, s.Name, args) }

func (l *Lab) startSidecar(s *Sidecar, name string, extra []string) error {
	host, port, _ := strings.Cut(s.RLS, ":")
	_, http, _ := strings.Cut(s.HTTP, ":")
	_, debug, _ := strings.Cut(s.Debug, ":")
	args := append([]string{
		"--node", name, "--gossip", s.Gossip, "--peer", s.Peer, "--metrics", s.Metrics, "--xds", s.XDS,
		"--rls-advertise", s.Direct, "--route-advertise", s.Route, "--cluster", "lab",
	}, l.security("sidecar")...)
	if !slices.Contains(extra, "--join") { // repeated flags add addresses
		args = append(args, "--join", l.join(s.Gossip))
	}
	if l.Expect > 0 {
		args = append(args, "--expect", fmt.Sprint(l.Expect))
	}
	args = append(append(args, l.Args...), extra...)
	path := filepath.Join(l.Bin, "sidecar")
	if l.Resolv != "" { // in its own mount namespace; exec keeps the process ID
		args = append([]string{"--mount", "sh", "-c", `mount --bind "$0" /etc/resolv.conf && exec "$@"`, l.Resolv, path}, args...)
		path = "unshare"
	}
	if s.namespace != "" {
		args = append([]string{"netns", "exec", s.namespace, path}, args...)
		path = "ip"
	}
	p, err := StartProcess(l.path("log"), Spec{Name: name, Path: path, Args: args, Env: append([]string{
		"GRPC_HOST=" + host, "GRPC_PORT=" + port, "HOST=" + host, "PORT=" + http, "DEBUG_HOST=" + host, "DEBUG_PORT=" + debug,
		"RUNTIME_ROOT=" + s.Runtime, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false", "RUNTIME_IGNOREDOTFILES=true",
		"USE_STATSD=false", "USE_PROMETHEUS=true", "LOG_LEVEL=INFO",
	}, l.Env...)})
	if err != nil {
		return err
	}
	s.Process = p
	l.started = append(l.started, p)
	return nil
}

// WriteRules replaces a member's rule files as Kubernetes replaces a ConfigMap: it writes new files and renames them.
func (l *Lab) WriteRules(s *Sidecar, files map[string]string) error {
	dir := filepath.Join(s.Runtime, "ratelimit", "config")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write rules: %w", err)
	}
	for name, text := range files {
		tmp := filepath.Join(s.Runtime, "."+name)
		if err := errors.Join(os.WriteFile(tmp, []byte(text), 0o644), os.Rename(tmp, filepath.Join(dir, name))); err != nil {
			return fmt.Errorf("write rules: %w", err)
		}
	}
	return nil
}

// AddXDS starts an xDS server that observes the members' gossip.
func (l *Lab) AddXDS(name string, args ...string) (*XDSServer, error) {
	x := &XDSServer{}
	if err := l.ports.fill(&x.Addr, &x.Metrics, &x.Gossip); err != nil {
		return nil, err
	}
	args = append(append([]string{
		"--node", name, "--gossip", x.Gossip, "--xds", x.Addr, "--metrics", x.Metrics, "--join", l.join(x.Gossip), "--cluster", "lab",
		"--envoy-connect-timeout", "250ms", // all processes share the cores of one machine
	}, l.security("xds")...), args...)
	if !l.Insecure {
		args = append(args, "--tls-peer-names", "spiffe://keyward.demo/sidecar")
	}
	p, err := StartProcess(l.path("log"), Spec{Name: name, Path: filepath.Join(l.Bin, "xds"), Args: args})
	if err != nil {
		return nil, err
	}
	x.Process = p
	l.started = append(l.started, p)
	l.XDS = append(l.XDS, x)
	return x, nil
}

// Stop stops all processes in the order they were started, Envoys first. It returns an error for each that had to be
// killed.
func (l *Lab) Stop() error {
	var errs []error
	for _, e := range l.Envoys {
		errs = append(errs, e.Stop(5*time.Second))
	}
	for _, p := range l.started {
		if p.Running() {
			_ = p.Signal(sigCont) // a paused process does not handle signals
			errs = append(errs, p.Stop(15*time.Second))
		}
	}
	return errors.Join(errs...)
}

// StopTogether is Stop for all processes at the same time, Envoys first.
func (l *Lab) StopTogether() error {
	var errs []error
	for _, e := range l.Envoys {
		errs = append(errs, e.Stop(5*time.Second))
	}
	ends := make(chan error, len(l.started))
	for _, p := range l.started {
		go func() {
			if p.Running() {
				_ = p.Signal(sigCont) // a paused process does not handle signals
			}
			ends <- p.Stop(20 * time.Second)
		}()
	}
	for range l.started {
		errs = append(errs, <-ends)
	}
	return errors.Join(errs...)
}

// Cluster returns the view of the member or xDS server with this metrics address.
func Cluster(ctx context.Context, metrics string) (api.ClusterStatus, error) {
	var v api.ClusterStatus
	body, err := Get(ctx, "http://"+metrics+"/cluster")
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(body, &v); err != nil {
		return v, fmt.Errorf("read /cluster of %s: %w", metrics, err)
	}
	return v, nil
}

// pages is a client without compression, which would cost more than it saves on loopback.
var pages = &http.Client{Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 4, IdleConnTimeout: 10 * time.Second}}

// Get fetches a page. Any status but 200 is an error with the body.
func Get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	res, err := pages.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 64<<20))
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %.200s", url, res.Status, body)
	}
	return body, err
}

// Await polls cond until it returns nil or ctx ends. It then returns cond's last error, and the one before it if the end of ctx caused
// the last one.
func Await(ctx context.Context, what string, cond func(context.Context) error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var earlier error
	for {
		err := cond(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			earlier = err
		} else if earlier != nil {
			err = fmt.Errorf("%w; before: %w", err, earlier)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, err)
		case <-tick.C:
		}
	}
}

// AwaitRing waits until all running members and xDS servers use the same ring, of these members, and the same rules.
func (l *Lab) AwaitRing(ctx context.Context, members ...string) error {
	return Await(ctx, fmt.Sprintf("a ring of %s", strings.Join(members, ", ")), func(ctx context.Context) error {
		rules := ""
		for _, s := range l.Sidecars {
			if !s.Running() {
				continue
			}
			v, err := onRing(ctx, s.Process, s.Metrics, members)
			if err != nil {
				return err
			}
			if !v.Joined || v.Ring.Disagreement > 0 || v.Rules.Disagreement > 0 {
				return fmt.Errorf("%s: joined %v, %d members disagree on the ring, %d on the rules", s.Name, v.Joined, v.Ring.Disagreement, v.Rules.Disagreement)
			}
			if rules != "" && v.Rules.InForce != rules {
				return fmt.Errorf("%s has rules %s in force, others %s", s.Name, v.Rules.InForce, rules)
			}
			rules = v.Rules.InForce
		}
		for _, x := range l.XDS {
			if !x.Running() {
				continue
			}
			if _, err := onRing(ctx, x.Process, x.Metrics, members); err != nil {
				return err
			}
		}
		return nil
	})
}

// onRing returns the /cluster document of a process, and an error unless its ring has these members.
func onRing(ctx context.Context, p *Process, metrics string, members []string) (api.ClusterStatus, error) {
	v, err := Cluster(ctx, metrics)
	if err != nil {
		return v, fmt.Errorf("%s: %w", p.Name, err)
	}
	if got := strings.Join(v.Ring.Members, ","); got != strings.Join(members, ",") {
		return v, fmt.Errorf("%s has a ring of %s", p.Name, got)
	}
	return v, nil
}
