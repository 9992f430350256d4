package e2e

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

const (
	hotQuotaLimit  = 1500
	hotQuotaWindow = 10 * time.Second
	// hotQuotaMark is in Envoy's configuration while the route of a key enables the quota's filter.
	hotQuotaMark = "config.route.v3.FilterConfig"
)

const hotQuotaRules = `domain: app
descriptors:
- key: api_key
  rate_limit: {unit: second, requests_per_unit: 1500}
  metadata: {keyward: {hot_step: quota, window: 10s, degraded: fail_closed, envoys: 5}}
`

// timedAnswer is the answer to one request.
type timedAnswer struct {
	sent, answered time.Time
	status         int
}

// timedLoad sends requests for a key at a steady rate until ctx ends.
type timedLoad struct {
	mu  sync.Mutex
	all []timedAnswer // guarded by mu
}

func (x *timedLoad) run(ctx context.Context, envoy, key string, perSecond int) {
	sendSteadily(ctx, envoy, key, perSecond, 4, func(sent, at time.Time, status int) {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.all = append(x.all, timedAnswer{sent, at, status})
	})
}

// count returns the answers by status, and the largest number of requests that were certainly admitted in one window. In
// its last 250 ms, calls may be counted in the next one.
func (x *timedLoad) count() (by map[int]int, most int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	by = map[int]int{}
	windows := map[time.Time]int{}
	for _, a := range x.all {
		by[a.status]++
		w := a.sent.Truncate(hotQuotaWindow)
		if end := w.Add(hotQuotaWindow - 250*time.Millisecond); a.status == http.StatusOK && a.answered.Before(end) {
			windows[w]++
			most = max(most, windows[w])
		}
	}
	return by, most
}

// refused returns the requests that were refused between two times.
func (x *timedLoad) refused(from, to time.Time) (n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, a := range x.all {
		if a.status == http.StatusTooManyRequests && a.answered.After(from) && a.sent.Before(to) {
			n++
		}
	}
	return n
}

// freeLoopback returns an address to listen on.
func freeLoopback(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// hotQuotaEnvoy starts members and an Envoy next to the first one, which primes keys through it. order runs keyward hot.
func hotQuotaEnvoy(t *testing.T, members int, args ...string) (e *edge, l *lab.Lab, order func(args ...string) string) {
	t.Helper()
	l = newLab(t, lab.Options{Insecure: true, Rules: map[string]string{"app.yaml": hotQuotaRules}, Expect: members, Args: args})
	socket := "unix:" + filepath.Join(t.TempDir(), "a.sock")
	for i, m := range names(members) {
		var own []string
		if i == 0 {
			own = []string{"--prime-listener", freeLoopback(t), "--admin", socket}
		}
		if _, err := l.AddSidecar(m, own...); err != nil {
			t.Fatal(err)
		}
	}
	awaitRing(t, l, names(members)...)
	s := l.Sidecars[0]
	envoy, err := l.AddEnvoy(lab.EnvoyOptions{
		Name: "envoy", Path: envoyBinary(t), Shape: "rlqs", XDS: s.XDS, Upstream: startUpstream(t).addr, Concurrency: 2,
		Args: []string{"--from", "api_key=header:x-api-key", "--hot-routes", "--sidecar", s.RLS, "--failure-mode-deny", "--timeout", "5s"},
	})
	if err != nil {
		t.Fatal(err)
	}
	awaitReady(t, envoy)
	e = &edge{Envoy: envoy, cluster: ownerCluster}
	return e, l, func(args ...string) string {
		t.Helper()
		out, err := exec.Command(filepath.Join(l.Bin, "keyward"), append([]string{"hot", "--admin", socket}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("keyward hot %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
}

// TestHotQuotaSwitch switches two keys from calls to the quota and back while they are used. Of the one below its limit no
// request is refused meanwhile, and of the one above it no window admits more than the limit.
func TestHotQuotaSwitch(t *testing.T) {
	e, _, order := hotQuotaEnvoy(t, 1)
	var below, above timedLoad
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { below.run(ctx, e.Listener, "below", hotQuotaLimit*3/100) })
	wg.Go(func() { above.run(ctx, e.Listener, "above", hotQuotaLimit*15/100) })
	turn := func(windows int) {
		time.Sleep(time.Until(time.Now().Truncate(hotQuotaWindow).Add(time.Duration(windows) * hotQuotaWindow)))
	}

	turn(1)
	time.Sleep(3 * time.Second)
	there := time.Now()
	order("quota", "app", "api_key=below")
	order("quota", "app", "api_key=above")
	e.awaitDump(t, hotQuotaMark, true)
	thereEnd := time.Now().Add(2 * time.Second)
	turn(2)
	t.Log(order("quota"))
	calls := asked(t, e.Envoy)
	turn(2)
	if n := asked(t, e.Envoy) - calls; n > 0 {
		t.Errorf("%d calls while both keys are switched", n)
	}
	back := time.Now()
	order("clear", "app", "api_key=below")
	order("clear", "app", "api_key=above")
	e.awaitDump(t, hotQuotaMark, false)
	backEnd := time.Now().Add(2 * time.Second)
	turn(2)
	if asked(t, e.Envoy) == calls {
		t.Error("no calls after the keys have switched back")
	}
	cancel()
	wg.Wait()
	if n, m := below.refused(there, thereEnd), below.refused(back, backEnd); n+m > 0 {
		t.Errorf("below the limit: %d requests refused during the switch there, %d on the way back", n, m)
	}
	for name, x := range map[string]*timedLoad{"below": &below, "above": &above} {
		by, most := x.count()
		t.Logf("%s the limit: answered %v, at most %d in a window", name, by, most)
		first, last := x.all[0].sent.Truncate(hotQuotaWindow), x.all[len(x.all)-1].sent.Truncate(hotQuotaWindow)
		windows := int(last.Sub(first)/hotQuotaWindow) + 1
		if most > hotQuotaLimit || by[200] > windows*hotQuotaLimit || by[200]+by[429] != len(x.all) || name == "below" && by[429] > len(x.all)/20 { // a pause of the machine is a change of the load
			t.Errorf("%s the limit: answered %v, at most %d in a window; the limit is %d", name, by, most, hotQuotaLimit)
		}
	}
}

// TestHotQuotaOfMembers lets members find a key hot, and a sidecar switch it. It remains switched while it is used, although
// its owner gets no calls for it, and switches back when it is not.
func TestHotQuotaOfMembers(t *testing.T) {
	e, _, order := hotQuotaEnvoy(t, 3, "--hot-rate", "20", "--decision-timeout", "1s")
	stop := mixed(e, "hot", 40) // a quarter of the limit
	e.awaitDump(t, hotQuotaMark, true)
	t.Log(order("quota"))
	const held = 2*hotQuotaWindow + 30*time.Second // how long a key remains switched whatever its owner sees
	for end := time.Now().Add(held + hotQuotaWindow); time.Now().Before(end); time.Sleep(time.Second) {
		page, err := lab.Get(t.Context(), "http://"+e.Admin+"/config_dump")
		if err != nil || !strings.Contains(string(page), hotQuotaMark) {
			t.Fatalf("the key has switched back while it is used: %v\n%s", err, order("list"))
		}
	}
	sent, admitted := stop()
	t.Logf("%d of %d requests for the key admitted", admitted, sent)
	if admitted < sent*9/10 {
		t.Errorf("only %d of %d requests admitted below the limit", admitted, sent)
	}
	const pause = time.Minute // for which an Envoy without requests keeps an assignment, which is charged ahead
	ctx, cancel := context.WithTimeout(t.Context(), pause+held+4*hotQuotaWindow)
	defer cancel()
	if err := lab.Await(ctx, "the way back", func(ctx context.Context) error {
		page, err := lab.Get(ctx, "http://"+e.Admin+"/config_dump")
		if err == nil && strings.Contains(string(page), hotQuotaMark) {
			err = errors.New("still switched")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
