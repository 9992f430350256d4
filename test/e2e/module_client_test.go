package e2e

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/envoy/module/moduletest"
)

// podEnvoy spends leases as the dynamic module in an Envoy does, and calls the rate limit service when there are none.
type podEnvoy struct {
	rls     rlsv3.RateLimitServiceClient
	client  atomic.Pointer[moduletest.ModuleClient]
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	interest uint32    // guarded by mu: hits
	sentAt   time.Time // guarded by mu
}

func startPodEnvoy(t *testing.T, socket, rls string) *podEnvoy {
	e := &podEnvoy{rls: dial(t, rls, nil)}
	ctx, cancel := context.WithCancel(t.Context())
	e.cancel = cancel
	e.running.Go(func() { e.connect(ctx, socket) })
	t.Cleanup(e.stop)
	return e
}

// stop ends the process, from its sidecar's point of view.
func (e *podEnvoy) stop() {
	e.cancel()
	e.running.Wait()
}

// connect keeps a connection until the context ends.
func (e *podEnvoy) connect(ctx context.Context, socket string) {
	for ctx.Err() == nil {
		c, err := moduletest.Dial(socket)
		if err != nil {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		e.client.Store(c)
		select {
		case <-c.Done():
		case <-ctx.Done():
		}
		e.client.Store(nil)
		c.Close()
	}
}

// ask makes a request. It returns whether it was admitted, whether from a lease, and the window in which it counts.
func (e *podEnvoy) ask(ctx context.Context, window time.Duration, domain string, kv ...string) (admitted, leased bool, at int64, err error) {
	at = time.Now().UnixNano() / int64(window)
	if c := e.client.Load(); c != nil {
		if out, expires := c.Spend(1, domain, kv...); out == moduletest.Taken {
			return true, true, expires / int64(window), nil
		}
		e.interested(c, domain, kv...)
	}
	r, err := e.rls.ShouldRateLimit(ctx, request(domain, 1, kv...))
	return err == nil && r.OverallCode == rlsv3.RateLimitResponse_OK, false, at, err
}

// interested sends INTEREST at most once in 100 ms.
func (e *podEnvoy) interested(c *moduletest.ModuleClient, domain string, kv ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.interest++
	if now := time.Now(); now.Sub(e.sentAt) >= 100*time.Millisecond {
		_ = c.Interest(e.interest, domain, kv...)
		e.sentAt, e.interest = now, 0
	}
}
