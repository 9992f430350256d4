// Package redis is a federation.Coordinator that keeps its accounts in Redis, or in a server that is compatible with
// Redis 7.
//
// Each request is one call of a script, which reads the server's clock. A window's record is a hash that expires after the
// window. All names begin with one of 256 hash tags, {kw00} to {kwff}. In a Redis Cluster, calls for keys of a slot fail while
// the slot moves from one server to another.
//
// Redis can lose writes: those that a replica had not received when it was promoted, those after the snapshot that a
// server restores, or all of them if it restarts empty. A region that reports more hits than are recorded has them charged
// again. Of windows that began before the first write of an empty Redis, only the rest is lent. Records expire a minute
// after their window, so a clock that is set back by more than a minute can lend a window again.
package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	redigo "github.com/gomodule/redigo/redis"

	"github.com/keyward/keyward/federation"
)

const (
	dialTimeout = 2 * time.Second
	callTimeout = 5 * time.Second // for a server that does not reply, if the caller's deadline is later
	ackTimeout  = time.Second     // for replicas to confirm writes
)

// Options configure a Coordinator.
type Options struct {
	// URL is redis://[user:password@]host:port[/database], or rediss:// for TLS. Its query may contain wait=N: a grant
	// counts only if N replicas have confirmed it; and layout=envoyproxy: the used hits of a window are the counter of
	// envoyproxy/ratelimit with the Name of the request, so both services share one exact limit.
	URL   string
	Terms federation.TermOf // of the federation's layouts
	TLS   *tls.Config       // for rediss; nil: the system's certificate authorities
}

// Coordinator lends parts of pools that are recorded in Redis. It is safe for concurrent use.
type Coordinator struct {
	terms    federation.TermOf
	server   server
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	repaired atomic.Uint64
	now      func() int64 // nil outside of tests: the script reads the server's clock

	mu       sync.Mutex
	topology *topology        // nil: not known; guarded by mu
	nodes    map[string]*node // by address; guarded by mu
}

// Open returns a Coordinator. It returns an error if o.URL is unusable. It does not wait for the server: the first call
// connects, and calls return errors until the server can be reached.
func Open(_ context.Context, o Options) (*Coordinator, error) {
	s, err := parseURL(o.URL, o.TLS)
	if err != nil {
		return nil, fmt.Errorf("open redis: %w", err)
	}
	c := &Coordinator{terms: o.Terms, server: s, nodes: map[string]*node{}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c, nil
}

// Close closes the connections. Calls that wait for a reply return an error.
func (c *Coordinator) Close() { c.cancel() }

// Repaired returns how many hits were charged because a region had them and Redis had lost their record.
func (c *Coordinator) Repaired() uint64 { return c.repaired.Load() }

// Counts reports whether c supports mechanism approximate. With layout=envoyproxy there is one counter for all, without the parts
// of holders.
func (c *Coordinator) Counts() bool { return c.server.layout == keyward }

// Lease implements federation.Coordinator. Requests for one key are processed in their order.
func (c *Coordinator) Lease(ctx context.Context, region string, rs []federation.PoolRequest) ([]federation.PoolGrant, error) {
	gs, err := c.lease(ctx, region, rs)
	if err != nil {
		return nil, fmt.Errorf("lease from redis %s: %w", c.server.address, err)
	}
	return gs, nil
}

// Reconcile implements federation.Coordinator.
func (c *Coordinator) Reconcile(ctx context.Context, region string, rs []federation.PoolRequest) error {
	_, err := c.Lease(ctx, region, rs)
	return err
}

func (c *Coordinator) lease(ctx context.Context, region string, rs []federation.PoolRequest) (gs []federation.PoolGrant, err error) {
	var calls []call
	for i := range rs {
		r := &rs[i]
		if term, ok := c.terms(r.Epoch); ok && r.Valid() && c.server.layout.accepts(r) {
			calls = append(calls, c.call(region, r, term))
		}
	}
	if len(calls) == 0 {
		return nil, nil
	}
	tasks := make([]*task, len(calls))
	for i := range calls {
		tasks[i] = &calls[i].task
	}
	replies, err := c.run(ctx, tasks)
	if err != nil {
		return nil, err
	}
	for i, reply := range replies {
		g, lost, err := calls[i].grant(reply)
		switch {
		case errors.Is(err, redigo.ErrNil): // refused
		case err != nil:
			return nil, err
		default:
			c.repaired.Add(lost)
			gs = append(gs, g)
		}
	}
	return gs, nil
}
