package e2e

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	redigo "github.com/gomodule/redigo/redis"

	"github.com/keyward/keyward/internal/lab"
)

// sharedRules are rules of envoyproxy/ratelimit; metadata, which it does not know, is added for Keyward.
func sharedRules(metadata string) string {
	return `domain: edge
descriptors:
  - key: api_key
    rate_limit: {unit: year, requests_per_unit: 400}` + metadata + `
  - key: route
    value: search
    descriptors:
      - key: user
        rate_limit: {unit: year, requests_per_unit: 300}` + strings.ReplaceAll(metadata, "\n", "\n    ") + `
  - key: path
    value: /api/*
    share_threshold: true
    rate_limit: {unit: year, requests_per_unit: 200}` + metadata + "\n"
}

// sharing is envoyproxy/ratelimit and a Keyward sidecar with one Redis.
type sharing struct {
	*testing.T
	original, ours rlsv3.RateLimitServiceClient
	redis          redigo.Conn
}

func newSharing(t *testing.T) (*sharing, *original) {
	t.Helper()
	o := newOriginal(t, map[string]string{"edge.yaml": sharedRules("")}, "USE_STATSD=false")
	o.theirs(t)
	at := slices.IndexFunc(o.env, func(e string) bool { return strings.HasPrefix(e, "REDIS_URL=") })
	address := strings.TrimPrefix(o.env[at], "REDIS_URL=")
	layout := filepath.Join(t.TempDir(), "federation.yaml")
	if err := os.WriteFile(layout, []byte("name: edge\nepoch: 1\ncoordinator: redis\nholders: 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	l := newLab(t, lab.Options{Rules: map[string]string{"edge.yaml": sharedRules("\n    metadata: {keyward: {federation: {}}}")}, Args: []string{
		"--federation", layout, "--authority", "redis=redis://" + address + "/?layout=envoyproxy",
	}})
	s, err := l.AddSidecar("keyward", "--join", "")
	if err != nil {
		t.Fatal(err)
	}
	(&storeHolders{T: t, lab: l}).ready(s)
	c, err := redigo.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &sharing{t, dial(t, o.grpc, nil), dial(t, s.RLS, nil), c}, o
}

// spend sends single hits of a descriptor to a service until n of them are admitted, or 50 in a row are refused.
func (x *sharing) spend(c rlsv3.RateLimitServiceClient, n int, kv ...string) (admitted int) {
	for missed := 0; admitted < n && missed < 50; missed++ {
		ctx, cancel := context.WithTimeout(x.Context(), 5*time.Second)
		res, err := c.ShouldRateLimit(ctx, request("edge", 1, kv...))
		cancel()
		if err != nil {
			x.Errorf("%v: %v", kv, err)
			return admitted
		}
		if res.OverallCode == rlsv3.RateLimitResponse_OK {
			admitted++
			missed = -1
		}
	}
	return admitted
}

// counters returns the counters of envoyproxy/ratelimit in Redis, without the start of the window.
func (x *sharing) counters() map[string]int {
	x.Helper()
	keys, err := redigo.Strings(x.redis.Do("KEYS", "*"))
	if err != nil {
		x.Fatal(err)
	}
	found, window := map[string]int{}, regexp.MustCompile(`^(.*_)(\d+)$`)
	for _, key := range keys {
		m := window.FindStringSubmatch(key)
		if strings.HasPrefix(key, "{kw") {
			continue // what Keyward has lent
		}
		if start, _ := strconv.ParseInt(m[2], 10, 64); m == nil || start%31_536_000 != 0 {
			x.Errorf("key %q is not one of envoyproxy/ratelimit", key)
			continue
		}
		n, err := redigo.Int64(x.redis.Do("GET", key))
		if err != nil {
			x.Fatal(err)
		}
		found[m[1]] = int(n)
	}
	return found
}

// TestRedisSharedWithEnvoyproxy has the real envoyproxy/ratelimit and a Keyward sidecar answer for the same descriptors at
// the same time, with one Redis. Together they admit exactly the limit, whichever gets the requests, and Redis has only
// counters of envoyproxy/ratelimit. Then that ends, and Keyward continues with its counts.
func TestRedisSharedWithEnvoyproxy(t *testing.T) {
	x, o := newSharing(t)
	want := map[string]int{}
	for _, c := range []struct {
		limit   int
		name    string
		entries []string
	}{
		{400, "edge_api_key_alice_", []string{"api_key", "alice"}},
		{300, "edge_route_search_user_bob_", []string{"route", "search", "user", "bob"}},
		{200, "edge_path_/api/*_", []string{"path", "/api/a"}},
	} {
		first := x.spend(x.original, 50, c.entries...)
		first += x.spend(x.ours, 50, c.entries...)
		if first != 100 {
			t.Fatalf("%s: %d of 100 admitted", c.name, first)
		}
		var all sync.WaitGroup
		var theirs, ours int
		all.Go(func() { theirs = x.spend(x.original, 1<<20, c.entries...) })
		all.Go(func() { ours = x.spend(x.ours, 1<<20, c.entries...) })
		all.Wait()
		if n := first + theirs + ours; n != c.limit || theirs == 0 || ours == 0 {
			t.Errorf("%s: %d of %d admitted, at the same time %d by envoyproxy/ratelimit and %d by Keyward", c.name, n, c.limit, theirs, ours)
		} else {
			t.Logf("%s: %d admitted, at the same time %d and %d", c.name, n, theirs, ours)
		}
		want[c.name] = c.limit
	}
	before := x.spend(x.original, 150, "api_key", "carol")
	want["edge_api_key_carol_"] = 150
	counters := x.counters()
	for name, n := range counters {
		if want[name] == 0 || n < want[name] { // envoyproxy/ratelimit counts what it refuses, too
			t.Errorf("%s is %d, not %d", name, n, want[name])
		}
	}
	if len(counters) != len(want) {
		t.Errorf("%v, not %v", counters, want)
	}
	if err := o.process.Stop(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	if n := before + x.spend(x.ours, 1<<20, "api_key", "carol"); n != 400 {
		t.Errorf("%d of 400 admitted, %d of them before envoyproxy/ratelimit ended", n, before)
	}
	if n := x.spend(x.ours, 1, "api_key", "alice"); n != 0 {
		t.Error("a hit above the limit is admitted after envoyproxy/ratelimit has ended")
	}
}
