package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/credentials"

	"github.com/keyward/keyward/internal/lab"
)

// longRules have windows that no test lives to see the end of.
const longRules = `domain: app
descriptors:
  - key: api_key
    rate_limit: {unit: year, requests_per_unit: 100}
`

// distinctKeys is n keys of many shapes that a header can carry.
func distinctKeys(prefix string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		switch i % 4 {
		case 0:
			keys[i] = fmt.Sprintf("%s-user-%d", prefix, i)
		case 1:
			keys[i] = fmt.Sprintf("%s/tenant:%d:/v1/items/%d", prefix, i%97, i)
		case 2:
			keys[i] = fmt.Sprintf("%s-10.%d.%d.%d", prefix, i>>16, i>>8&255, i&255)
		default:
			keys[i] = fmt.Sprintf("%s-\u00fc\u4e2d-%x", prefix, i*7919)
		}
	}
	return keys
}

// phase sends keys that were not used before and checks that Envoy asked each key's owner, and only it.
func phase(t *testing.T, l *lab.Lab, e *lab.Envoy, cluster string, members []string, keys []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	direct, misrouted, counted := sum(t, l, "keyward_direct_total"), sum(t, l, "keyward_misrouted_total"), sum(t, l, "keyward_keys", "table", "owned")
	sentBefore, err := e.Requests(ctx, cluster)
	if err != nil {
		t.Fatal(err)
	}
	if got := tally(sendKeys(e.Listener, keys, 16)); got[200] != len(keys) {
		t.Errorf("answers by status: %v, want %d times 200", got, len(keys))
	}
	d, m := sum(t, l, "keyward_direct_total")-direct, sum(t, l, "keyward_misrouted_total")-misrouted
	t.Logf("%d members, %d keys: %v direct, %v misrouted (%.2f %%)", len(members), len(keys), d, m, 100*d/(d+m))
	if d != float64(len(keys)) || m != 0 {
		t.Errorf("direct-hit ratio is not 100 %%: %v direct, %v misrouted of %d", d, m, len(keys))
	}
	if n := sum(t, l, "keyward_keys", "table", "owned") - counted; n != float64(len(keys)) {
		t.Errorf("%v counters were made for %d keys: not one sidecar a key", n, len(keys))
	}
	want := map[string]int{}
	for _, o := range owners(t, l, members, keys) {
		want[o]++
	}
	sent, err := e.Requests(ctx, cluster)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range l.Sidecars {
		if !s.Running() {
			continue
		}
		addr := s.Direct
		if cluster != "keyward" {
			addr = s.Route
		}
		if got := sent[addr] - sentBefore[addr]; got != want[s.Name] {
			t.Errorf("Envoy's /clusters: %s was sent %d requests, it owns %d of the keys", s.Name, got, want[s.Name])
		}
	}
}

// TestOwnerDirect has Envoys of three versions ask each key's owner, and a member join and another one leave.
func TestOwnerDirect(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": longRules}, Expect: 3})
	members := names(3)
	start(t, l, members...)
	xds := startXDS(t, l, members)
	envoys := map[string]*lab.Envoy{}
	for version, path := range map[string]string{"1.40.0": envoyBinary(t), "1.38.3": os.Getenv("ENVOY_1_38"), "1.36.4": os.Getenv("ENVOY_1_36")} {
		if path != "" {
			envoys[version] = addOwnerDirect(t, l, xds, "envoy-"+version, path, len(members))
		}
	}
	each := func(what string, members []string, keys map[string]int) {
		awaitRing(t, l, members...)
		for version, e := range envoys {
			t.Run(what+", Envoy "+version, func(t *testing.T) {
				awaitEnvoy(t, e, "keyward", len(members))
				phase(t, l, e, "keyward", members, distinctKeys(what+version, keys[version]))
			})
		}
	}
	each("steady", members, map[string]int{"1.40.0": 10_000, "1.38.3": 4000, "1.36.4": 4000})
	few := map[string]int{"1.40.0": 3000, "1.38.3": 1000, "1.36.4": 1000}

	joined := append(slices.Clone(members), "pod-x")
	if _, err := l.AddSidecar("pod-x"); err != nil {
		t.Fatal(err)
	}
	each("joined", joined, few)
	if err := l.Sidecars[0].Stop(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	each("left", joined[1:], few)
}

func startXDS(t *testing.T, l *lab.Lab, members []string) *lab.XDSServer {
	t.Helper()
	// When a connection takes longer, Envoy asks another member, which counts as misrouted: so it may, on a busy machine.
	xds, err := l.AddXDS("xds", "--envoy-connect-timeout", "2s")
	if err != nil {
		t.Fatal(err)
	}
	awaitRing(t, l, members...)
	return xds
}

// addOwnerDirect starts one of several Envoys that ask each key's owner.
func addOwnerDirect(t *testing.T, l *lab.Lab, xds *lab.XDSServer, name, path string, members int) *lab.Envoy {
	t.Helper()
	return addEnvoy(t, l, lab.EnvoyOptions{
		Name: name, Path: path, Shape: "owner-direct", XDS: xds.Addr, Upstream: startUpstream(t).addr,
		Args: []string{"--from", "api_key=header:x-api-key", "--failure-mode-deny", "--timeout", "5s"},
	}, "keyward", members)
}

// TestRoutes has an edge Envoy route by the key, to pods whose own Envoys ask the pod's own sidecar.
func TestRoutes(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": longRules}, Expect: 3, Args: []string{"--retry-after"}})
	start(t, l, names(3)...)
	routes(t, l, startXDS(t, l, names(3)), 6000)
	denied(t, l.Envoys[len(l.Envoys)-1].Listener, "denied") // the edge's
}

// TestFiveMembers does what TestOwnerDirect and TestRoutes do with five members, and no member comes or goes.
func TestFiveMembers(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": longRules}, Expect: 5})
	members := names(5)
	start(t, l, members...)
	xds := startXDS(t, l, members)
	t.Run("owner-direct", func(t *testing.T) {
		phase(t, l, addOwnerDirect(t, l, xds, "envoy", envoyBinary(t), 5), "keyward", members, distinctKeys("direct", 6000))
	})
	t.Run("routes", func(t *testing.T) { routes(t, l, xds, 6000) })
}

// routes starts an Envoy for each of the lab's sidecars and one in front of all, and sends so many keys.
func routes(t *testing.T, l *lab.Lab, xds *lab.XDSServer, keys int) {
	t.Helper()
	up := startUpstream(t)
	for _, s := range l.Sidecars {
		pod, err := l.AddEnvoy(lab.EnvoyOptions{
			Name: s.Name + "-envoy", Path: envoyBinary(t), Shape: "plain", Upstream: up.addr,
			Args: []string{"--from", "api_key=header:x-api-key", "--sidecar", s.RLS, "--routed", "--failure-mode-deny", "--timeout", "5s", "--listen", s.Route},
		})
		if err != nil {
			t.Fatal(err)
		}
		awaitReady(t, pod)
	}
	edge := addEnvoy(t, l, lab.EnvoyOptions{
		Name: "edge", Shape: "routes", XDS: xds.Addr, Upstream: up.addr,
		Args: []string{"--from", "api_key=header:x-api-key"},
	}, "keyward-routes", len(l.Sidecars))
	phase(t, l, edge, "keyward-routes", names(len(l.Sidecars)), distinctKeys("routed", keys))
	if got := up.calls.Load(); got != int64(keys) {
		t.Errorf("%d requests reached the application", got)
	}
}

func TestStrangersAreRefused(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": longRules}, Expect: 3})
	start(t, l, names(3)...)
	s := l.Sidecars[0]
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for what, creds := range map[string]credentials.TransportCredentials{"no certificate": clientTLS(t, l, ""), "no TLS": nil} {
		short, stop := context.WithTimeout(ctx, 3*time.Second)
		res, err := dial(t, s.Direct, creds).ShouldRateLimit(short, request("app", 1, "api_key", "x"))
		stop()
		if err == nil {
			t.Errorf("%s: was answered %v", what, res)
		}
	}
	res, err := dial(t, s.Direct, clientTLS(t, l, "envoy")).ShouldRateLimit(ctx, request("app", 1, "api_key", "x"))
	if err != nil || res.OverallCode != rlsv3.RateLimitResponse_OK {
		t.Errorf("with a certificate: %v, %v", res, err)
	}
}
