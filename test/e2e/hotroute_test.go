package e2e

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/keyward/keyward/envoy/xds"
	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/ring"
)

// endlessRules count and never refuse.
const endlessRules = `domain: app
descriptors:
  - key: api_key
    rate_limit: {unit: year, requests_per_unit: 1000000000}
`

// Names in the configuration that Envoy receives.
const (
	ownerCluster = "keyward"        // the rate limit services of the members
	routeCluster = "keyward-routes" // the Envoys of the pods
	subHeader    = "x-keyward-sub"  // the sub-key of a hot key
)

// hotServer is an xDS server whose state the test sets.
type hotServer struct {
	*xds.DiscoveryServer
	addr  string
	state xds.ServedState
	kind  string // of the resources with hot keys
	said  int
}

func startHotServer(t *testing.T, l *lab.Lab) *hotServer {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	x := &hotServer{DiscoveryServer: xds.New(t.Context(), xds.Options{}), addr: ln.Addr().String(), kind: "RouteConfiguration",
		state: xds.ServedState{Connect: 250 * time.Millisecond}}
	for _, s := range l.Sidecars {
		x.state.Members = append(x.state.Members, xds.Endpoint{ID: ring.ID(s.Name), RLS: s.Direct, Route: s.Route})
	}
	g := grpc.NewServer()
	x.Register(g)
	go func() { _ = g.Serve(ln) }()
	t.Cleanup(g.Stop)
	if err := x.Set(x.state); err != nil {
		t.Fatal(err)
	}
	return x
}

// say serves these hot keys and waits until every Envoy has them.
func (x *hotServer) say(t *testing.T, hot ...hotkey.Route) {
	t.Helper()
	x.state.Hot = hot
	if x.kind != "RouteConfiguration" {
		x.state.Hot = append(x.state.Hot, x.marks()...)
	}
	if err := x.Set(x.state); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "the routes", func(context.Context) error {
		st := x.Status()
		for _, c := range st.Clients {
			if got := c.Types[x.kind]; got.Accepted != st.Versions[x.kind] {
				return fmt.Errorf("%s uses %+v", c.Node, got)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// marks are hot keys that no request has. They change every resource, so that Envoys that use some resources receive
// each version.
func (x *hotServer) marks() (all []hotkey.Route) {
	x.said++
	for i, key := range []string{"mark", "remote_address"} {
		mark := fmt.Sprint("mark-", x.said, "-", i)
		all = append(all, hotkey.Route{Domain: "app", Author: "pod-a", Version: 1, Owner: mark, Mode: hotkey.Spread, Limit: 1, Window: int64(365 * 24 * time.Hour),
			Subs: []hotkey.SubKey{{Key: mark + "#0", Member: "pod-a"}}, Entries: []hotkey.RouteEntry{{Key: key, Value: mark}}})
	}
	return all
}

// subKeysOn is a sub-key on each of the members.
func subKeysOn(key string, all []string, members ...string) (subs []hotkey.SubKey) {
	on := make([]ring.Member, len(all))
	for i, m := range all {
		on[i] = ring.Member{ID: ring.ID(m), Weight: 1}
	}
	r := ring.New(on)
	for i := 0; len(subs) < len(members); i++ {
		sub := fmt.Sprint(key, "#", i)
		if m := ring.ID(members[len(subs)]); r.At(r.Owner(ring.Hash(sub))).ID == m {
			subs = append(subs, hotkey.SubKey{Key: sub, Member: m})
		}
	}
	return subs
}

// edge is an Envoy, and where the hosts of a cluster of it are.
type edge struct {
	*lab.Envoy
	cluster string
	names   map[string]string // of the members, by address
	app     *headerCount
}

// headerCount is an application that counts the requests with a sub-key, which are meant for Envoy and sidecars alone.
type headerCount struct {
	addr       string
	all, leaks atomic.Int64
}

func startHeaderCount(t *testing.T) *headerCount {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &headerCount{addr: ln.Addr().String()}
	srv := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		a.all.Add(1)
		if r.Header.Get(subHeader) != "" {
			a.leaks.Add(1)
		}
	})}
	go func() { _ = srv.Serve(ln) }()
	t.Cleanup(func() { srv.Close() })
	return a
}

// offer sends a request a key, all with a sub-key that the client made up, and says how many each member got and how they were
// answered.
func (e *edge) offer(t *testing.T, forged string, keys ...string) (got map[string]int, statuses map[int]int) {
	t.Helper()
	statuses = map[int]int{}
	got = e.called(t, func() { e.offerAll(forged, keys, statuses) })
	return got, statuses
}

// called returns how many requests or calls Envoy sends to each member while do runs.
func (e *edge) called(t *testing.T, do func()) map[string]int {
	t.Helper()
	before, err := e.Requests(t.Context(), e.cluster)
	if err != nil {
		t.Fatal(err)
	}
	do()
	after, err := e.Requests(t.Context(), e.cluster)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for addr, n := range after {
		if n -= before[addr]; n > 0 {
			got[e.names[addr]] = n
		}
	}
	return got
}

func (e *edge) offerAll(forged string, keys []string, statuses map[int]int) {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 8}}
	defer client.CloseIdleConnections()
	var mu sync.Mutex
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(keys); i = int(next.Add(1)) - 1 {
				status := sendForged(client, e.Listener, keys[i], forged)
				mu.Lock()
				statuses[status]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

// sendForged is the status of the answer, 0 when there is none.
func sendForged(client *http.Client, envoy, key, forged string) int {
	req, err := http.NewRequest(http.MethodGet, "http://"+envoy+"/", nil)
	if err != nil {
		return 0
	}
	req.Header["x-api-key"] = []string{key}
	req.Header[subHeader] = []string{forged}
	res, err := client.Do(req)
	if err != nil {
		return 0
	}
	res.Body.Close()
	return res.StatusCode
}

// TestHotRoute: a hot key's requests go to its sub-keys' members, each as many, and nothing else changes.
func TestHotRoute(t *testing.T) {
	versions := []struct{ name, path string }{{"1.40.0", envoyBinary(t)}, {"1.38.3", os.Getenv("ENVOY_1_38")}, {"1.36.4", os.Getenv("ENVOY_1_36")}}
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": endlessRules}, Expect: 5, Insecure: true})
	members := names(5)
	start(t, l, members...)
	for _, v := range versions {
		if v.path != "" {
			t.Run("owner-direct, Envoy "+v.name, func(t *testing.T) {
				x, app := startHotServer(t, l), startHeaderCount(t)
				e := addEnvoy(t, l, lab.EnvoyOptions{
					Name: "direct-" + v.name, Path: v.path, Shape: "owner-direct", XDS: x.addr, Upstream: app.addr,
					Args: []string{"--from", "api_key=header:x-api-key", "--hot-routes", "--failure-mode-deny", "--timeout", "5s"},
				}, ownerCluster, len(members))
				hotRoutes(t, x, l, &edge{e, ownerCluster, addresses(l, func(s *lab.Sidecar) string { return s.Direct }), app})
			})
			t.Run("owner-direct with routes of its own, Envoy "+v.name, func(t *testing.T) {
				x, app := startHotServer(t, l), startHeaderCount(t)
				x.kind = "TypedExtensionConfig"
				e := addEnvoy(t, l, lab.EnvoyOptions{
					Name: "own-" + v.name, Path: v.path, Shape: "owner-direct", XDS: x.addr, Upstream: app.addr,
					Args: []string{"--from", "api_key=header:x-api-key", "--hot-filters", "--failure-mode-deny", "--timeout", "5s"},
				}, ownerCluster, len(members))
				hotRoutes(t, x, l, &edge{e, ownerCluster, addresses(l, func(s *lab.Sidecar) string { return s.Direct }), app})
			})
		}
	}
	t.Run("routes", func(t *testing.T) {
		x, app := startHotServer(t, l), startHeaderCount(t)
		for _, s := range l.Sidecars {
			pod, err := l.AddEnvoy(lab.EnvoyOptions{
				Name: s.Name + "-envoy", Path: envoyBinary(t), Shape: "plain", Upstream: app.addr,
				Args: []string{"--from", "api_key=header:x-api-key", "--sidecar", s.RLS, "--routed", "--hot-routes", "--failure-mode-deny", "--timeout", "5s", "--listen", s.Route},
			})
			if err != nil {
				t.Fatal(err)
			}
			awaitReady(t, pod)
		}
		e := addEnvoy(t, l, lab.EnvoyOptions{
			Name: "edge", Shape: "routes", XDS: x.addr, Upstream: app.addr, Args: []string{"--from", "api_key=header:x-api-key", "--hot-routes"},
		}, routeCluster, len(members))
		hotRoutes(t, x, l, &edge{e, routeCluster, addresses(l, func(s *lab.Sidecar) string { return s.Route }), app})
	})
}

func addresses(l *lab.Lab, of func(*lab.Sidecar) string) map[string]string {
	names := map[string]string{}
	for _, s := range l.Sidecars {
		names[of(s)] = s.Name
	}
	return names
}

// hotRoutes lets a key become hot in every way, and cool again.
func hotRoutes(t *testing.T, x *hotServer, l *lab.Lab, e *edge) {
	const hot = "100% h\u00f6t"
	members := names(5)
	some, last := members[:4], members[4]
	requests := slices.Repeat([]string{hot}, 1000)
	owner := owners(t, l, members, []string{hot})[hot]
	forged := subKeysOn(hot, members, last)[0]
	all := func(what string, want map[string]int, statuses map[int]int, got map[string]int, by map[int]int) {
		t.Helper()
		if !maps.Equal(got, want) || !maps.Equal(by, statuses) {
			t.Errorf("%s: %v answered %v, want %v answered %v", what, got, by, want, statuses)
		}
	}
	ok := func(n int) map[int]int { return map[int]int{200: n} }

	got, by := e.offer(t, forged.Key, requests[:300]...)
	all("before it is hot", map[string]int{owner: 300}, ok(300), got, by)

	spread := hotkey.Route{Author: "pod-a", Version: 1, Domain: "app", Name: "api_key=" + hot, Owner: hot, Mode: hotkey.Spread, Subs: subKeysOn(hot, members, some...)}
	x.say(t, spread)
	got, by = e.offer(t, forged.Key, requests...)
	most, total := 0, 0
	for _, m := range some {
		most, total = max(most, got[m]), total+got[m]
	}
	ratio := float64(most) / (float64(total) / float64(len(some)))
	t.Logf("spread over %v: %v, max/mean %.3f", some, got, ratio)
	if total != len(requests) || by[200] != len(requests) || ratio > 1.3 {
		t.Errorf("spread over %v: %v answered %v, max/mean %.2f", some, got, by, ratio)
	}

	keys := distinctKeys("cold-"+e.Name, 500)
	want := map[string]int{}
	for _, o := range owners(t, l, members, keys) {
		want[o]++
	}
	got, by = e.offer(t, spread.Subs[0].Key, keys...)
	all("the others meanwhile", want, ok(len(keys)), got, by)

	x.say(t, hotkey.Route{Author: "pod-a", Version: 1, Domain: "app", Owner: hot, Mode: hotkey.Dedicated, Subs: []hotkey.SubKey{forged}})
	got, by = e.offer(t, spread.Subs[0].Key, requests[:300]...)
	all("dedicated", map[string]int{last: 300}, ok(300), got, by)

	if n := e.app.leaks.Load(); n > 0 {
		t.Errorf("the application got %d sub-keys", n)
	}
	reached := e.app.all.Load()
	limited := hotkey.Route{Author: "pod-a", Version: 2, Domain: "app", Name: "api_key=" + hot, Owner: hot, Mode: hotkey.Cap, Limit: 20, Window: int64(24 * time.Hour),
		Entries: []hotkey.RouteEntry{{Key: "api_key", Value: hot}}}
	x.say(t, limited, hotkey.Route{Author: "pod-b", Version: 1, Domain: "web", Owner: hot, Mode: hotkey.Spread, Subs: spread.Subs})
	if _, by = e.offer(t, forged.Key, requests[:100]...); by[200] != 40 || by[429] != 60 {
		t.Errorf("capped: answered %v, want the first 40 to pass", by)
	}
	if n := e.app.all.Load() - reached; n != 40 {
		t.Errorf("capped: %d requests reached the application, want 40", n)
	}
	if status, h := get(t, e.Listener, hot); status != 429 || !slices.Equal(h.Values("Retry-After"), []string{"86400"}) {
		t.Errorf("capped: %d with Retry-After %q", status, h.Values("Retry-After"))
	}
	got, by = e.offer(t, forged.Key, keys...)
	all("the others, uncapped", want, ok(len(keys)), got, by)

	x.say(t)
	got, by = e.offer(t, forged.Key, requests[:300]...)
	all("when it has cooled", map[string]int{owner: 300}, ok(300), got, by)
}
