package gateways

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/keyward/keyward/envoy/snippet"
	"github.com/keyward/keyward/internal/lab"
)

// suite is a running gateway with its members.
type suite struct {
	gateway gateway
	cluster *cluster
	client  *http.Client
	xds     *pod   // once a case has started it
	route   string // of the last policy
	figures string // measured by the running case
	without string // what the running case leaves out because the gateway lacks it
}

// gatewayCase is a case that every gateway has to pass.
type gatewayCase struct {
	name  string
	needs []feature
	run   func(*testing.T, *suite)
}

// cases are the cases, in their order.
var cases = []gatewayCase{
	{"first 429", nil, testFirst429},
	{"headers", []feature{limitHeaders, retryAfter}, testHeaders},
	{"shadow mode", []feature{shadowRule}, testShadow},
	{"units", nil, testUnits},
	{"tenants", []feature{distinctHeader}, testTenants},
	{"client addresses", []feature{distinctAddress}, testAddresses},
	{"cost of a request", []feature{requestCost}, testRequestCost},
	{"limit from metadata", []feature{limitOfMetadata}, testLimitOfMetadata},
	{"cost as a number", []feature{numberCost}, testNumberCost},
	{"budget of tokens", []feature{requestCost, responseCost, sharedRule}, testBudget},
	{"policy edited", []feature{distinctHeader}, testEdits},
	{"members replaced", []feature{distinctHeader}, testRoll},
	{"hot key", []feature{distinctHeader}, testHotKey},
	{"calls to owners", []feature{ownerDirect, distinctHeader}, testOwnerDirect},
	{"calls to owners, shared", []feature{ownerDirect, distinctHeader, sharedRule}, testOwnerDirectShared},
	{"gateway restarted", []feature{distinctHeader}, testRestarts},
	{"Keyward upgraded", []feature{distinctHeader}, testKeywardUpgraded},
	{"gateway upgraded", []feature{distinctHeader, formerVersion}, testGatewayUpgraded}, // the last one: if it fails, the former version may be running
}

func TestEnvoyGateway(t *testing.T) {
	namespace = envoyGatewayNamespace
	g := newEnvoyGateway()
	certs, err := g.prepare()
	if err != nil {
		t.Fatal(err)
	}
	s := runGateway(t, g, "envoy-ratelimit", map[string]string{"certs": certs})
	t.Run("limits without calls", func(t *testing.T) { testNoCalls(t, s, g) })
	t.Run("the fault remains: cost as a number", func(t *testing.T) { testNumberPanics(t, g) })
}

func TestEnvoyGatewayOnKubernetes(t *testing.T) {
	namespace = envoyGatewayNamespace
	g := newEnvoyGatewayKube()
	if err := g.prepare(t); err != nil {
		t.Fatal(err)
	}
	if _, err := g.workload(); err != nil {
		t.Fatal(err)
	}
	s := runGateway(t, g, "envoy-ratelimit", g.volumes)
	t.Run("limits without calls", func(t *testing.T) { testNoCalls(t, s, g) })
	t.Run("limits with the module", func(t *testing.T) { testModule(t, s, g, snippet.ModuleFilter) })
	t.Run("limits with the module as a matcher", func(t *testing.T) { testModule(t, s, g, snippet.ModuleMatcher) })
}

func TestContour(t *testing.T) {
	namespace = contourNamespace
	g := newContour()
	s := runRelease(t, g, g.release)
	t.Run("default descriptors", func(t *testing.T) { testContourDefault(t, s) })
}

func TestIstio(t *testing.T) {
	namespace = istioNamespace
	g := newIstio()
	s := runRelease(t, g, g.release)
	t.Run("limits without calls", func(t *testing.T) { testNoCalls(t, s, g) })
	t.Run("limits with the module", func(t *testing.T) { testModule(t, s, g, snippet.ModuleFilter) })
	t.Run("limits with the module as a matcher", func(t *testing.T) { testModule(t, s, g, snippet.ModuleMatcher) })
	t.Run("actions in the filter", func(t *testing.T) { testIstioFilter(t, s, g) })
}

func TestKgateway(t *testing.T) {
	namespace = kgatewayNamespace
	g := newKgateway()
	s := runRelease(t, g, g.release)
	t.Run("policy of the Gateway", func(t *testing.T) { testKgatewayDefault(t, s, g) })
}

func TestEnvoyAIGateway(t *testing.T) {
	namespace = envoyGatewayNamespace
	g := newAIGateway()
	s := runRelease(t, g, g.members)
	for _, c := range aiCases {
		t.Run(c.name, func(t *testing.T) { c.run(t, s, g) })
	}
}

// prepared is a gateway on an API server.
type prepared interface {
	gateway

	// prepare starts the API server and creates all objects but those of routes.
	prepare(t *testing.T) error
}

// runRelease runs the cases of a gateway whose members are those of Keyward's chart.
func runRelease(t *testing.T, g prepared, r *release) *suite {
	requireColumn(t, g.name())
	if err := g.prepare(t); err != nil {
		t.Fatal(err)
	}
	volumes, err := r.volumes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return runGateway(t, g, releaseName, volumes)
}

// runGateway starts a gateway and runs all cases that it supports. The gateway and its members run until the test ends.
func runGateway(t *testing.T, g gateway, service string, volumes map[string]string) *suite {
	startApplication(t)
	secrets, err := writeSecrets()
	if err != nil {
		t.Fatal(err)
	}
	for name, dir := range volumes {
		secrets[name] = dir
	}
	w, err := g.workload()
	if err != nil {
		t.Fatal(err)
	}
	s := &suite{gateway: g, client: newClient("")}
	begin := time.Now()
	t.Cleanup(func() {
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
	extra := []string{hotRate, budgetDefaults}
	if !long() { // members connect again after a second instead of 5 to 15, for which testRestarts would wait
		extra = append(extra, "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=1s", "XDS_CLIENT_BACKOFF_MAX_INTERVAL=1s")
	}
	if s.cluster, err = newCluster(t.Context(), w, service, secrets, 3, extra...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.cluster.stop(), s.xds.stop(10*time.Second)); err != nil {
			t.Error(err)
		}
	})
	if err := g.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s and three members were ready after %.1f s", g.about(), time.Since(begin).Seconds())
	for _, c := range cases {
		if why := s.omits(c.name); why != "" {
			t.Logf("%s: %s", c.name, why)
			omitted = append(omitted, result{gateway: g.name(), name: c.name})
			continue
		}
		row := result{gateway: g.name(), about: g.about(), name: c.name}
		for _, f := range c.needs {
			if why := g.lacks(f); why != "" {
				row.lacks = why
			}
		}
		ran := row.lacks != ""
		if !ran {
			s.figures, s.without = "", ""
			row.passed = t.Run(c.name, func(t *testing.T) { ran = true; c.run(t, s) })
			row.figures, row.without = s.figures, s.without
		}
		if !ran {
			continue // -run chooses other cases
		}
		results = append(results, row)
	}
	return s
}

// caseTime is longer than any case counts with an hourly limit.
const caseTime = 90 * time.Second

// awaitWindow waits for the next hour if the present one ends during a case, which would begin hourly limits again.
func awaitWindow(t *testing.T) {
	now := time.Now()
	if left := now.Truncate(time.Hour).Add(time.Hour).Sub(now); left < caseTime {
		t.Logf("waiting %.0f s for the next hour", left.Seconds())
		pause(t.Context(), left)
	}
}

// enforce applies a policy to a route and waits until a response has the limit of its first rule. It returns the number of
// requests with these headers that have been counted.
func (s *suite) enforce(t *testing.T, route string, p policy, headers ...string) int {
	t.Helper()
	awaitWindow(t)
	s.gateway.forget(s.route)
	s.route = route
	if err := s.gateway.apply(route, &p); err != nil {
		t.Fatal(err)
	}
	s.await(t, route, p.rules[0].limit, headers...)
	return 1
}

// await waits until a response has this limit, and all members have the rules of the member that decided it.
func (s *suite) await(t *testing.T, route string, limit uint, headers ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	want := fmt.Sprint(limit)
	if err := lab.Await(ctx, "limit "+want+" of "+route, func(ctx context.Context) error {
		a, err := s.get(s.client, route, headers...)
		if err == nil && a.limit() != want {
			err = fmt.Errorf("status %d, x-ratelimit-limit %q", a.status, a.header.Get("x-ratelimit-limit"))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := lab.Await(ctx, "the same rules at all members", s.cluster.agree); err != nil {
		t.Fatal(err)
	}
}

// testFirst429 limits a route: as many requests as the limit pass, and none after them.
func testFirst429(t *testing.T, s *suite) {
	counted := s.enforce(t, "first", policy{rules: []rule{{limit: 5, unit: "Hour"}}})
	for i, status := range s.sendTimes(t, 8, "first") {
		want := http.StatusOK
		if counted+i >= 5 {
			want = http.StatusTooManyRequests
		}
		if status != want {
			t.Errorf("request %d: status %d, want %d", counted+i+1, status, want)
		}
	}
}
