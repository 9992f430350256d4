package owner

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner/internal/lending"
	"github.com/keyward/keyward/ring"
)

// maxPending is the longest time for which a request is pending, in case its caller does not cancel it.
const maxPending = int64(10 * time.Second)

// Waiter identifies the caller of a request that may be pending. The Node returns it in Done and never calls it.
// Waiters of requests that are pending for one key at one time must differ; they are compared with ==.
type Waiter any

// Done is the result of a request that was pending. A Result of kind Forward without a Member is not a decision: the
// request is to be degraded.
type Done struct {
	Waiter Waiter
	Result Result
}

// Ready lists all that the driver of a Node has to do after a call. Its fields are in the order in which the driver
// should do it. Only messages to the same member must keep their order; all else may be done concurrently, also with
// the Ready of other calls. A message, or a transfer, that is lost is repeated by a later Ready.
type Ready struct {
	Messages       []protocol.Outbound // to send, those to one member in this order
	lending.Outbox                     // Leases, to send like Messages, and Audits and LostAudits, to log
	// ClockStopped is how long this member's clock has stood still, at least, so that its ownership is revoked; 0 if it
	// has not.
	ClockStopped time.Duration
	Budgets      []BudgetEvent        // to log
	PoolRequests []CoordinatorRequest // to send to the coordinators of federations; StepFederation processes the replies
	PoolsDone    []PoolDone           // the results of StepPool that were pending
	Done         []Done               // the requests that are not pending any more, to return to their callers
	// Transfers are the members to which counters are to be sent. For each, the driver sends what Pull returns, in order
	// and on a connection of its own, until Pull returns false. A member with a running transfer may be listed again.
	Transfers []ring.ID
	// ProgressChanged reports whether Progress has changed. The driver reads Progress afterwards, so that it has the
	// latest one whichever of several Ready it performs last.
	ProgressChanged bool
	// FlushIn is the result of Node.FlushIn at the end of the call.
	FlushIn time.Duration
}

// pendingRequests holds the pending requests of one shard. The shard's mu guards it.
type pendingRequests struct {
	n    int
	seq  uint64 // of the newest one
	keys map[Key]*pendingKey
	// resumed is the pending request that is being decided, or nil. A field of shardOp would make every shardOp escape.
	resumed *pendingRequest
}

// pendingKey holds the pending requests for one key.
type pendingKey struct {
	ownership   *ownershipWait    // nil if no request waits for the ownership
	unconfirmed []*pendingRequest // those that wait for a replica or the journal, the oldest first
	coordinator []*pendingRequest // those that wait for the coordinator of a federation, the oldest first
	settles     []*pendingRequest // those that settle a claim and wait until another member knows, the oldest first
}

// ownershipWait is a key whose ownership this member requests from another one.
type ownershipWait struct {
	ringPos     uint64
	domain      uint64
	rule        limit.Rule // of the first request
	holder      ring.ID
	requestedAt int64 // 0 if not yet
	requests    []*pendingRequest
}

// pendingRequest is a request that is pending. It is in exactly one list of its key.
type pendingRequest struct {
	request Request
	hash    uint64
	since   int64
	order   uint64                // requests that expire together are resolved in this order
	result  Result                // the decision, if it is unconfirmed
	replica mark                  // what the successor has to confirm
	journal mark                  // what the journal has to cover
	part    part                  // of the limit, if it waits for a coordinator
	grant   *lending.PendingGrant // not nil: a holder waits for this grant, and no caller
	pool    *pendingPool          // not nil: a region waits for this grant, and no caller
}

// confirmed reports whether w, whose result is known, waits for nothing any more.
func (w *pendingRequest) confirmed() bool { return w.replica.upTo+w.journal.upTo == 0 }

// all returns the requests of all lists.
func (x *pendingKey) all() iter.Seq[*pendingRequest] {
	return func(yield func(*pendingRequest) bool) {
		lists := [...][]*pendingRequest{x.unconfirmed, x.coordinator, x.settles, nil}
		if x.ownership != nil {
			lists[3] = x.ownership.requests
		}
		for _, list := range lists {
			for _, w := range list {
				if !yield(w) {
					return
				}
			}
		}
	}
}

// key returns the requests for k, which it adds if there are none.
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

// takeCoordinator removes the requests for k that wait for a coordinator, and returns them.
func (p *pendingRequests) takeCoordinator(k Key) (ws []*pendingRequest) {
	if x := p.keys[k]; x != nil {
		ws, x.coordinator = x.coordinator, nil
		p.dropEmpty(k)
	}
	return ws
}

// dropEmpty removes k if no request for it is pending.
func (p *pendingRequests) dropEmpty(k Key) {
	if x := p.keys[k]; x != nil && x.ownership == nil && len(x.unconfirmed)+len(x.coordinator)+len(x.settles) == 0 {
		delete(p.keys, k)
	}
}

// ownershipKeys returns the keys whose ownership requests wait for, in ascending order.
func (p *pendingRequests) ownershipKeys() (keys []Key) {
	for k, x := range p.keys {
		if x.ownership != nil {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, Key.Compare)
	return keys
}

// remove removes w from its list.
func (p *pendingRequests) remove(w *pendingRequest) {
	k := w.request.Key
	x := p.keys[k]
	if x == nil {
		return
	}
	is := func(o *pendingRequest) bool { return o == w }
	x.unconfirmed = slices.DeleteFunc(x.unconfirmed, is)
	x.coordinator = slices.DeleteFunc(x.coordinator, is)
	x.settles = slices.DeleteFunc(x.settles, is)
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
	for w := range x.all() {
		if w.grant == nil && w.pool == nil && w.request.Waiter == to {
			return w
		}
	}
	return nil
}

// expired returns the requests that began to wait before then, in their order.
func (p *pendingRequests) expired(then int64) (old []*pendingRequest) {
	for _, x := range p.keys {
		for w := range x.all() {
			if w.since < then {
				old = append(old, w)
			}
		}
	}
	slices.SortFunc(old, func(a, b *pendingRequest) int { return cmp.Compare(a.order, b.order) })
	return old
}

// await makes op a pending request with the given result. The caller adds it to a list. If too many requests are
// pending, await returns nil, and the result is a refusal.
func (n *Node) await(s *shard, op *shardOp, res *Result) *pendingRequest {
	w := s.pending.resumed
	if w == nil {
		if n.pending.Add(1) > int64(n.options.MaxWaiting) {
			n.pending.Add(-1)
			s.counts.PendingRefused++
			*res = Result{Kind: Forward, Authority: Shed}
			return nil
		}
		s.pending.n++
		s.pending.seq++
		w = &pendingRequest{request: *op.Request, hash: op.hash, since: op.now, order: s.pending.seq}
	}
	w.result = *res
	*res = Result{Kind: Pending}
	n.dirty.Store(true)
	n.urgent.Store(true)
	return w
}

// awaitOwnership makes op wait for the ownership of its key, which is requested from holder.
func (n *Node) awaitOwnership(s *shard, op *shardOp, holder ring.ID, res *Result) {
	w := n.await(s, op, res)
	if w == nil {
		return
	}
	k := s.pending.key(op.Key)
	if k.ownership == nil {
		k.ownership = &ownershipWait{ringPos: op.RingPos, domain: op.Domain, rule: op.Request.Rule, holder: holder}
	}
	k.ownership.requests = append(k.ownership.requests, w)
}

// Cancel removes the pending request for k with this waiter. It returns false if the request was not pending: then its
// result has been returned in Ready, or will be.
func (n *Node) Cancel(k Key, to Waiter) bool {
	s, _ := n.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.pending.find(k, to)
	if w == nil {
		return false
	}
	s.pending.remove(w)
	if x := s.escrows.keys[k]; x != nil && w.request.Federation != nil {
		x.RemoveTenantWaiting(w.request.Tenant, w.request.Hits)
	}
	n.endPending(s)
	return true
}

// endPending counts a request that is not pending any more.
func (n *Node) endPending(s *shard) {
	s.pending.n--
	n.pending.Add(-1)
}

// resolve delivers the result of w, which is in no list any more.
func (n *Node) resolve(s *shard, w *pendingRequest, res Result, fx *Ready) {
	n.endPending(s)
	switch {
	case w.pool != nil:
		fx.PoolsDone = append(fx.PoolsDone, PoolDone{w.pool.waiter, w.pool.grant, res.Kind == Decided})
	case w.grant == nil:
		fx.Done = append(fx.Done, Done{w.request.Waiter, res})
	case res.Kind == Decided:
		w.grant.Send(&fx.Outbox)
	}
}

// decidePending decides the requests that wait for the ownership of k, which this member has now.
func (n *Node) decidePending(s *shard, now int64, k Key, fx *Ready) {
	for _, w := range s.pending.takeOwnership(k) {
		res := Result{Kind: Forward}
		extent, num, den := n.authority(now, s.view, w.request.Partition)
		if extent == handoff.ExtentFull {
			den = 0
		}
		if extent != handoff.ExtentNone {
			op := shardOp{Request: &w.request, now: now, hash: w.hash, part: part{num, den}}
			s.pending.resumed = w
			n.decideOwned(s, &op, s.counters.Owned.Find(w.hash, k), &res)
			s.pending.resumed = nil
		}
		if res.Kind != Pending {
			n.resolve(s, w, res, fx)
		}
	}
}

// forwardAll resolves the requests that wait for the ownership of k: they are to be forwarded to member.
func (n *Node) forwardAll(s *shard, k Key, member ring.ID, fx *Ready) {
	for _, w := range s.pending.takeOwnership(k) {
		n.resolve(s, w, Result{Kind: Forward, Member: member}, fx)
	}
}

// reviewPending applies a new view to all keys whose ownership requests wait for.
func (n *Node) reviewPending(s *shard, now int64, fx *Ready) {
	for _, k := range s.pending.ownershipKeys() {
		t := s.pending.ownership(k)
		_, hash := n.shard(k)
		e := s.counters.Owned.Find(hash, k)
		switch owner := s.view.Ownership(t.ringPos, e.OwnedEpoch(t.ringPos)); {
		case owner.State == handoff.OwnedHere:
			n.decidePending(s, now, k, fx)
		case owner.State == handoff.OwnedElsewhere:
			n.forwardAll(s, k, owner.Member, fx)
		case owner.Member != t.holder:
			t.holder, t.requestedAt = owner.Member, 0
		}
	}
}

// expirePending resolves the requests that have been pending for longer than maxPending.
func (n *Node) expirePending(s *shard, now int64, fx *Ready) {
	for _, w := range s.pending.expired(now - maxPending) {
		s.pending.remove(w)
		n.resolve(s, w, Result{Kind: Forward}, fx)
	}
}
