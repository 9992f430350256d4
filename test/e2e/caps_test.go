package e2e

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/lab"
)

// capRules have a limit for each client, for each address and for each user of a plan.
const capRules = `domain: app
descriptors:
  - key: api_key
    rate_limit: {unit: year, requests_per_unit: 20}
  - key: api_key
    value: partner
    rate_limit: {unlimited: true}
  - key: remote_address
    rate_limit: {unit: year, requests_per_unit: 200}
  - key: plan
    value: free
    descriptors:
      - key: user
        rate_limit: {unit: year, requests_per_unit: 10}
`

// caller sends requests with headers from an address of this host.
type caller struct {
	client  *http.Client
	headers map[string]string
}

func newCaller(t testing.TB, from string, headers map[string]string) *caller {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c := &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 8}}
	t.Cleanup(c.CloseIdleConnections)
	return &caller{client: c, headers: headers}
}

// send sends n requests, eight at a time, and counts the answers by status. A failed request has status 0.
func (c *caller) send(t testing.TB, envoy string, n int) map[int]int {
	t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	statuses, turns := map[int]int{}, make(chan struct{}, n)
	for range n {
		turns <- struct{}{}
	}
	close(turns)
	for range 8 {
		wg.Go(func() {
			for range turns {
				status := c.once(t, envoy)
				mu.Lock()
				statuses[status]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return statuses
}

func (c *caller) once(t testing.TB, envoy string) int {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+envoy+"/", nil)
	if err != nil {
		return 0
	}
	for k, v := range c.headers {
		req.Header.Set(k, v)
	}
	res, err := c.client.Do(req)
	if err != nil {
		return 0
	}
	res.Body.Close()
	return res.StatusCode
}

// capOf returns a hot key that is capped at its limit.
func capOf(limit uint32, owner string, entries ...hotkey.RouteEntry) hotkey.Route {
	return hotkey.Route{Domain: "app", Author: "pod-a", Version: 1, Owner: owner, Mode: hotkey.Cap, Limit: limit, Window: int64(365 * 24 * time.Hour), Entries: entries}
}

// TestHotFilters has Envoys of both versions with routes of their own, which take caps from xDS. An address and a user
// of a plan are capped while they are hot, and others are not affected. An Envoy that places calls by address spreads
// those of a hot address.
func TestHotFilters(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": capRules}, Expect: 3, Insecure: true})
	members := names(3)
	start(t, l, members...)
	i := 100
	for version, path := range envoyVersions(t) {
		i++
		x := startHotServer(t, l)
		x.kind = "TypedExtensionConfig"
		args := []string{"--from", "api_key=header:x-api-key", "--from", "plan=header:x-plan", "--from", "user=header:x-user",
			"--failure-mode-deny", "--timeout", "5s", "--hot-filters"}
		app := startHeaderCount(t)
		e := addEnvoy(t, l, lab.EnvoyOptions{Name: "hot-" + version, Path: path, Shape: "owner-direct", XDS: x.addr, Upstream: app.addr, Args: args}, ownerCluster, 3)
		byAddress := addEnvoy(t, l, lab.EnvoyOptions{Name: "address-" + version, Path: path, Shape: "owner-direct", XDS: x.addr, Upstream: app.addr,
			Args: append(args, "--key", "remote_address")}, ownerCluster, 3)
		hot, other := fmt.Sprintf("127.0.%d.2", i), fmt.Sprintf("127.0.%d.1", i)
		user := func(u string) map[string]string { return map[string]string{"x-plan": "free", "x-user": u + version} }
		subs := subKeysOn(hot, members, members...)
		x.say(t, capOf(200, hot, hotkey.RouteEntry{Key: "remote_address", Value: hot}),
			capOf(10, "hot"+version, hotkey.RouteEntry{Key: "plan", Value: "free"}, hotkey.RouteEntry{Key: "user", Value: "hot" + version}))
		for _, c := range []cappedCaller{
			{"a user of a plan", other, user("hot"), 60, 10, 20},
			{"its neighbor", other, user("cold"), 40, 10, 40},
			{"an address", hot, nil, 600, 200, 400},
			{"its neighbor", other, nil, 60, 60, 60},
		} {
			c.check(t, version, e)
		}

		spread := capOf(200, hot, hotkey.RouteEntry{Key: "remote_address", Value: hot})
		spread.Mode, spread.Subs, spread.Limit, spread.Window = hotkey.Spread, subs, 0, 0
		x.say(t, spread)
		of := &edge{byAddress, ownerCluster, addresses(l, func(s *lab.Sidecar) string { return s.Direct }), app}
		got := of.called(t, func() { newCaller(t, hot, map[string]string{subHeader: "forged"}).send(t, byAddress.Listener, 300) })
		for _, m := range members {
			if got[m] < 60 {
				t.Errorf("%s: calls for a hot address: %v", version, got)
				break
			}
		}
		want := owners(t, l, members, []string{other})[other]
		if got := of.called(t, func() { newCaller(t, other, nil).send(t, byAddress.Listener, 40) }); got[want] != 40 {
			t.Errorf("%s: calls for another address: %v, its owner is %s", version, got, want)
		}
		if n := app.leaks.Load(); n > 0 {
			t.Errorf("%s: the application got %d sub-keys", version, n)
		}
	}
}

// cappedCaller is a caller with n requests, of which Envoy admits pass and asks members about asks.
type cappedCaller struct {
	what       string
	from       string
	headers    map[string]string
	n          int
	pass, asks int
}

func (c *cappedCaller) check(t *testing.T, version string, e *lab.Envoy) {
	t.Helper()
	before := asked(t, e)
	got := newCaller(t, c.from, c.headers).send(t, e.Listener, c.n)
	want := map[int]int{200: c.pass}
	if c.n > c.pass {
		want[429] = c.n - c.pass
	}
	if n := asked(t, e) - before; !maps.Equal(got, want) || n != c.asks {
		t.Errorf("%s, %s: answered %v after %d calls, want %v after %d", version, c.what, got, n, want, c.asks)
	}
}

// asked returns how many calls Envoy has sent to members.
func asked(t testing.TB, e *lab.Envoy) (n int) {
	t.Helper()
	hosts, err := e.Requests(t.Context(), ownerCluster)
	if err != nil {
		t.Fatal(err)
	}
	for _, sent := range hosts {
		n += sent
	}
	return n
}

// TestCapsOfEveryKey has Envoys of both versions whose caps are part of their configuration. A client, an address and
// a user of a plan send far more than their limits: Envoy asks members for two limits at most. Others are not
// affected, however many there are, and no request within a limit is denied.
func TestCapsOfEveryKey(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": capRules}, Expect: 3, Insecure: true})
	start(t, l, names(3)...)
	xds := startXDS(t, l, names(3))
	i := 0
	for version, path := range envoyVersions(t) {
		i++
		e := addEnvoy(t, l, lab.EnvoyOptions{
			Name: "caps-" + version, Path: path, Shape: "owner-direct", XDS: xds.Addr, Upstream: startUpstream(t).addr,
			Args: []string{"--from", "api_key=header:x-api-key", "--from", "plan=header:x-plan", "--from", "user=header:x-user",
				"--failure-mode-deny", "--timeout", "5s", "--caps"},
		}, ownerCluster, 3)
		other, hot, third := fmt.Sprintf("127.0.%d.1", i), fmt.Sprintf("127.0.%d.2", i), fmt.Sprintf("127.0.%d.3", i)
		key := func(k string) map[string]string { return map[string]string{"x-api-key": k + version} }
		for _, c := range []cappedCaller{
			{"a client", third, key("hot"), 100, 20, 40},
			{"its neighbor", other, key("cold"), 20, 20, 20},
			{"a user of a plan", third, map[string]string{"x-plan": "free", "x-user": "hot" + version}, 60, 10, 20},
			{"a user of a plan without a limit", other, map[string]string{"x-plan": "paid", "x-user": "hot" + version}, 60, 60, 60},
			{"an unlimited client", other, map[string]string{"x-api-key": "partner"}, 60, 60, 60},
			{"an address", hot, nil, 600, 200, 400},
			{"its neighbor", other, nil, 60, 60, 60},
		} {
			c.check(t, version, e)
		}
		if status, h := get(t, e.Listener, "hot"+version); status != 429 || h.Get("Retry-After") != "31536000" {
			t.Errorf("%s: %d with Retry-After %q", version, status, h.Get("Retry-After"))
		}
	}
}
