package redis

import (
	"strconv"
	"testing"
	"time"

	redigo "github.com/gomodule/redigo/redis"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/limit"
)

// TestSharesCountsWithEnvoyproxy has envoyproxy/ratelimit and a Coordinator count the same limit in one counter.
func TestSharesCountsWithEnvoyproxy(t *testing.T) {
	s := startServer(t)
	c := s.open("?layout=envoyproxy")
	if err := c.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	const name = "edge_api_key_alice_path_/a_b_" // domain, keys and values, as its cache_key.go writes them
	start := time.Now().Unix() / 31_536_000 * 31_536_000
	key := name + strconv.FormatInt(start, 10)
	counter := func(want int64) {
		t.Helper()
		if got, err := redigo.Int64(s.do("GET", key)); err != nil || got != want {
			t.Errorf("%s is %d: %v", key, got, err)
		}
	}
	original := func(hits int) { // as the original does
		s.do("INCRBY", key, strconv.Itoa(hits))
		s.do("EXPIRE", key, strconv.Itoa(int(year.Seconds())))
	}
	r := request(year, 500)
	r.Name = name

	expires := func() {
		t.Helper()
		if ttl, err := redigo.Int64(s.do("TTL", key)); err != nil || ttl < int64(year.Seconds())-60 {
			t.Errorf("the counter expires after %d s: %v", ttl, err)
		}
	}
	r.Tokens = 10
	g := grant(t, c, "a", r)
	counter(10)
	expires()
	original(300)
	if g = grant(t, c, "a", next(g, r, 490)); g.Total != 500 || g.Used != 800 {
		t.Errorf("%+v", g)
	}
	counter(800)
	g.Total = 150 // the others come back
	if g = grant(t, c, "a", next(g, r, 0)); g.Used != 450 {
		t.Errorf("%+v", g)
	}
	counter(450)
	original(500)
	if g = grant(t, c, "a", next(g, r, 500)); g.Total != 200 || g.Used != 1000 {
		t.Errorf("%+v", g)
	}
	original(20) // the original counts refused hits
	if g = grant(t, c, "a", next(g, r, 500)); g.Total != 200 || g.Used != 1020 {
		t.Errorf("%+v", g)
	}
	counter(1020)
	expires()
}

// TestEnvoyproxyTakesPlainUnits requires that requests which envoyproxy/ratelimit could not count are refused.
func TestEnvoyproxyTakesPlainUnits(t *testing.T) {
	s := startServer(t)
	c := s.open("?layout=envoyproxy")
	for name, change := range map[string]func(*federation.PoolRequest){
		"no name":       func(r *federation.PoolRequest) { r.Name = "" },
		"two hours":     func(r *federation.PoolRequest) { r.Rule.Window = 2 * time.Hour },
		"half a second": func(r *federation.PoolRequest) { r.Rule.Window = time.Second / 2 },
		"sliding":       func(r *federation.PoolRequest) { r.Rule.Algorithm = limit.SlidingWindow },
	} {
		r := request(time.Hour, 1)
		r.Name = "edge_key_value_"
		change(&r)
		if gs, err := c.Lease(t.Context(), "a", []federation.PoolRequest{r}); err != nil || len(gs) != 0 {
			t.Errorf("%s: %+v %v", name, gs, err)
		}
	}
}
