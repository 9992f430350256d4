package app

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/federation"
)

const (
	// poolCallTimeout is how long a call to a coordinator may take. Requests are repeated long before.
	poolCallTimeout = 3 * time.Second
	poolCalls       = 8   // most calls to one coordinator at a time
	poolBatch       = 256 // most requests of one call
	poolCheckEvery  = 30 * time.Second
	poolQueue       = 16_384 // most requests that wait for a call; more are dropped, and repeated
)

// poolCaller calls one coordinator.
type poolCaller struct {
	id          uint32
	name        string
	region      string
	coordinator federation.Coordinator
	reply       poolReply
	wake        chan struct{}
	slots       chan struct{} // holds a value for each call
	seconds     prometheus.Observer
	errors      prometheus.Counter
	dropped     prometheus.Counter
	requests    prometheus.Counter
	refused     prometheus.Counter
	up, offset  prometheus.Gauge
	log         *slog.Logger
	unhealthy   atomic.Bool

	mu      sync.Mutex
	waiting []federation.PoolRequest // guarded by mu
}

func (c *poolCaller) queue(r *federation.PoolRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) >= poolQueue {
		c.dropped.Inc()
		return
	}
	c.waiting = append(c.waiting, *r)
}

func (c *poolCaller) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// take returns the requests of the next call, or none.
func (c *poolCaller) take() (rs []federation.PoolRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(c.waiting), poolBatch)
	rs = slices.Clone(c.waiting[:n])
	c.waiting = slices.Delete(c.waiting, 0, n)
	return rs
}

// run calls the coordinator until ctx ends. It connects at once, so that the first request does not have to.
func (c *poolCaller) run(ctx context.Context) {
	var calls sync.WaitGroup
	defer calls.Wait()
	check := time.NewTicker(poolCheckEvery)
	defer check.Stop()
	calls.Go(func() { c.check(ctx) })
	for {
		select {
		case <-ctx.Done():
			return
		case <-check.C:
			calls.Go(func() { c.check(ctx) })
		case <-c.wake:
			c.send(ctx, &calls)
		}
	}
}

// send sends the requests that wait. Those that come while all calls are in progress share the next one.
func (c *poolCaller) send(ctx context.Context, calls *sync.WaitGroup) {
	for {
		select {
		case <-ctx.Done():
			return
		case c.slots <- struct{}{}:
		}
		rs := c.take()
		if len(rs) == 0 {
			<-c.slots
			return
		}
		calls.Go(func() {
			c.call(ctx, rs)
			<-c.slots
		})
	}
}

// check logs when the coordinator becomes unable to lend, and when it is able again.
func (c *poolCaller) check(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, poolCallTimeout)
	defer cancel()
	err := c.coordinator.Healthy(ctx)
	if ctx.Err() == context.Canceled {
		return
	}
	switch was := c.unhealthy.Swap(err != nil); {
	case err != nil && !was:
		c.log.Warn("coordinator cannot lend", "authority", c.name, "error", err)
	case err == nil && was:
		c.log.Info("coordinator lends again", "authority", c.name)
	}
}

func (c *poolCaller) call(ctx context.Context, rs []federation.PoolRequest) {
	ctx, cancel := context.WithTimeout(ctx, poolCallTimeout)
	defer cancel()
	began := time.Now()
	gs, err := c.coordinator.Lease(ctx, c.region, rs)
	took := time.Since(began)
	c.requests.Add(float64(len(rs)))
	if err != nil {
		c.errors.Inc()
	} else {
		c.seconds.Observe(took.Seconds())
		c.refused.Add(float64(len(rs) - len(gs)))
		c.measureOffset(rs, gs, began, took)
	}
	up := 1.
	if c.reply(c.id, took, gs, err != nil) {
		up = 0
	}
	c.up.Set(up)
}
