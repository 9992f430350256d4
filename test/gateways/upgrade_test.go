package gateways

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/internal/promtext"
)

// upgradable is a gateway of which a former version can run as well.
type upgradable interface {
	// former returns the version before the tested one, or an empty string if it is not built.
	former() string

	// replaceControl ends the control plane, calls meanwhile, and starts the former version or the tested one. It returns when that is ready.
	replaceControl(ctx context.Context, former bool, meanwhile func() error) error

	// keepsEnvoy reports whether Envoy runs while the control plane is replaced.
	keepsEnvoy() bool

	// replaceEnvoy starts an Envoy as the running control plane wants it, sends further requests to it, calls left when the former one has
	// answered its last request, and ends that one. It is called only if keepsEnvoy.
	replaceEnvoy(ctx context.Context, left func() error) error
}

// part is a part of a gateway that is ended and started again.
type part struct {
	stop  func() error
	start func(context.Context) error
}

// controlOf returns the part that is the process of a control plane.
func controlOf(p *pod, start func(context.Context) error) part {
	return part{func() error { return p.stop(20 * time.Second) }, start}
}

// replace ends a control plane, calls each of steps, and starts the control plane. If the former version is to run, it does so with
// the whole gateway, so that its Envoy is one of the former version, too.
func replace(ctx context.Context, former bool, whole, control part, steps ...func() error) error {
	if former {
		control = whole
	}
	for _, step := range append([]func() error{control.stop}, steps...) {
		if err := step(); err != nil {
			return err
		}
	}
	return control.start(ctx)
}

// built returns the program of a gateway's tested version or of its former one, the folder with its sources, and the version.
func built(gateway string, former bool) (program, source, version string) {
	variable := "KEYWARD_GATEWAYS_" + gateway
	if former {
		variable += "_BEFORE"
	}
	return os.Getenv(variable), os.Getenv(variable + "_SOURCE"), os.Getenv(variable + "_VERSION")
}

// envoyAddress returns the address of a port of Envoy on a host that exists. It is safe for concurrent use.
func envoyAddress(host, port string) string {
	ip, _ := addHost(host)
	return ip + ":" + port
}

// awaitConfigured waits until the former Envoy limits a new route, which it gets from the new control plane.
func awaitConfigured(ctx context.Context, g gateway) error {
	const route, limit = "of-the-former-envoy", 700_003
	p := perTenant(limit)
	defer g.forget(route)
	if err := g.apply(route, &p); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	s := &suite{gateway: g}
	client := newClient("")
	return lab.Await(ctx, "a new route at the former Envoy", func(context.Context) error {
		a, err := s.get(client, route, clientHeader, "probe")
		if err == nil && (a.status != http.StatusOK || a.limit() != fmt.Sprint(limit)) {
			err = fmt.Errorf("status %d, x-ratelimit-limit %q", a.status, a.limit())
		}
		return err
	})
}

// succession replaces an Envoy by another one, as Kubernetes does while both run.
type succession struct {
	gateway gateway
	data    **pod         // the former Envoy, of which the gateway returns statistics; then the next one
	host    *atomic.Value // of the Envoy that the gateway's requests are sent to
	next    func() (*pod, error)
	active  string // end of the names of statistics with the number of requests that the former Envoy has not answered
	own     float64
}

// run starts the next Envoy, sends further requests to it, calls left when the former one has answered its last request, except own ones
// of active for the statistics, and ends that one.
func (s succession) run(ctx context.Context, left func() error) error {
	former := *s.data
	envoy, err := s.next()
	if err != nil {
		return errors.Join(err, envoy.stop(time.Second))
	}
	s.host.Store(envoy.Host)
	wait, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err = lab.Await(wait, "the last requests of the former Envoy", func(ctx context.Context) error {
		n, err := s.gateway.stat(ctx, s.active)
		if err == nil && n > s.own {
			err = fmt.Errorf("%v are active", n)
		}
		return err
	})
	if err == nil {
		err = left()
	}
	*s.data = envoy
	return errors.Join(err, former.stop(20*time.Second))
}

// formerPrograms is the folder of Keyward's programs of a former version. It is empty if only short tests run.
var formerPrograms = os.Getenv("KEYWARD_GATEWAYS_BEFORE")

// omits returns why this run has no such case, or an empty string.
func (s *suite) omits(name string) string {
	u, ok := s.gateway.(upgradable)
	switch {
	case name == "Keyward upgraded" && (!long() || formerPrograms == ""):
		return "`make gateways` builds Keyward's former version and runs this case"
	case name == "gateway upgraded" && s.gateway.lacks(formerVersion) == "" && (!long() || !ok || u.former() == ""):
		return "no former version of the gateway is built"
	}
	return ""
}

// The load of upgrades: limits that clients reach in half a minute at the earliest.
const (
	upgradeRate  = 500
	upgradeLimit = 150
)

// steady is a load of many clients at upgradeRate, in one or more parts, of which Envoy must let no request pass uncounted.
type steady struct {
	s         *suite
	route     string
	tenants   []string
	part      *load
	before    float64        // failure_mode_allowed at the start of the part
	admitted  map[string]int // by client, in the parts that have ended
	sent      int
	uncounted float64
}

// startSteady enforces the policy and starts the load.
func (s *suite) startSteady(t *testing.T, route string) *steady {
	t.Helper()
	l := &steady{s: s, route: route, admitted: map[string]int{}}
	for i := range 100 {
		l.tenants = append(l.tenants, fmt.Sprintf("tenant-%d", i))
	}
	s.enforce(t, route, perTenant(upgradeLimit), clientHeader, "probe")
	l.resume(t)
	return l
}

// allowed returns how many requests Envoy has admitted because their calls failed.
func (l *steady) allowed(t *testing.T) float64 {
	t.Helper()
	n, err := l.s.gateway.stat(t.Context(), ".ratelimit.failure_mode_allowed")
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (l *steady) resume(t *testing.T) {
	t.Helper()
	l.before = l.allowed(t)
	l.part = l.s.startLoad(l.route, upgradeRate, l.tenants)
}

// pause ends a part of the load: every request of it has been answered.
func (l *steady) pause(t *testing.T) {
	t.Helper()
	sent, err := l.part.end()
	if err != nil {
		t.Error(err)
	}
	for code, n := range l.part.codes {
		if code != 200 && code != 429 {
			t.Errorf("%d responses of status %d", n, code)
		}
	}
	l.sent += sent
	for tenant, n := range l.part.admitted {
		l.admitted[tenant] += n
	}
	l.uncounted += l.allowed(t) - l.before
}

// move counts what the Envoy has admitted that receives no more requests. The next one has admitted nothing yet.
func (l *steady) move(t *testing.T) {
	t.Helper()
	l.uncounted += l.allowed(t) - l.before
	l.before = 0
}

// await waits until n requests of the running part have been answered.
func (l *steady) await(t *testing.T, n int) {
	t.Helper()
	ctx, cancel := timeout(t, 5*time.Minute)
	defer cancel()
	if err := lab.Await(ctx, fmt.Sprintf("%d requests", n), func(context.Context) error {
		if got := l.part.total(); got < n {
			return fmt.Errorf("%d answered", got)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// finish sends requests until all clients have reached their limits, and requires that each got its limit. It returns the figures.
func (l *steady) finish(t *testing.T) string {
	t.Helper()
	l.await(t, (upgradeLimit+20)*len(l.tenants))
	l.pause(t)
	admitted := 0
	for _, tenant := range l.tenants {
		if got := l.admitted[tenant]; got != upgradeLimit {
			t.Errorf("%s: %d requests admitted, want %d", tenant, got, upgradeLimit)
		}
		admitted += l.admitted[tenant]
	}
	if l.uncounted != 0 {
		t.Errorf("%v requests were admitted because their calls failed", l.uncounted)
	}
	return fmt.Sprintf("%d requests, %d admitted of a limit of %d, %v uncounted", l.sent, admitted, upgradeLimit*len(l.tenants), l.uncounted)
}

// versions returns the versions of the members' programs.
func (c *cluster) versions(ctx context.Context) (map[string]bool, error) {
	all := map[string]bool{}
	for _, m := range c.members {
		page, err := lab.Get(ctx, "http://"+m.ip+c.metrics+"/metrics")
		if err != nil {
			return nil, err
		}
		samples, err := promtext.Parse(page)
		if err != nil {
			return nil, err
		}
		for _, series := range samples["keyward_build_info"] {
			all[series.Labels["version"]] = true
		}
	}
	return all, nil
}

// testKeywardUpgraded replaces members of the former version by members of this one, under load.
func testKeywardUpgraded(t *testing.T, s *suite) {
	s.cluster.programs = formerPrograms
	defer func() { s.cluster.programs = programs }()
	if err := s.cluster.replace(t.Context()); err != nil {
		t.Fatal(err)
	}
	from, err := s.cluster.versions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l := s.startSteady(t, "keyward-upgraded")
	l.await(t, 1000)
	begin := time.Now()
	s.cluster.programs = programs
	if err := s.cluster.replace(t.Context()); err != nil {
		t.Fatal(err)
	}
	took := time.Since(begin)
	to, err := s.cluster.versions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(from) != 1 || len(to) != 1 || maps.Equal(from, to) {
		t.Fatalf("the members' versions were %v and are %v", from, to)
	}
	s.figure(t, "3 members upgraded from %s in %.0f s: %s", slices.Collect(maps.Keys(from))[0], took.Seconds(), l.finish(t))
}

// testGatewayUpgraded replaces the former version of the control plane by the tested one under load, and then the members by those of its
// Deployment. A policy that is edited while no control plane runs is in force at all members afterwards, and so is one of a new route.
func testGatewayUpgraded(t *testing.T, s *suite) {
	u := s.gateway.(upgradable)
	if err := u.replaceControl(t.Context(), true, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	const other, edited = "edited-meanwhile", 700_001
	defer s.gateway.forget(other)
	l := s.startSteady(t, "gateway-upgraded")
	p := perTenant(edited - 1)
	if err := s.gateway.apply(other, &p); err != nil {
		t.Fatal(err)
	}
	s.await(t, other, edited-1, clientHeader, "probe")
	l.await(t, 1000)
	if !u.keepsEnvoy() {
		l.pause(t)
	}
	if err := u.replaceControl(t.Context(), false, func() error {
		p := perTenant(edited)
		return s.gateway.apply(other, &p)
	}); err != nil {
		t.Fatal(err)
	}
	begin, took := time.Now(), time.Duration(0)
	left := func() error {
		if u.keepsEnvoy() {
			l.move(t)
		}
		ctx, cancel := timeout(t, 2*time.Minute)
		defer cancel()
		err := s.inForce(ctx, other, edited)
		took = time.Since(begin)
		return err
	}
	inForce := func() error { return u.replaceEnvoy(t.Context(), left) }
	if !u.keepsEnvoy() {
		inForce = left
	}
	if err := inForce(); err != nil {
		t.Fatal(err)
	}
	if !u.keepsEnvoy() {
		l.resume(t)
	}
	w, err := s.gateway.workload()
	if err != nil {
		t.Fatal(err)
	}
	s.cluster.workload = w
	const added = "added-afterwards"
	defer s.gateway.forget(added)
	if err := s.gateway.apply(added, &p); err != nil {
		t.Fatal(err)
	}
	s.await(t, added, edited-1, clientHeader, "probe")
	if err := s.cluster.replace(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.figure(t, "from %s: an edit made meanwhile in force at every member %.1f s after the new version was ready; %s", u.former(), took.Seconds(), l.finish(t))
}
