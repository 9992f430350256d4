package remote

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/federation/redis"
	"github.com/keyward/keyward/internal/lab"
)

// openRedis starts a Redis that ends with the test. It skips the test if there is none.
func openRedis(t *testing.T) *redis.Coordinator {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil && os.Getenv("KEYWARD_REDIS") == "required" {
		t.Fatal(err)
	}
	if err != nil {
		t.Skip("no redis-server")
	}
	address, err := lab.Ports{}.Addr()
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(address)
	dir := t.TempDir()
	p, err := lab.StartProcess(dir, lab.Spec{
		Name: "redis", Path: path, Args: []string{"--bind", "127.0.0.1", "--port", port, "--save", "", "--dir", dir},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	c, err := redis.Open(t.Context(), redis.Options{URL: "redis://" + address, Terms: federation.Always(testEpoch)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	eventually(t, "Redis", func() bool { return c.Healthy(bounded(t)) == nil })
	if err := c.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestChargedBeforeLent has two regions take a pool of 1000 hits at once, over connections and from Redis. They get
// exactly the pool.
func TestChargedBeforeLent(t *testing.T) {
	s := serve(t, ServeOptions{Coordinator: openRedis(t)})
	var all sync.WaitGroup
	var mu sync.Mutex
	totals := map[string]uint64{}
	for _, region := range []string{"a", "b"} {
		c := dial(t, s.Addr().String(), func(o *DialOptions) { o.Region = region })
		all.Go(func() {
			r := request(7)
			for range 150 {
				gs, err := c.Lease(bounded(t), region, []federation.PoolRequest{r})
				if err != nil || len(gs) != 1 {
					t.Error(gs, err)
					return
				}
				r.Seq, r.Window, r.Have = r.Seq+1, gs[0].Window, gs[0].Total
			}
			mu.Lock()
			totals[region] = r.Have
			mu.Unlock()
		})
	}
	all.Wait()
	if sum := totals["a"] + totals["b"]; sum != 1000 || totals["a"] == 0 || totals["b"] == 0 {
		t.Errorf("%v: %d hits of a pool of 1000", totals, sum)
	}
}

// BenchmarkLease measures calls over loopback to a coordinator in memory.
func BenchmarkLease(b *testing.B) {
	for _, n := range []int{1, 16, 256} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := dial(b, serve(b, ServeOptions{Coordinator: memory()}).Addr().String(), nil)
			rs := make([]federation.PoolRequest, n)
			for i := range rs {
				rs[i] = request(0)
				rs[i].Key[0] = uint64(i)
			}
			b.ReportAllocs()
			for seq := uint64(1); b.Loop(); seq++ {
				for i := range rs {
					rs[i].Seq = seq
				}
				if gs, err := c.Lease(b.Context(), "a", rs); err != nil || len(gs) != n {
					b.Fatal(len(gs), err)
				}
			}
		})
	}
}

// BenchmarkParallelLease measures calls that share a connection.
func BenchmarkParallelLease(b *testing.B) {
	answer := stub{func(_ context.Context, rs []federation.PoolRequest) ([]federation.PoolGrant, error) {
		return []federation.PoolGrant{{Key: rs[0].Key, Seq: rs[0].Seq}}, nil
	}}
	c := dial(b, serve(b, ServeOptions{Coordinator: answer}).Addr().String(), nil)
	b.SetParallelism(64)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			ctx, cancel := context.WithTimeout(b.Context(), 5*time.Second)
			if _, err := c.Lease(ctx, "a", []federation.PoolRequest{request(1)}); err != nil {
				b.Error(err)
			}
			cancel()
		}
	})
}
