package owner

import (
	"cmp"
	"slices"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/ring"
)

// maxPending is the longest time for which a request is pending if its caller neither waits nor cancels it.
const maxPending = int64(10 * time.Second)

// Waiter identifies the caller of a request that may be pending. The Node returns it in Done and never calls it. Waiters of
// requests that are pending for one key at one time must differ; they are compared with ==.
type Waiter any

// Done is the result of a request that was pending. A result of kind Forward without a member means that the request is to be degraded.
type Done struct {
	Waiter Waiter
	Result Result
}

// Effects are what the driver must do after a call. Send the messages in their order; deliver Done in any order, at any time.
type Effects struct {
	Out          []handoff.Outbound
	Done         []Done
	Leases       []lease.Delivery
	Audits       []Audit
	ClockStopped time.Duration // at least how long this member's clock stood still, after which its ownership is revoked; 0: it did not
}

// Audit describes a grant, or a report of an approximate rule, of a rule with audit logs.
type Audit struct {
	Key      Key
	Name     string // for people; empty if unknown
	Member   ring.ID
	IsReport bool   // a report of an approximate rule; otherwise a grant
	Hits     uint64 // granted, or reported
	Used     uint64 // the count then
	Limit    uint32
}

// pendingRequests are the requests of one shard that are pending. Guarded by the shard's mu.
type pendingRequests struct {
	n    int
	seq  uint64 // of the newest one
	keys map[Key]*pendingKey
}

// pendingKey holds the pending requests for one key.
type pendingKey struct {
	ownership *ownershipWait    // nil if no request waits for the ownership
	replicas  []*pendingRequest // those that wait for the confirmation of replicas, the oldest first
}

// ownershipWait is a key whose ownership this member requests from another one.
type ownershipWait struct {
	ringPos     uint64
	domain      uint64
	rule        limit.Rule // of the first request
	holder      ring.ID
	requestedAt int64 // 0: not yet
	requests    []*pendingRequest
}

// pendingRequest is a request that is pending. It is in exactly one list of its key.
type pendingRequest struct {
	request Request
	hash    uint64
	since   int64
	order   uint64        // requests that expire together are resolved in this order
	result  Result        // the decision, if it waits for replicas
	seq     uint32        // of the unreplicated charges that it waits for
	upTo    uint64        // so many of their hits must be confirmed
	grant   *pendingGrant // not nil: a holder waits for this grant, and no caller
}

func (p *pendingRequests) key(k Key) *pendingKey {
	x := p.keys[k]
	if x == nil {
		if p.keys == nil {
			p.keys = map[Key]*pendingKey{}
		}
		x = &pendingKey{}
		p.keys[k] = x
	}
	return x
}

// ownership returns the wait for the ownership of k, or nil.
func (p *pendingRequests) ownership(k Key) *ownershipWait {
	if x := p.keys[k]; x != nil {
		return x.ownership
	}
	return nil
}

// takeOwnership removes the wait for the ownership of k and returns its requests.
func (p *pendingRequests) takeOwnership(k Key) []*pendingRequest {
	t := p.ownership(k)
	if t == nil {
		return nil
	}
	p.keys[k].ownership = nil
	p.dropEmpty(k)
	return t.requests
}

func (p *pendingRequests) dropEmpty(k Key) {
	if x := p.keys[k]; x != nil && x.ownership == nil && len(x.replicas) == 0 {
		delete(p.keys, k)
	}
}

// ownershipKeys returns the keys whose ownership is waited for, in an order that depends on nothing but the keys.
func (p *pendingRequests) ownershipKeys() (keys []Key) {
	for k, x := range p.keys {
		if x.ownership != nil {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b Key) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
	return keys
}

// remove takes w out of the list that it is in.
func (p *pendingRequests) remove(w *pendingRequest) {
	k := w.request.Key
	x := p.keys[k]
	if x == nil {
		return
	}
	is := func(o *pendingRequest) bool { return o == w }
	x.replicas = slices.DeleteFunc(x.replicas, is)
	if x.ownership != nil {
		if x.ownership.requests = slices.DeleteFunc(x.ownership.requests, is); len(x.ownership.requests) == 0 {
			x.ownership = nil
		}
	}
	p.dropEmpty(k)
}

// find returns the pending request for k of waiter to, or nil.
func (p *pendingRequests) find(k Key, to Waiter) *pendingRequest {
	x := p.keys[k]
	if x == nil {
		return nil
	}
	lists := [][]*pendingRequest{x.replicas}
	if x.ownership != nil {
		lists = append(lists, x.ownership.requests)
	}
	for _, list := range lists {
		for _, w := range list {
			if w.grant == nil && w.request.Waiter == to {
				return w
			}
		}
	}
	return nil
}

// expired returns the requests that began to wait before then, in their order.
func (p *pendingRequests) expired(then int64) (old []*pendingRequest) {
	add := func(list []*pendingRequest) {
		for _, w := range list {
			if w.since < then {
				old = append(old, w)
			}
		}
	}
	for _, x := range p.keys {
		add(x.replicas)
		if x.ownership != nil {
			add(x.ownership.requests)
		}
	}
	slices.SortFunc(old, func(a, b *pendingRequest) int { return cmp.Compare(a.order, b.order) })
	return old
}

// await makes op a pending request with result *a, or w if it was pending before. The caller adds it to a list. await returns nil if too
// many requests are pending; *a is a refusal then.
func (n *Node) await(s *shard, op *shardOp, w *pendingRequest, a *Result) *pendingRequest {
	if w == nil {
		if n.pending.Add(1) > int64(n.options.MaxWaiting) {
			n.pending.Add(-1)
			s.counts.pendingRefused++
			*a = Result{Kind: Forward, Authority: Shed}
			return nil
		}
		s.pending.n++
		s.pending.seq++
		w = &pendingRequest{request: *op.Request, hash: op.hash, since: op.now, order: s.pending.seq}
	}
	w.result = *a
	*a = Result{Kind: Pending}
	n.dirty.Store(true)
	n.urgent.Store(true)
	return w
}

// awaitOwnership makes op wait for the ownership of its key, which is requested from holder.
func (n *Node) awaitOwnership(s *shard, op *shardOp, holder ring.ID, a *Result) {
	w := n.await(s, op, nil, a)
	if w == nil {
		return
	}
	k := s.pending.key(op.Key)
	if k.ownership == nil {
		k.ownership = &ownershipWait{ringPos: op.RingPos, domain: op.Domain, rule: op.Request.Rule, holder: holder}
	}
	k.ownership.requests = append(k.ownership.requests, w)
}

// Cancel ends the wait of the pending request for k with this waiter. It reports whether the request was pending: if not,
// its result has been returned in Effects or will be.
func (n *Node) Cancel(k Key, to Waiter) bool {
	s, _ := n.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.pending.find(k, to)
	if w == nil {
		return false
	}
	s.pending.remove(w)
	n.endPending(s)
	return true
}

// endPending counts a request that is not pending any more.
func (n *Node) endPending(s *shard) {
	s.pending.n--
	n.pending.Add(-1)
}

// resolve delivers the result of w, which is in no list any more.
func (n *Node) resolve(s *shard, w *pendingRequest, a Result, fx *Effects) {
	n.endPending(s)
	switch {
	case w.grant == nil:
		fx.Done = append(fx.Done, Done{w.request.Waiter, a})
	case a.Kind == Decided:
		w.grant.send(fx)
	}
}

// decidePending decides the requests that wait for the ownership of k, which this member has now.
func (n *Node) decidePending(s *shard, now int64, k Key, fx *Effects) {
	requests := s.pending.takeOwnership(k)
	if len(requests) == 0 {
		return
	}
	extent, num, den := n.authority(now, s.view)
	if extent == handoff.ExtentFull {
		den = 0
	}
	for _, w := range requests {
		a := Result{Kind: Forward}
		if extent != handoff.ExtentNone {
			e := s.counters.Owned.Find(w.hash, k)
			n.decideLocked(s, w.hash, now, &w.request, e, part{num, den}, w, &a)
		}
		if a.Kind != Pending {
			n.resolve(s, w, a, fx)
		}
	}
}

// forwardAll resolves the requests that wait for the ownership of k: member decides it.
func (n *Node) forwardAll(s *shard, k Key, member ring.ID, fx *Effects) {
	for _, w := range s.pending.takeOwnership(k) {
		n.resolve(s, w, Result{Kind: Forward, Member: member}, fx)
	}
}

// reviewOwnershipWaits applies a new view to all keys whose ownership is waited for.
func (n *Node) reviewOwnershipWaits(s *shard, now int64, fx *Effects) {
	for _, k := range s.pending.ownershipKeys() {
		t := s.pending.ownership(k)
		_, h := n.shard(k)
		switch hold := s.view.Ownership(t.ringPos, s.counters.Owned.Find(h, k).OwnedEpoch(t.ringPos)); {
		case hold.State == handoff.OwnedHere:
			n.decidePending(s, now, k, fx)
		case hold.State == handoff.OwnedElsewhere:
			n.forwardAll(s, k, hold.Member, fx)
		case hold.Member != t.holder:
			t.holder, t.requestedAt = hold.Member, 0
		}
	}
}

// resolveReplicated resolves the requests for k that wait for replicas: those of earlier unreplicated charges than seq, and of these
// the ones that wait for at most upTo confirmed hits.
func (n *Node) resolveReplicated(s *shard, k Key, seq uint32, upTo uint64, fx *Effects) {
	x := s.pending.keys[k]
	if x == nil {
		return
	}
	for len(x.replicas) > 0 {
		w := x.replicas[0]
		if w.seq == seq && w.upTo > upTo {
			break
		}
		x.replicas = x.replicas[1:]
		n.resolve(s, w, w.result, fx)
	}
	s.pending.dropEmpty(k)
}

// expirePending resolves the requests that have been pending for far longer than any caller waits.
func (n *Node) expirePending(s *shard, now int64, fx *Effects) {
	for _, w := range s.pending.expired(now - maxPending) {
		s.pending.remove(w)
		n.resolve(s, w, Result{Kind: Forward}, fx)
	}
}
