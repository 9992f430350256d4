package gateways

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/internal/promtext"
)

// extensible is a gateway whose resources can add filters to Envoy.
type extensible interface {
	gateway

	// place returns the arguments of keyward envoy-config that name the gateway and where it is.
	place() []string

	// extend applies objects in addition to those of routes. It removes those of the call before that are missing.
	extend(ctx context.Context, objects []object) error

	// finds returns the function that makes the gateway find a Service, for workload.found.
	finds(service string) func(ready []string) error
}

// The release whose limits Envoys spend without calls. It runs next to that of the other cases.
const (
	noCallRelease = "limits"
	noCallRoute   = "nocall"
	noCallLimit   = 400
	noCallWindow  = 10 * time.Second
	noCallRules   = `domain: limits
descriptors:
- key: client
  rate_limit: {unit: second, requests_per_unit: 400}
  metadata: {keyward: {mechanism: quota, window: 10s, degraded: fail_closed}}
`
)

// limits returns the workload of a release of the chart that has noCallRules, and the folders of its volumes.
func (s *suite) limits(t *testing.T, g extensible) (w workload, volumes map[string]string) {
	t.Helper()
	text, err := os.ReadFile("../../charts/testdata/deployment.yaml")
	if err != nil {
		t.Fatal(err)
	}
	r := &release{}
	if r.objects, err = readObjects(text); err != nil {
		t.Fatal(err)
	}
	if w, err = r.workload(); err != nil {
		t.Fatal(err)
	}
	w.gossip, w.found = noCallRelease+"-gossip", g.finds(noCallRelease)
	for name, value := range map[string]string{"KEYWARD_CLUSTER": noCallRelease, "KEYWARD_JOIN": "dns+" + w.gossip + ":7946"} {
		i := slices.IndexFunc(w.env, func(v envVar) bool { return v.Name == name })
		if i < 0 {
			t.Fatalf("the chart does not set %s", name)
		}
		w.env[i].Value = value
	}
	volumes = maps.Clone(s.cluster.volumes)
	volumes["keyward-rules"], volumes["keyward-run"], volumes["keyward-data"] = noCallFolder(), "", ""
	return w, volumes
}

// startLimits starts the three members of the release, until the test ends.
func (s *suite) startLimits(t *testing.T, g extensible) *cluster {
	t.Helper()
	w, volumes := s.limits(t, g)
	c, err := newCluster(t.Context(), w, noCallRelease, volumes, 3)
	t.Cleanup(func() { c.stopAll(t) })
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *cluster) stopAll(t *testing.T) {
	if c == nil {
		return
	}
	if err := c.stop(); err != nil {
		t.Error(err)
	}
}

// noCallFolder is the folder of noCallRules.
func noCallFolder() string { return file("files", "nocall-rules") }

// printNoCall returns the resources that the tool prints for an Envoy without calls.
func printNoCall(g extensible, args ...string) ([]object, error) {
	if err := writeFile(filepath.Join(noCallFolder(), "limits.yaml"), []byte(noCallRules)); err != nil {
		return nil, err
	}
	return printObjects(slices.Concat(g.place(), []string{
		"--rules", noCallFolder(), "--from", "client=header:" + clientHeader, "--release", noCallRelease, "--namespace", namespace, "--envoy-version", moduleVersion}, args)...)
}

// testNoCalls has the gateway's Envoy spend a limit of 10 s that members assign to it, by the resources as the tool prints them, with
// twice the limit offered. No window gets more than the limit, also while a member is killed and starts again, those in which nothing
// fails use 95 % of it, and there are no calls.
func testNoCalls(t *testing.T, s *suite, g extensible) {
	objects, err := printNoCall(g, "--shape", "rlqs")
	if err != nil {
		t.Fatal(err)
	}
	members := s.startLimits(t, g)
	s.extendRoute(t, g, objects)
	s.awaitAnswer(t, "a refusal of a new client, until its assignment arrives", "new-*", func(a answer) bool {
		return a.status == http.StatusTooManyRequests && a.header.Get("x-envoy-ratelimited") != ""
	})
	s.awaitAnswer(t, "an assignment", "warm", func(a answer) bool { return a.status == http.StatusOK })
	const learning, full, faulty = 2, 3, 3
	begin := time.Now().Truncate(noCallWindow).Add(noCallWindow)
	l := startWindows(s, begin, learning+full+faulty)
	before, err := members.sum(t.Context(), "keyward_decisions_total")
	if err != nil {
		t.Fatal(err)
	}
	pause(t.Context(), time.Until(begin.Add((learning+full)*noCallWindow+noCallWindow/3)))
	restarted := members.killStreaming(t)
	l.wait()
	after, err := members.sum(t.Context(), "keyward_decisions_total")
	if err != nil {
		t.Fatal(err)
	}
	l.check(t, learning, learning+full)
	if calls := after - before; calls > 0 {
		t.Errorf("members decided %v calls", calls)
	}
	s.figure(t, "%d requests: %v admitted in windows of %d, %s killed in window %d; %v calls", l.sent, l.admitted, noCallLimit, restarted, learning+full, after-before)
}

// extendRoute applies a route without limits of the gateway's and the resources of the tool, which are removed when the test ends.
func (s *suite) extendRoute(t *testing.T, g extensible, objects []object) {
	t.Helper()
	s.gateway.forget(s.route)
	s.route = noCallRoute
	if err := errors.Join(g.apply(noCallRoute, &policy{}), g.extend(t.Context(), objects)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.extend(context.Background(), nil); err != nil {
			t.Error(err)
		}
	})
}

// awaitAnswer sends requests of clients in turn until an answer is as wanted.
func (s *suite) awaitAnswer(t *testing.T, what, client string, wanted func(answer) bool) {
	t.Helper()
	ctx, cancel := timeout(t, 30*time.Second)
	defer cancel()
	n := 0
	if err := lab.Await(ctx, what, func(context.Context) error {
		n++
		a, err := s.get(s.client, noCallRoute, clientHeader, strings.ReplaceAll(client, "*", fmt.Sprint(n)))
		if err == nil && !wanted(a) {
			err = fmt.Errorf("status %d with %v", a.status, a.header)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// killStreaming kills a member to which an Envoy has a stream and starts it again, as Kubernetes does with the pod of a StatefulSet,
// and returns its name.
func (c *cluster) killStreaming(t *testing.T) string {
	t.Helper()
	i := slices.IndexFunc(c.members, func(m *member) bool {
		page, err := lab.Get(t.Context(), "http://"+m.ip+c.metrics+"/metrics")
		if err != nil {
			return false
		}
		samples, err := promtext.Parse(page)
		return err == nil && samples.Sum("keyward_quota_streams") > 0
	})
	if i < 0 {
		t.Fatal("no member has a stream of an Envoy")
	}
	m := c.members[i]
	m.process.Kill()
	c.members = slices.Delete(c.members, i, i+1)
	if _, err := c.addNamed(m.Name); err != nil {
		t.Fatal(err)
	}
	if err := c.awaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	return m.Name
}

// windowed is a steady load of one client, twice the limit, through complete windows.
type windowed struct {
	begin     time.Time
	done      sync.WaitGroup
	uncounted int // requests that Envoy admitted because their call failed, which may be above the limit

	mu       sync.Mutex
	sent     int         // guarded by mu
	admitted []int       // by window; guarded by mu
	turns    []int       // admitted while this window began, in it or in the one before; guarded by mu
	codes    map[int]int // guarded by mu
	errors   []error     // guarded by mu
}

// startWindows sends requests of a client from begin on, for a number of windows.
func startWindows(s *suite, begin time.Time, windows int) *windowed {
	l := &windowed{begin: begin, admitted: make([]int, windows), turns: make([]int, windows+1), codes: map[int]int{}}
	const workers, perSecond = 4, 2 * noCallLimit / 10
	client, period, end := newClient(""), time.Second*workers/perSecond, begin.Add(time.Duration(windows)*noCallWindow)
	for i := range workers {
		l.done.Go(func() {
			for next := begin.Add(period * time.Duration(i) / workers); next.Before(end); next = next.Add(period) {
				if late := time.Since(next); late > 10*period { // a burst would be another load
					next = time.Now()
				}
				time.Sleep(time.Until(next))
				sent := time.Now()
				if !sent.Before(end) {
					break
				}
				a, err := s.get(client, noCallRoute, clientHeader, "alice")
				l.record(sent, time.Now(), a.status, err)
			}
		})
	}
	return l
}

// clockMargin is how far a member's clock may be behind that of the tests: it counts a request that is sent as a window begins in the one
// before.
const clockMargin = 50 * time.Millisecond

// record counts an answer. Of an answered request, Envoy has decided between sent and at.
func (l *windowed) record(sent, at time.Time, status int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent++
	if err != nil {
		l.errors = append(l.errors, err)
		return
	}
	l.codes[status]++
	if status != http.StatusOK {
		return
	}
	w := int(at.Sub(l.begin) / noCallWindow)
	if turn := l.begin.Add(time.Duration(w) * noCallWindow); sent.Before(turn.Add(clockMargin)) {
		l.turns[min(w, len(l.admitted))]++
	} else if w < len(l.admitted) {
		l.admitted[w]++
	}
}

func (l *windowed) wait() { l.done.Wait() }

// check requires that no window has more than the limit, and that windows [from, to) together have 95 % of it.
func (l *windowed) check(t *testing.T, from, to int) {
	t.Helper()
	for code, n := range l.codes {
		if code != http.StatusOK && code != http.StatusTooManyRequests {
			t.Errorf("%d responses of status %d", n, code)
		}
	}
	if err := errors.Join(l.errors...); err != nil {
		t.Error(err)
	}
	total, used := 0, 0
	for w, n := range l.admitted {
		total += n + l.turns[w]
		t.Logf("window %d: %d admitted, and %d at its begin", w, n, l.turns[w])
		if n > noCallLimit+l.uncounted {
			t.Errorf("window %d: %d admitted, above the limit of %d", w, n, noCallLimit)
		}
		if w >= from && w < to {
			used += n + l.turns[w]
		}
	}
	if limit := noCallLimit * (to - from); used < limit*95/100 {
		t.Errorf("only %d admitted in windows %d to %d with limits of %d in all", used, from, to-1, limit)
	}
	if limit := noCallLimit*len(l.admitted) + l.turns[0] + l.uncounted; total > limit { // the first ones may count in the window before
		t.Errorf("%d admitted in %d windows of %d", total, len(l.admitted), noCallLimit)
	}
}

// place implements extensible.
func (g *istio) place() []string {
	return []string{"--for", "istio", "--selector", "istio=ingressgateway"}
}

// extend implements extensible.
func (g *istio) extend(ctx context.Context, objects []object) error {
	if err := g.applyNew(ctx, objects...); err != nil {
		return err
	}
	for _, old := range g.extra {
		if slices.ContainsFunc(objects, func(o object) bool { return sameObject(o, old) }) {
			continue
		}
		if err := g.kube.remove(old); err != nil {
			return err
		}
	}
	g.extra = objects
	return nil
}

func sameObject(a, b object) bool {
	one, _ := objectPath(a)
	two, _ := objectPath(b)
	return one == two
}

// finds implements extensible.
func (g *istio) finds(name string) func([]string) error {
	return func(ready []string) error {
		return g.kube.apply(service(g.namespace, name, "grpc", 8081), endpoints(g.namespace, name, "grpc", 8081, ready...))
	}
}

// place implements extensible.
func (g *envoyGateway) place() []string {
	return []string{"--for", "envoy-gateway", "--gateway", gatewayName, "--gateway-namespace", gatewayNamespace}
}

const noCallKey = " limits without calls"

// setExtra sets the objects of extend.
func (g *envoyGateway) setExtra(objects []object) {
	delete(g.routes, noCallKey)
	for _, o := range objects {
		g.routes[noCallKey] = append(g.routes[noCallKey], o)
	}
}

// extend implements extensible.
func (g *envoyGateway) extend(_ context.Context, objects []object) error {
	g.setExtra(objects)
	return g.write()
}

// extend implements extensible.
func (g *envoyGatewayKube) extend(_ context.Context, objects []object) error {
	g.setExtra(objects)
	return g.write()
}

// finds implements extensible: Envoy finds the Service by its name.
func (g *envoyGateway) finds(string) func([]string) error { return nil }
