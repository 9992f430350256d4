package gateways

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// timeout returns a context that ends with the test or after d.
func timeout(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithTimeout(t.Context(), d)
}

// figure records a measurement for the table.
func (s *suite) figure(t *testing.T, format string, args ...any) {
	t.Helper()
	s.figures = fmt.Sprintf(format, args...)
	t.Log(s.figures)
}

// inForce waits until all members have a limit of a route, and a response has it.
func (s *suite) inForce(ctx context.Context, route string, limit uint) error {
	last := error(nil)
	for ctx.Err() == nil {
		behind, err := s.cluster.behind(ctx, fmt.Sprintf("requests_per_unit=%d", limit))
		if err == nil && len(behind) > 0 {
			err = fmt.Errorf("%v have other rules", behind)
		}
		if err == nil {
			var a answer
			if a, err = s.get(s.client, route, clientHeader, "probe"); err == nil {
				if a.limit() == fmt.Sprint(limit) {
					return nil
				}
				err = fmt.Errorf("status %d, x-ratelimit-limit %q", a.status, a.header.Get("x-ratelimit-limit"))
			}
		}
		if ctx.Err() == nil {
			last = err
		}
		pause(ctx, 5*time.Millisecond)
	}
	return fmt.Errorf("limit %d of %s: %w", limit, route, last)
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// perTenant returns a policy with one limit for each client.
func perTenant(limit uint) policy {
	return policy{rules: []rule{{limit: limit, unit: "Hour", header: clientHeader}}}
}

// testEdits edits a policy, and measures the time until all members use it.
func testEdits(t *testing.T, s *suite) {
	edits := 3
	if long() {
		edits = 50
	}
	s.enforce(t, "edited", perTenant(900_000), clientHeader, "probe")
	var took []time.Duration
	for i := range edits {
		limit := uint(900_001 + i)
		p := perTenant(limit)
		begin := time.Now()
		if err := s.gateway.apply("edited", &p); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := timeout(t, time.Minute)
		if err := s.inForce(ctx, "edited", limit); err != nil {
			t.Fatal(err)
		}
		cancel()
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	p50, p99 := took[len(took)/2], took[len(took)-1-len(took)/100]
	s.figure(t, "%d edits in force at every member after %.2f s (p50), %.2f s (p99)", edits, p50.Seconds(), p99.Seconds())
	if long() && p99 > 2*time.Second {
		t.Errorf("99 of 100 edits should be in force within 2 s")
	}
}

// testRestarts restarts the gateway, with an edit while it is down. It numbers its versions of the rules from 1 again, and no
// member may keep the old ones.
func testRestarts(t *testing.T, s *suite) {
	restarts := 3
	if long() {
		restarts = 20
	}
	s.enforce(t, "restarted", perTenant(800_000), clientHeader, "probe")
	var took []time.Duration
	for i := range restarts {
		ends := time.Now()
		if err := s.gateway.stop(); err != nil {
			t.Fatal(err)
		}
		limit := uint(800_001 + i)
		p := perTenant(limit)
		if err := s.gateway.apply("restarted", &p); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if err := s.gateway.start(t.Context()); err != nil {
			t.Fatal(err)
		}
		ready := time.Now()
		ctx, cancel := timeout(t, time.Minute)
		if err := s.inForce(ctx, "restarted", limit); err != nil {
			t.Fatalf("restart %d: %v", i+1, err)
		}
		cancel()
		t.Logf("restart %d: stopped after %.1f s, ready after %.1f s, the edit in force after another %.1f s", i+1,
			begin.Sub(ends).Seconds(), ready.Sub(begin).Seconds(), time.Since(ready).Seconds())
		took = append(took, time.Since(begin))
	}
	s.figure(t, "%d restarts, the edit made meanwhile in force at every member at most %.1f s after the start", restarts, slices.Max(took).Seconds())
}

// load is a stream of requests at a rate through the gateway.
type load struct {
	stop     context.CancelFunc
	done     chan struct{}
	mu       sync.Mutex
	admitted map[string]int // by client; guarded by mu
	codes    map[int]int    // guarded by mu
	errors   []error        // guarded by mu
}

// startLoad sends requests of clients in turn, with further headers.
func (s *suite) startLoad(route string, perSecond int, tenants []string, headers ...string) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{stop: cancel, done: make(chan struct{}), admitted: map[string]int{}, codes: map[int]int{}}
	client := newClient("")
	tokens := make(chan struct{}, perSecond)
	go func() {
		defer close(tokens)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		begin, sent := time.Now(), 0
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				for due := int(time.Since(begin).Seconds() * float64(perSecond)); sent < due; sent++ {
					select {
					case tokens <- struct{}{}:
					default: // the workers are behind
					}
				}
			}
		}
	}()
	var wait sync.WaitGroup
	var next atomic.Int64
	for range 32 {
		wait.Go(func() {
			for range tokens {
				tenant := tenants[int(next.Add(1))%len(tenants)]
				a, err := s.get(client, route, append([]string{clientHeader, tenant}, headers...)...)
				l.record(tenant, a.status, err)
			}
		})
	}
	go func() { wait.Wait(); close(l.done) }()
	return l
}

func (l *load) record(tenant string, status int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.errors = append(l.errors, err)
		return
	}
	l.codes[status]++
	if status == http.StatusOK {
		l.admitted[tenant]++
	}
}

// end stops the load and returns errors of requests and their number.
func (l *load) end() (sent int, err error) {
	l.stop()
	<-l.done
	for _, n := range l.codes {
		sent += n
	}
	return sent, errors.Join(l.errors...)
}

// testRoll replaces all members, one after the other, under load: requests are counted exactly.
func testRoll(t *testing.T, s *suite) {
	const limit = 40
	tenants := make([]string, 100)
	for i := range tenants {
		tenants[i] = fmt.Sprintf("tenant-%d", i)
	}
	s.enforce(t, "rolled", perTenant(limit), clientHeader, "probe")
	before, err := s.gateway.stat(t.Context(), ".ratelimit.failure_mode_allowed")
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	l := s.startLoad("rolled", 500, tenants)
	if err := s.cluster.replace(t.Context()); err != nil {
		t.Fatal(err)
	}
	took := time.Since(begin)
	for pauses := 0; pauses < 300 && l.total() < 2*limit*len(tenants); pauses++ { // all clients have reached their limits
		pause(t.Context(), 100*time.Millisecond)
	}
	sent, err := l.end()
	if err != nil {
		t.Error(err)
	}
	s.checkLoad(t, l, tenants, limit)
	after, err := s.gateway.stat(t.Context(), ".ratelimit.failure_mode_allowed")
	if err != nil || after != before {
		t.Errorf("%v requests were admitted because their calls failed (%v)", after-before, err)
	}
	admitted := 0
	for _, n := range l.admitted {
		admitted += n
	}
	s.figure(t, "%d requests, 3 members replaced in %.0f s: %d admitted of a limit of %d; %v uncounted", sent, took.Seconds(), admitted, limit*len(tenants), after-before)
}

func (l *load) total() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.codes {
		n += c
	}
	return n
}

// checkLoad requires that each client got its limit, and no status but 200 and 429.
func (s *suite) checkLoad(t *testing.T, l *load, tenants []string, limit int) {
	t.Helper()
	for code, n := range l.codes {
		if code != http.StatusOK && code != http.StatusTooManyRequests {
			t.Errorf("%d responses of status %d", n, code)
		}
	}
	for _, tenant := range tenants {
		if got := l.admitted[tenant]; got != limit {
			t.Errorf("%s: %d requests admitted, want %d", tenant, got, limit)
		}
	}
}

// hotRate is the rate in requests a second from which a key may be hot in the cases.
const hotRate = "KEYWARD_HOT_RATE=100"

// testHotKey sends most requests of one client, and some of many others, without whom its rate would be the average: members lend parts
// of its limit, and the total stays exact.
func testHotKey(t *testing.T, s *suite) {
	const limit = 5000
	tenants := slices.Repeat([]string{"hot"}, 100)
	for i := range 50 {
		tenants = append(tenants, fmt.Sprintf("cold-%d", i))
	}
	s.enforce(t, "hot", perTenant(limit), clientHeader, "probe")
	l := s.startLoad("hot", 500, tenants)
	hot := 0.0
	for pauses := 0; pauses < 600 && l.over() < 500; pauses++ {
		pause(t.Context(), 100*time.Millisecond)
		if n, err := s.cluster.sum(t.Context(), "keyward_hot_keys"); err == nil {
			hot = max(hot, n)
		}
	}
	sent, err := l.end()
	if err != nil {
		t.Error(err)
	}
	if hot == 0 {
		t.Error("no member had a hot key")
	}
	s.checkLoad(t, l, []string{"hot"}, limit)
	lent, err := s.cluster.sum(t.Context(), "keyward_lease_hits_total")
	if err != nil || lent == 0 {
		t.Errorf("members lent %v hits (%v)", lent, err)
	}
	s.figure(t, "%d requests, most of them for one key: %d of these admitted, the limit", sent, l.admitted["hot"])
}

// over returns the number of denied requests.
func (l *load) over() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.codes[http.StatusTooManyRequests]
}
