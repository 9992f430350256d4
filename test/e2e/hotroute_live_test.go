package e2e

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// TestHotRouteOfMembers: by an order, or because a key becomes hot, the members themselves have Envoy spread its requests,
// and it counts as one: as many are admitted as by one owner. When the order is taken back, or the key cools, it has one owner
// again.
func TestHotRouteOfMembers(t *testing.T) {
	const limit = 5000
	rules := fmt.Sprintf("domain: app\ndescriptors:\n- {key: api_key, rate_limit: {unit: year, requests_per_unit: %d}}\n", limit)
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": rules}, Expect: 5, Args: []string{"--hot-rate", "50", "--decision-timeout", "1s"}})
	members := names(5)
	socket := "unix:" + filepath.Join(t.TempDir(), "a.sock")
	for _, m := range members[:4] {
		if _, err := l.AddSidecar(m); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.AddSidecar(members[4], "--admin", socket); err != nil {
		t.Fatal(err)
	}
	awaitRing(t, l, members...)
	_, envoy := ownerDirect(t, l, envoyBinary(t), "--failure-mode-deny", "--timeout", "5s", "--hot-routes")
	e := &edge{Envoy: envoy, cluster: ownerCluster, names: addresses(l, func(s *lab.Sidecar) string { return s.Direct })}

	say := func(what string) {
		t.Helper()
		out, err := exec.Command(filepath.Join(l.Bin, "keyward"), "hot", what, "--admin", socket, "app", "api_key=ordered").CombinedOutput()
		if err != nil {
			t.Fatalf("keyward hot %s: %v\n%s", what, err, out)
		}
	}
	say("split")
	e.awaitRoute(t, "ordered", true)
	got, by := e.offer(t, "", slices.Repeat([]string{"ordered"}, 1000)...)
	evenly(t, "ordered", got)
	if n := sum(t, l, "keyward_misrouted_total"); by[200] != 1000 || n != 0 {
		t.Errorf("ordered: answered %v, %v of them misrouted", by, n)
	}
	say("clear")
	e.awaitRoute(t, "ordered", false)
	if got, _ := e.offer(t, "", slices.Repeat([]string{"ordered"}, 100)...); len(got) != 1 {
		t.Errorf("when the order is taken back: %v", got)
	}

	stop := mixed(e, "hot", 200)
	e.awaitRoute(t, "hot", true)
	sent, admitted := stop()
	t.Logf("hot after %d requests", sent)
	if sent >= limit-2000 {
		t.Fatalf("%d requests before it is split", sent)
	}
	got, by = e.offer(t, "", slices.Repeat([]string{"hot"}, limit+1000-sent)...)
	evenly(t, "hot", got)
	if n := admitted + by[200]; n != limit {
		t.Errorf("hot: %d admitted, the limit is %d", n, limit)
	}
	e.awaitRoute(t, "hot", false)
	if got, _ := e.offer(t, "", slices.Repeat([]string{"hot"}, 20)...); len(got) != 1 {
		t.Errorf("when it has cooled: %v", got)
	}
}

// TestHotFiltersOfMembers: for Envoys with routes of their own, orders cap a user of a plan and spread a key, by the
// filters that members serve, and take both back. However the key is spread, all Envoys together admit its limit.
func TestHotFiltersOfMembers(t *testing.T) {
	const rules = `domain: app
descriptors:
- {key: api_key, rate_limit: {unit: year, requests_per_unit: 5000}}
- key: plan
  value: free
  descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 10}}
`
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": rules}, Expect: 5, Args: []string{"--decision-timeout", "1s"}})
	socket := "unix:" + filepath.Join(t.TempDir(), "a.sock")
	members := names(5)
	for _, m := range members[:4] {
		if _, err := l.AddSidecar(m); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.AddSidecar(members[4], "--admin", socket); err != nil {
		t.Fatal(err)
	}
	awaitRing(t, l, members...)
	args := []string{"--failure-mode-deny", "--timeout", "5s", "--hot-filters", "--from", "plan=header:x-plan", "--from", "user=header:x-user"}
	xds, envoy := ownerDirect(t, l, envoyBinary(t), args...)
	of := addresses(l, func(s *lab.Sidecar) string { return s.Direct })
	e := &edge{Envoy: envoy, cluster: ownerCluster, names: of}
	all := []*edge{e}
	for _, name := range []string{"second", "third"} {
		more := addEnvoy(t, l, lab.EnvoyOptions{Name: name, Shape: "owner-direct", XDS: xds.Addr, Upstream: startUpstream(t).addr,
			Args: append([]string{"--from", "api_key=header:x-api-key"}, args...)}, ownerCluster, 5)
		all = append(all, &edge{Envoy: more, cluster: ownerCluster, names: of})
	}
	order := func(args ...string) {
		t.Helper()
		out, err := exec.Command(filepath.Join(l.Bin, "keyward"), append([]string{"hot", "--admin", socket}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("keyward hot %v: %v\n%s", args, err, out)
		}
	}
	order("split", "app", "api_key=spread")
	order("cap", "app", "plan=free", "user=capped")
	for _, e := range all {
		e.awaitDump(t, `"spread#`, true)
		e.awaitDump(t, `"capped"`, true)
	}
	got, by := e.offer(t, "", slices.Repeat([]string{"spread"}, 1000)...)
	evenly(t, "spread", got)
	if n := sum(t, l, "keyward_misrouted_total"); by[200] != 1000 || n != 0 {
		t.Errorf("spread: answered %v, %v of them misrouted", by, n)
	}
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for _, e := range all {
		wg.Go(func() {
			statuses := map[int]int{}
			e.offerAll("", slices.Repeat([]string{"spread"}, 1500), statuses)
			admitted.Add(int64(statuses[200]))
		})
	}
	wg.Wait()
	if n := admitted.Load(); n != 4000 {
		t.Errorf("spread: %d admitted by three Envoys, want the 4000 that are left", n)
	}
	capped := newCaller(t, "127.0.0.1", map[string]string{"x-plan": "free", "x-user": "capped"})
	before := asked(t, envoy)
	if by, n := capped.send(t, envoy.Listener, 100), asked(t, envoy)-before; by[200] != 10 || by[429] != 90 || n > 20 {
		t.Errorf("capped: answered %v after %d calls, want 10 of 100 admitted after 20 calls", by, n)
	}
	order("clear", "app", "api_key=spread")
	order("clear", "app", "plan=free", "user=capped")
	e.awaitDump(t, `"spread#`, false)
	e.awaitDump(t, `"capped"`, false)
	if got, _ := e.offer(t, "", slices.Repeat([]string{"spread"}, 50)...); len(got) != 1 {
		t.Errorf("when the order is taken back: %v", got)
	}
}

// awaitRoute waits until Envoy has a route that spreads the key, or has none.
func (e *edge) awaitRoute(t *testing.T, key string, want bool) {
	t.Helper()
	e.awaitDump(t, `"`+key+`#`, want)
}

// awaitDump waits until Envoy's configuration contains the text, or does not.
func (e *edge) awaitDump(t *testing.T, text string, want bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	if err := lab.Await(ctx, fmt.Sprintf("%s in Envoy's configuration: %v", text, want), func(ctx context.Context) error {
		page, err := lab.Get(ctx, "http://"+e.Admin+"/config_dump")
		if has := strings.Contains(string(page), text); err == nil && has != want {
			return fmt.Errorf("it is there: %v", has)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// evenly holds what each member got against their mean.
func evenly(t *testing.T, key string, got map[string]int) {
	t.Helper()
	total := 0
	for _, n := range got {
		total += n
	}
	ratio := float64(slices.Max(slices.Collect(maps.Values(got)))) * float64(len(got)) / float64(total)
	t.Logf("%s: %v, max/mean %.3f", key, got, ratio)
	if len(got) != 4 || ratio > 1.3 {
		t.Errorf("%s: %v, max/mean %.2f", key, got, ratio)
	}
}

// mixed sends each second one request of each of many keys and as many of one key, until it is stopped: a key is hot only
// in addition to others. Then it returns how many of the one it sent, and how many were admitted.
func mixed(e *edge, key string, others int) (stop func() (sent, admitted int)) {
	keys := distinctKeys("now-and-then", others)
	for i := range others {
		keys = append(keys[:2*i+1], append([]string{key}, keys[2*i+1:]...)...)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	sent, admitted := 0, 0
	wg.Go(func() {
		second := time.NewTicker(time.Second)
		defer second.Stop()
		for ; ctx.Err() == nil; <-second.C {
			for _, a := range sendKeys(e.Listener, keys, 1) {
				if a.key == key {
					sent++
				}
				if a.key == key && a.status == 200 {
					admitted++
				}
			}
		}
	})
	return func() (int, int) {
		cancel()
		wg.Wait()
		return sent, admitted
	}
}
