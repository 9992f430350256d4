package redis

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	redigo "github.com/gomodule/redigo/redis"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/internal/limit"
)

const year = 365 * day // a window whose boundary no test meets

// request returns the first request of a boot, for tokens of a pool of 1000 hits per window.
func request(window time.Duration, tokens uint64) federation.PoolRequest {
	return federation.PoolRequest{
		Key: federation.Key{1, 2}, Rule: limit.Rule{Limit: 1000, Window: window}, Pool: 1000, Epoch: testEpoch,
		Boot: 1, Seq: 1, Tokens: tokens,
	}
}

// next returns the request of a region that has a grant, has lost nothing, and wants more.
func next(g federation.PoolGrant, r federation.PoolRequest, tokens uint64) federation.PoolRequest {
	r.Seq, r.Window, r.Have, r.Tokens = g.Seq+1, g.Window, g.Total, tokens
	return r
}

// grant sends one request, which must be granted.
func grant(t *testing.T, c federation.Coordinator, region string, r federation.PoolRequest) federation.PoolGrant {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	gs, err := c.Lease(ctx, region, []federation.PoolRequest{r})
	if err != nil || len(gs) != 1 {
		t.Fatalf("%+v %v", gs, err)
	}
	return gs[0]
}

// persist repeats a request with new numbers until it is granted.
func persist(t *testing.T, c federation.Coordinator, region string, r federation.PoolRequest) (g federation.PoolGrant) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err := lab.Await(ctx, "a grant", func(ctx context.Context) error {
		r.Seq++
		gs, err := c.Lease(ctx, region, []federation.PoolRequest{r})
		if err == nil && len(gs) != 1 {
			err = fmt.Errorf("%d grants", len(gs))
		}
		if err == nil {
			g = gs[0]
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// fails requires an error that contains text.
func fails(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v does not contain %q", err, text)
	}
}

// TestRestartsEmpty kills a Redis in the middle of a window. Only the rest of that window is lent again, and the whole
// of the next one.
func TestRestartsEmpty(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for windows")
	}
	const window = 3 * time.Second
	s := startServer(t)
	c := s.open("")
	if err := c.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(grant(t, c, "a", request(window, 0)).Left) // until a fresh window
	g := persist(t, c, "a", request(window, 600))
	if g.Total != 600 || g.Usable != 1000 || g.Left < window/2 {
		t.Fatalf("%+v", g)
	}
	time.Sleep(g.Left - window/2)

	s.process.Kill()
	if _, err := c.Lease(t.Context(), "a", []federation.PoolRequest{next(g, request(window, 0), 1)}); err == nil {
		t.Error("a killed server has replied")
	}
	s.start()
	b := persist(t, c, "b", request(window, 1000))
	since, err := redigo.Int64(s.do("GET", tag(2)+sinceName))
	if err != nil {
		t.Fatal(err)
	}
	rest := (b.Window+1)*window.Microseconds() - since
	if want := uint64(1000 * rest / window.Microseconds()); b.Total != want || b.Usable != want ||
		b.Window == g.Window && want > 510 {
		t.Errorf("%d of %d are lent with a rest of %d us", b.Total, b.Usable, rest)
	}
	time.Sleep(b.Left)
	if g := persist(t, c, "b", request(window, 1000)); g.Total != 1000 || g.Usable != 1000 {
		t.Errorf("in the next window: %+v", g)
	}
}

// TestFailover promotes a replica that lacks the last writes. What a region reports is charged again.
func TestFailover(t *testing.T) {
	primary := startServer(t, "--repl-diskless-sync-delay", "0")
	host, port, _ := strings.Cut(primary.address, ":")
	replica := startServer(t, "--replicaof", host+" "+port)
	c, behind := primary.open("?wait=1"), replica.open("")
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "the replica", c.Healthy); err != nil {
		t.Fatal(err)
	}
	if err := c.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := request(year, 300)
	g := persist(t, c, "a", r)
	fails(t, behind.Healthy(t.Context()), "use the address of the primary")
	_, err := behind.Lease(t.Context(), "b", []federation.PoolRequest{r})
	fails(t, err, "READONLY")

	replica.do("REPLICAOF", "NO", "ONE")
	c = primary.open("") // without wait
	g = grant(t, c, "a", next(g, r, 400))
	if g.Total != 700 {
		t.Fatalf("%+v", g)
	}
	primary.process.Kill()

	if err := behind.Healthy(t.Context()); err != nil {
		t.Error(err)
	}
	if g := grant(t, behind, "a", next(g, r, 100)); g.Total != 800 || g.Used != 800 || behind.Repaired() != 400 {
		t.Errorf("%d repaired, %+v", behind.Repaired(), g)
	}
	if g := grant(t, behind, "b", request(year, 1000)); g.Total != 200 || g.Used != 1000 || behind.Repaired() != 400 {
		t.Errorf("%d repaired, %+v", behind.Repaired(), g)
	}
}

// TestWait requires that a grant counts only if enough replicas have it, and that it comes back to the pool if not.
func TestWait(t *testing.T) {
	s := startServer(t)
	c := s.open("?wait=1")
	if err := s.open("").Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	fails(t, c.Healthy(t.Context()), "0 of 1 replicas are connected")
	r := request(year, 900)
	_, err := c.Lease(t.Context(), "a", []federation.PoolRequest{r})
	fails(t, err, "0 of 1 replicas confirmed")
	r.Seq, r.Tokens = 2, 200
	if g := grant(t, s.open("?wait=0"), "a", r); g.Total != 200 || g.Used != 200 {
		t.Errorf("%+v", g)
	}
}

func TestEvictionIsUnhealthy(t *testing.T) {
	s := startServer(t)
	c := s.open("")
	s.do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	if err := c.Healthy(t.Context()); err != nil {
		t.Errorf("without maxmemory: %v", err)
	}
	s.do("CONFIG", "SET", "maxmemory", "100mb")
	fails(t, c.Healthy(t.Context()), "maxmemory-policy is allkeys-lru, so counts may be evicted; set it to noeviction")
	s.do("CONFIG", "SET", "maxmemory-policy", "noeviction")
	if err := c.Healthy(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestServerStartsLater requires that a Coordinator can be opened before its server runs, and that calls end in time.
func TestServerStartsLater(t *testing.T) {
	s := startServer(t)
	s.process.Kill()
	c := s.open("")
	fails(t, c.Healthy(t.Context()), "connection refused")
	if _, err := c.Lease(t.Context(), "a", []federation.PoolRequest{request(year, 1)}); err == nil {
		t.Error("no server, no error")
	}
	s.start()
	persist(t, c, "a", request(year, 1))

	if err := s.process.Pause(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, err := c.Lease(ctx, "a", []federation.PoolRequest{request(year, 1)}); err == nil || time.Since(began) > 2*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

// TestScriptFlushed requires that a server which has forgotten the script gets it again.
func TestScriptFlushed(t *testing.T) {
	s := startServer(t)
	c := s.open("")
	r := request(year, 1)
	g := grant(t, c, "a", r)
	s.do("SCRIPT", "FLUSH")
	if g := grant(t, c, "a", next(g, r, 1)); g.Total != 2 || g.Used != 2 {
		t.Errorf("%+v", g)
	}
}

// TestRecordsExpire requires that records end a minute after their window; those of a sliding window one window later.
func TestRecordsExpire(t *testing.T) {
	s := startServer(t)
	c := s.open("")
	fixed, sliding := request(time.Hour, 1), request(time.Hour, 1)
	sliding.Key[0], sliding.Rule.Algorithm = 9, limit.SlidingWindow
	for _, tt := range []struct {
		request federation.PoolRequest
		more    time.Duration
	}{{fixed, time.Minute}, {sliding, time.Minute + time.Hour}} {
		g := grant(t, c, "a", tt.request)
		ttl, err := redigo.Int64(s.do("PTTL", fmt.Sprintf("%s:%d", c.call("a", &tt.request, federation.LayoutTerm{}).key, g.Window)))
		off := time.Duration(ttl)*time.Millisecond - g.Left - tt.more
		if err != nil || off < -5*time.Second || off > 5*time.Second {
			t.Errorf("%v: the record expires after %d ms: %v", tt.request.Rule, ttl, err)
		}
	}
	if ttl, err := redigo.Int64(s.do("TTL", tag(2)+sinceName)); err != nil || ttl != -1 {
		t.Errorf("since expires after %d s: %v", ttl, err)
	}
}

// TestEarlierLayout requires that regions with an earlier layout get nothing of a window once one with a later layout has
// sent a request.
func TestEarlierLayout(t *testing.T) {
	s := startServer(t)
	earlier, later := s.open(""), s.open("")
	later.terms = federation.Always(testEpoch + 1)
	r := request(year, 1)
	grant(t, earlier, "a", r)
	r.Epoch++
	grant(t, later, "b", r)
	r.Epoch, r.Seq = testEpoch, 2
	if gs, err := earlier.Lease(t.Context(), "a", []federation.PoolRequest{r}); err != nil || len(gs) != 0 {
		t.Errorf("%+v %v", gs, err)
	}
	earlier.now = func() int64 { return time.Now().Add(year).UnixMicro() * 1000 }
	grant(t, earlier, "a", r) // no region has used the later layout in the next window
}
