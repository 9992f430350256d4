// Package redis is a federation.Coordinator that keeps its accounts in Redis, or in a server that is compatible with
// Redis 7.
//
// Each request is one call of a script, which reads the server's clock. A window's record is a hash that expires after the
// window. All names begin with one of 256 hash tags, {kw00} to {kwff}.
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
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/keyward/keyward/federation"
)

const (
	bufferSize  = 16 << 10 // for reading and writing, per connection
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
	dialing  chan struct{}  // holds a value while client is used or set
	client   rueidis.Client // nil until the first connection
	repaired atomic.Uint64
	now      func() int64 // nil outside of tests: the script reads the server's clock
}

// Open returns a Coordinator. It returns an error if o.URL is unusable. It does not wait for the server: the first call
// connects, and calls return errors until the server can be reached.
func Open(_ context.Context, o Options) (*Coordinator, error) {
	s, err := parseURL(o.URL, o.TLS)
	if err != nil {
		return nil, fmt.Errorf("open redis: %w", err)
	}
	return &Coordinator{terms: o.Terms, server: s, dialing: make(chan struct{}, 1)}, nil
}

// Close closes the connections. Calls that wait for a reply return an error.
func (c *Coordinator) Close() {
	c.dialing <- struct{}{}
	defer func() { <-c.dialing }()
	if c.client != nil {
		c.client.Close()
	}
}

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
	client, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	replies, err := c.run(ctx, client, calls)
	if err != nil {
		return nil, err
	}
	for i, reply := range replies {
		g, lost, err := calls[i].grant(reply)
		switch {
		case rueidis.IsRedisNil(err): // refused
		case err != nil:
			return nil, err
		default:
			c.repaired.Add(lost)
			gs = append(gs, g)
		}
	}
	return gs, nil
}

// run calls the script for each request in one round trip, and once more with its source for those for which the server
// did not have it.
func (c *Coordinator) run(ctx context.Context, client rueidis.Client, calls []call) ([]rueidis.RedisResult, error) {
	replies, err := c.send(ctx, client, false, calls)
	if err != nil {
		return nil, err
	}
	var again []call
	var places []int
	for i, reply := range replies {
		if e, ok := rueidis.IsRedisErr(reply.Error()); ok && e.IsNoScript() {
			again, places = append(again, calls[i]), append(places, i)
		}
	}
	if len(again) == 0 {
		return replies, nil
	}
	repeated, err := c.send(ctx, client, true, again)
	for i, reply := range repeated {
		replies[places[i]] = reply
	}
	return replies, err
}

// send sends the calls, with the source of their scripts if whole is set, and WAIT after them if replicas have to confirm.
func (c *Coordinator) send(ctx context.Context, client rueidis.Client, whole bool, calls []call) ([]rueidis.RedisResult, error) {
	commands := make([]rueidis.Completed, 0, len(calls)+1)
	for _, call := range calls {
		command, script := "EVALSHA", call.script.digest
		if whole {
			command, script = "EVAL", call.script.source
		}
		b := client.B().Arbitrary(command, script, "2").Keys(call.key, call.since).Args(call.args...)
		commands = append(commands, b.Build())
	}
	if c.server.wait == 0 {
		return client.DoMulti(ctx, commands...), nil
	}
	commands = append(commands, client.B().Wait().Numreplicas(c.server.wait).Timeout(ackTimeout.Milliseconds()).Build())
	replies := client.DoMulti(ctx, commands...)
	acks, err := replies[len(calls)].AsInt64()
	if err == nil && acks < c.server.wait {
		err = fmt.Errorf("%d of %d replicas confirmed within %v; check their connections", acks, c.server.wait, ackTimeout)
	}
	return replies[:len(calls)], err
}

// connect returns the client, and creates it if necessary.
func (c *Coordinator) connect(ctx context.Context) (rueidis.Client, error) {
	select {
	case c.dialing <- struct{}{}:
		defer func() { <-c.dialing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if c.client != nil {
		return c.client, nil
	}
	client, err := rueidis.NewClient(c.server.options())
	if err != nil {
		return nil, err
	}
	if client.Mode() == rueidis.ClientModeCluster && (c.server.wait > 0 || c.server.layout == envoyproxy) {
		client.Close()
		return nil, errors.New("wait and layout=envoyproxy are not available with Redis Cluster; use a single primary")
	}
	c.client = client
	return client, nil
}
