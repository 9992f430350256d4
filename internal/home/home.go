// Package home coordinates the pools of federations with the counters of a cluster: each request of a region is processed
// by the member that owns the pool's counter, to which any member relays it.
package home

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/peer"
	"github.com/keyward/keyward/internal/poolwire"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

const (
	// longestCall is how long a call waits for members that do not reply, and for counters that move. The region repeats
	// the requests that have no reply then.
	longestCall = 300 * time.Millisecond
	// retryEvery is the time after which a request whose counter has no owner is tried again.
	retryEvery = 5 * time.Millisecond
	// silentFor is how long calls do not wait for a member that has not replied to one. Their requests are sent to it all the
	// same: its next reply shows that it is back.
	silentFor = 3 * time.Second
	// relayBytes is the size of the requests that are relayed together: far below that of which a peer.PoolMessage
	// becomes several, whose replies could not be distinguished.
	relayBytes = 32 << 10
)

// errAway is returned when no request could be processed.
var errAway = errors.New("no member of this cluster can lend now")

// Members is a peer.Peer.
type Members interface {
	StepPool(region string, r *federation.PoolRequest, to owner.Waiter) owner.PoolResult
	SendPool(to ring.ID, m *peer.PoolMessage) bool
}

// Options configure a Coordinator. All fields are required.
type Options struct {
	Members Members
	// Joined reports whether this member has joined its cluster.
	Joined func() bool
}

// Coordinator implements federation.Coordinator by the counters of a cluster. It is safe for concurrent use.
type Coordinator struct {
	o Options

	mu      sync.Mutex
	lastID  uint64           // guarded by mu
	relayed map[uint64]relay // calls of this member to others, by ID; guarded by mu

	silent map[ring.ID]time.Time // members that have not replied, until when calls do not wait for them; guarded by mu
}

// relay is a part of a call that another member processes.
type relay struct {
	call    *call
	to      ring.ID
	indices []int // of its requests
	silent  bool  // the call does not wait for it
}

// New returns a Coordinator.
func New(o Options) *Coordinator {
	// A reply to an earlier life of this member must not end a call of this one.
	return &Coordinator{o: o, lastID: rand.Uint64(), relayed: map[uint64]relay{}, silent: map[ring.ID]time.Time{}}
}

// call is one call of Lease.
type call struct {
	c      *Coordinator
	region string
	rs     []federation.PoolRequest
	woken  chan struct{}

	mu      sync.Mutex
	ids     []uint64 // of the parts that were relayed; used by Lease alone
	results []result // of rs; guarded by mu
	open    int      // requests that are pending or relayed; guarded by mu
	again   []int    // requests to try again; guarded by mu
}

type result struct {
	grant federation.PoolGrant
	lent  bool
}

// Lease implements federation.Coordinator. Requests whose counters move, or whose members do not reply, have no reply.
func (c *Coordinator) Lease(ctx context.Context, region string, rs []federation.PoolRequest) (gs []federation.PoolGrant, err error) {
	if !c.o.Joined() {
		return nil, errAway
	}
	k := &call{c: c, region: region, rs: rs, woken: make(chan struct{}, 1), results: make([]result, len(rs))}
	for i := range rs {
		k.again = append(k.again, i)
	}
	defer c.forget(k)
	end := time.NewTimer(longestCall)
	defer end.Stop()
	for k.step() {
		retry := time.NewTimer(retryEvery)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-end.C:
			retry.Stop()
			c.silence(k)
			return k.grants(), nil
		case <-k.woken:
		case <-retry.C:
		}
		retry.Stop()
	}
	return k.grants(), nil
}

// Reconcile implements federation.Coordinator.
func (c *Coordinator) Reconcile(ctx context.Context, region string, rs []federation.PoolRequest) error {
	_, err := c.Lease(ctx, region, rs)
	return err
}

// Healthy implements federation.Coordinator.
func (c *Coordinator) Healthy(context.Context) error {
	if !c.o.Joined() {
		return errAway
	}
	return nil
}

// step processes the requests that are to be tried. It returns false if every request has a result.
func (k *call) step() bool {
	k.mu.Lock()
	try := k.again
	k.again = nil
	k.open += len(try)
	k.mu.Unlock()
	groups := map[ring.ID][]int{}
	for _, i := range try {
		switch res := k.c.o.Members.StepPool(k.region, &k.rs[i], &waiter{k, i}); {
		case res.Kind == owner.Decided:
			k.complete(i, res.Grant, res.Lent)
		case res.Kind == owner.Forward && res.Member == "":
			k.retry(i)
		case res.Kind == owner.Forward:
			groups[res.Member] = append(groups[res.Member], i)
		}
	}
	for to, indices := range groups {
		for len(indices) > 0 {
			n := k.fitting(indices)
			k.relay(to, indices[:n])
			indices = indices[n:]
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.open+len(k.again) > 0
}

// fitting returns how many of the requests, at least one, are relayed together.
func (k *call) fitting(indices []int) (n int) {
	for size := 0; n < len(indices) && size < relayBytes; n++ {
		r := &k.rs[indices[n]]
		size += 2 + poolwire.RequestSize + len(r.Note) + min(len(r.Name), poolwire.MaxName)
	}
	return n
}

// relay sends requests to the member that owns their counters.
func (k *call) relay(to ring.ID, indices []int) {
	id, silent := k.c.register(k, to, indices)
	m := &peer.PoolMessage{ID: id, Region: k.region}
	k.ids = append(k.ids, m.ID)
	for _, i := range indices {
		m.Requests = append(m.Requests, k.rs[i])
	}
	switch sent := k.c.o.Members.SendPool(to, m); {
	case silent:
		k.end(len(indices)) // without a reply, unless that is faster than the others
	case !sent:
		for _, i := range indices {
			k.retry(i)
		}
	}
}

// register records that requests of k are relayed to a member, and reports whether that has been silent.
func (c *Coordinator) register(k *call, to ring.ID, indices []int) (id uint64, silent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	silent = time.Now().Before(c.silent[to])
	c.lastID++
	c.relayed[c.lastID] = relay{k, to, indices, silent}
	return c.lastID, silent
}

// silence records that the members to which requests of k are relayed have not replied.
func (c *Coordinator) silence(k *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.silent, func(_ ring.ID, until time.Time) bool { return time.Now().After(until) })
	for _, id := range k.ids {
		if x, found := c.relayed[id]; found {
			c.silent[x.to] = time.Now().Add(silentFor)
		}
	}
}

// forget drops what waits for replies to k.
func (c *Coordinator) forget(k *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range k.ids {
		delete(c.relayed, id)
	}
}

// complete records the result of request i.
func (k *call) complete(i int, g federation.PoolGrant, lent bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.results[i] = result{g, lent}
	k.open--
	k.wake()
}

// retry has request i tried again.
func (k *call) retry(i int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.open--
	k.again = append(k.again, i)
}

// wake wakes Lease if every request has a result. It is called with mu held.
func (k *call) wake() {
	if k.open > 0 {
		return
	}
	select {
	case k.woken <- struct{}{}:
	default:
	}
}

// grants returns the grants in the order of their requests.
func (k *call) grants() (gs []federation.PoolGrant) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range k.results {
		if k.results[i].lent {
			gs = append(gs, k.results[i].grant)
		}
	}
	return gs
}

// waiter is the owner.Waiter of one request of a call.
type waiter struct {
	call  *call
	index int
}

// CompletePool delivers the result of a request that was pending.
func (w *waiter) CompletePool(d *owner.PoolDone) { w.call.complete(w.index, d.Grant, d.Lent) }

// Receive processes a message of another member: requests that it relays, or its reply. It does not block.
func (c *Coordinator) Receive(from ring.ID, m *peer.PoolMessage) {
	if m.Reply {
		c.receiveReply(from, m)
		return
	}
	b := &batch{c: c, from: from, id: m.ID, open: len(m.Requests) + 1}
	for i := range m.Requests {
		res := c.o.Members.StepPool(m.Region, &m.Requests[i], b)
		if res.Kind != owner.Pending {
			b.CompletePool(&owner.PoolDone{Grant: res.Grant, Lent: res.Kind == owner.Decided && res.Lent})
		}
	}
	b.CompletePool(&owner.PoolDone{})
}

// receiveReply completes requests that were relayed. Those without a grant are refused.
func (c *Coordinator) receiveReply(from ring.ID, m *peer.PoolMessage) {
	c.mu.Lock()
	delete(c.silent, from)
	x, found := c.relayed[m.ID]
	if found && !m.More {
		delete(c.relayed, m.ID)
	}
	c.mu.Unlock()
	if !found {
		return
	}
	for i := range m.Grants {
		x.call.record(x.indices, &m.Grants[i])
	}
	if !m.More && !x.silent {
		x.call.end(len(x.indices))
	}
}

// record records a grant of one of the requests that were relayed together.
func (k *call) record(indices []int, g *federation.PoolGrant) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, i := range indices {
		if r := &k.rs[i]; r.Key == g.Key && r.Seq == g.Seq {
			k.results[i] = result{*g, true}
		}
	}
}

// end ends n requests that were relayed.
func (k *call) end(n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.open -= n
	k.wake()
}

// batch is a message of requests from another member while this one processes it. It is the owner.Waiter of all of them.
type batch struct {
	c    *Coordinator
	from ring.ID
	id   uint64

	mu     sync.Mutex
	open   int                    // results that are missing; guarded by mu
	grants []federation.PoolGrant // guarded by mu
}

// CompletePool adds a result. After the last one, the reply is sent. If it is lost, the region asks again.
func (b *batch) CompletePool(d *owner.PoolDone) {
	b.mu.Lock()
	if d.Lent {
		b.grants = append(b.grants, d.Grant)
	}
	b.open--
	done := b.open == 0
	b.mu.Unlock()
	if done {
		b.c.o.Members.SendPool(b.from, &peer.PoolMessage{ID: b.id, Reply: true, Grants: b.grants})
	}
}
