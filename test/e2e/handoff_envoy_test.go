package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// browsers are clients behind Envoy: they send requests with keys at a steady pace and count what becomes of them.
type browsers struct {
	listener string
	cancel   context.CancelFunc
	done     sync.WaitGroup

	mu       sync.Mutex
	keys     []string                   // the newest last; guarded by mu
	admitted map[string]int             // by key; guarded by mu
	refused  map[string]bool            // by key; guarded by mu
	statuses map[int]int                // 0: no answer; guarded by mu
	took     map[string][]time.Duration // by key; guarded by mu
}

// browse sends rate requests a second in all.
func browse(t testing.TB, envoy string, rate int, keys []string) *browsers {
	t.Helper()
	const workers = 8
	ctx, cancel := context.WithCancel(t.Context())
	b := &browsers{
		listener: envoy, cancel: cancel, keys: keys,
		admitted: map[string]int{}, refused: map[string]bool{}, statuses: map[int]int{}, took: map[string][]time.Duration{},
	}
	for range workers {
		b.done.Go(func() {
			client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			tick := time.NewTicker(time.Second * workers / time.Duration(rate))
			defer tick.Stop()
			for ctx.Err() == nil {
				<-tick.C
				b.send(client, b.choose())
			}
		})
	}
	t.Cleanup(b.stop)
	return b
}

func (b *browsers) stop() {
	b.cancel()
	b.done.Wait()
}

// renew adds keys; the newest forty are sent most.
func (b *browsers) renew(keys []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.keys = append(b.keys, keys...)
}

func (b *browsers) choose() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if rand.IntN(4) == 0 {
		return b.keys[rand.IntN(len(b.keys))]
	}
	return b.keys[len(b.keys)-1-rand.IntN(min(len(b.keys), 40))]
}

func (b *browsers) send(client *http.Client, key string) {
	begin := time.Now()
	a := send(client, b.listener, key)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.statuses[a.status]++
	b.took[key] = append(b.took[key], time.Since(begin))
	switch a.status {
	case http.StatusOK:
		b.admitted[key]++
	case http.StatusTooManyRequests:
		b.refused[key] = true
	}
}

// finish sends every key until it is refused.
func (b *browsers) finish(t testing.TB, limit int) {
	t.Helper()
	b.stop()
	client := &http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	sideBySide(b.keys, func(k string) {
		for n := 0; !b.wasRefused(k); n++ {
			if n > 2*limit {
				t.Errorf("%s: never refused", k)
				break
			}
			b.send(client, k)
		}
	})
}

func (b *browsers) wasRefused(key string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.refused[key]
}

// sideBySide does something with each of all, a few at a time.
func sideBySide[T any](all []T, do func(T)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(all); i = int(next.Add(1)) - 1 {
				do(all[i])
			}
		})
	}
	wg.Wait()
}

// audit wants 200 and 429 and nothing else, and no key admitted above its limit and the bound. It returns how many hits of
// the limits are missing.
func (b *browsers) audit(t testing.TB, up *upstream, limit int, bound float64) (missing int) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	t.Logf("%d keys, answers by status: %v", len(b.keys), b.statuses)
	for s := range b.statuses {
		if s != http.StatusOK && s != http.StatusTooManyRequests {
			t.Errorf("answers by status: %v", b.statuses)
		}
	}
	if n := int(up.calls.Load()); n != b.statuses[http.StatusOK] {
		t.Errorf("%d requests reached the application, %d were answered 200", n, b.statuses[http.StatusOK])
	}
	most, wrong := 0, 0
	for _, k := range b.keys {
		n := b.admitted[k]
		most = max(most, n)
		missing += max(0, limit-n)
		if float64(n) > float64(limit)+bound {
			if wrong++; wrong <= 5 {
				t.Errorf("%s: %d admitted, limit %d, bound %v", k, n, limit, bound)
			}
		}
	}
	t.Logf("at most %d admitted of %d, bound %v; %d hits of all limits together are missing", most, limit, bound, missing)
	return missing
}

// routing reads, ten times a second, how many requests came to the member they belong to, and when rings changed.
type routing struct {
	ctx    context.Context
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex
	changes []time.Time     // of any member's ring; guarded by mu
	strays  map[int64][]int // misrouted requests by the 100 ms in which they were seen; guarded by mu
	direct  float64         // guarded by mu
}

func watchRouting(t testing.TB, members []*lab.Sidecar) *routing {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &routing{ctx: ctx, cancel: cancel, strays: map[int64][]int{}}
	for _, s := range members {
		r.follow(s)
	}
	t.Cleanup(r.stop)
	return r
}

func (r *routing) stop() {
	r.cancel()
	r.done.Wait()
}

// follow reads a member, over its restarts too.
func (r *routing) follow(s *lab.Sidecar) {
	page := s.Metrics
	r.done.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		var direct, stray, ring float64
		for r.ctx.Err() == nil {
			<-tick.C
			ctx, cancel := context.WithTimeout(r.ctx, time.Second)
			fam, err := scrape(ctx, page, "keyward_direct_total", "keyward_misrouted_total", "keyward_ring_fingerprint")
			cancel()
			if err != nil {
				continue
			}
			d, m, f := value(fam, "keyward_direct_total"), value(fam, "keyward_misrouted_total"), value(fam, "keyward_ring_fingerprint")
			if d < direct || m < stray { // another boot
				direct, stray = 0, 0
			}
			r.saw(d-direct, m-stray, f != ring)
			direct, stray, ring = d, m, f
		}
	})
}

func (r *routing) saw(direct, stray float64, changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.direct += direct
	if stray > 0 {
		at := now.UnixMilli() / 100
		r.strays[at] = append(r.strays[at], int(stray))
	}
	if changed {
		r.changes = append(r.changes, now)
	}
}

// audit wants no request misrouted later than that after the last change before it.
func (r *routing) audit(t testing.TB, settled time.Duration) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.SortFunc(r.changes, time.Time.Compare)
	total, latest := 0, time.Duration(0)
	for _, at := range slices.Sorted(maps.Keys(r.strays)) {
		n := 0
		for _, s := range r.strays[at] {
			n += s
		}
		total += n
		seen := time.UnixMilli(at * 100)
		i, _ := slices.BinarySearchFunc(r.changes, seen.Add(100*time.Millisecond), time.Time.Compare)
		if i == 0 {
			t.Errorf("%d requests were misrouted before any ring changed", n)
			continue
		}
		after := seen.Sub(r.changes[i-1])
		latest = max(latest, after)
		if after > settled+300*time.Millisecond { // metrics are read ten times a second
			t.Errorf("%d requests were misrouted %s after the last change of a ring", n, after.Round(100*time.Millisecond))
		}
	}
	t.Logf("%v requests came to their owners, %d did not, the last of them %s after a change; rings changed %d times",
		r.direct, total, latest.Round(100*time.Millisecond), len(r.changes))
}

// wantNoFailures wants Envoy never to have seen its rate-limit service fail.
func wantNoFailures(t testing.TB, e *lab.Envoy) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, stat := range []string{".ratelimit.error", ".ratelimit.failure_mode_allowed"} {
		if n, err := e.StatSum(ctx, stat); err != nil || n != 0 {
			t.Errorf("Envoy's %s is %v, %v", stat, n, err)
		}
	}
	if n, err := e.StatSum(ctx, ".ratelimit.ok"); err != nil || n == 0 {
		t.Errorf("Envoy's .ratelimit.ok is %v, %v: does it call the service?", n, err)
	}
}

// envoyKeys returns n keys that were not used before.
func envoyKeys(prefix string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s-%d", prefix, i)
	}
	return keys
}

// ownerDirectOpen is ownerDirect with an Envoy that lets pass what its rate-limit service does not answer, and with the
// application behind it.
func ownerDirectOpen(t testing.TB, l *lab.Lab, timeout string) (*lab.Envoy, *upstream) {
	t.Helper()
	xds, err := l.AddXDS("xds", "--envoy-connect-timeout", "600ms") // less than the request may take, and see startXDS
	if err != nil {
		t.Fatal(err)
	}
	up := startUpstream(t)
	return addEnvoy(t, l, lab.EnvoyOptions{
		Shape: "owner-direct", XDS: xds.Addr, Upstream: up.addr,
		Args: []string{"--from", "api_key=header:x-api-key", "--timeout", timeout},
	}, "keyward", len(l.Sidecars)), up
}

// TestHandoffThroughEnvoy restarts every member under load through a real Envoy that asks each key's owner: clients see
// 200 and 429 and nothing else, limits hold to the hit, Envoy never sees an error, and within two seconds of each change
// it asks the owners again and no other member.
func TestHandoffThroughEnvoy(t *testing.T) {
	changeThroughEnvoy(t, func(f *fleet, _ *routing, settle func(string)) {
		for _, s := range slices.Clone(f.live) {
			f.retire(s)
			settle("without-" + s.Name)
			f.revive(s)
			f.admit(s)
			settle("again-" + s.Name)
		}
	})
}

// TestScaleThroughEnvoy does the same with a member that joins and one that leaves.
func TestScaleThroughEnvoy(t *testing.T) {
	changeThroughEnvoy(t, func(f *fleet, r *routing, settle func(string)) {
		r.follow(f.add("pod-x"))
		settle("joined")
		f.retire(f.live[0])
		settle("left")
	})
}

// changeThroughEnvoy changes a cluster of three under load. After each change settle waits for longer than Envoy may take to
// ask the owners again, then brings new keys, which are partly spent when the next change begins.
func changeThroughEnvoy(t *testing.T, change func(f *fleet, r *routing, settle func(name string))) {
	t.Helper()
	const limit, keys = 100, 20 // limit is that of longRules
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": longRules}, Expect: 3, Args: []string{"--decision-timeout", "1s"}})
	f := newFleet(t, l, names(3)...)
	e, up := ownerDirectOpen(t, l, "1s")
	b := browse(t, e.Listener, 300, envoyKeys("first", keys))
	r := watchRouting(t, f.live)
	settle := func(name string) {
		began := time.Now()
		f.agree()
		awaitEnvoy(t, e, "keyward", len(f.live))
		t.Logf("%s: Envoy and all members agree after %v", name, time.Since(began).Round(10*time.Millisecond))
		steadily(3 * time.Second)
		b.renew(envoyKeys(name, keys))
	}
	settle("settled")
	change(f, r, settle)
	r.stop()
	b.finish(t, limit)
	missing := b.audit(t, up, limit, 0)
	r.audit(t, 2*time.Second)
	wantNoFailures(t, e)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	retries, err := e.Stat(ctx, "cluster.keyward.upstream_rq_retry")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("Envoy asked %v times again", retries) // and each of these may have been counted twice
	if float64(missing) > retries {
		t.Errorf("%d hits of the limits are missing, Envoy asked again only %v times", missing, retries)
	}
}
