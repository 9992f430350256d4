package owner

import (
	"math"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/ring"
)

// heldLease is the lease that this member holds, or requests, of one key that another member owns.
type heldLease struct {
	lease.Holding
	key       Key
	ringPos   uint64
	domain    uint64
	rule      limit.Rule
	mechanism policy.Mechanism
	grantor   ring.ID // the member that was last asked
	queued    bool    // the shard's leaseRequests contain the key
	named     bool    // the grantor has the key's name
	drift     drift   // of Approximate
}

// decideFromLease decides op, whose key another member owns, from this member's lease. It returns false if the owner
// has to decide. With existing, it requests no new lease.
func (n *Node) decideFromLease(s *shard, op *shardOp, existing bool, res *Result) bool {
	req, held := op.Request, s.held[op.Key]
	if req.Op == Refund && held != nil {
		held.ReceiveNotice(s.clock(op.now), &lease.Notice{Kind: lease.Lift, Window: math.MaxInt64})
	}
	if req.Op != Take || req.Hits == 0 || held == nil && existing {
		return false
	}
	now := s.clock(op.now)
	op.now = now
	if held == nil {
		if held = n.maybeAcquire(s, now, req); held == nil {
			return false
		}
	}
	held.update(req)
	if held.mechanism == policy.Approximate {
		return n.approximate(s, held, op, res)
	}
	d, verdict := held.Decide(now, req.Rule, req.Hits)
	switch urgent := verdict == lease.Unknown; {
	case held.queued && urgent:
		n.requestFlush(true)
	case !held.queued && held.Due(now):
		n.queueLeaseRequest(s, held, urgent || held.Urgent(now))
	}
	switch verdict {
	case lease.Admitted:
		res.Authority = Full
		s.counts.Lease.LocalHits += req.Hits
	case lease.Refused:
		res.Authority = Cached
		s.counts.Lease.LocalDenied++
	default:
		return false
	}
	res.Decision, res.Kind, res.Path, res.Hot = d, Decided, Leased, true
	s.counts.Decided[res.Authority]++
	return true
}

// maybeAcquire adds a held lease for req's key if there is a reason to request one.
func (n *Node) maybeAcquire(s *shard, now int64, req *Request) *heldLease {
	switch mode := n.routeMode(req.RingPos); {
	case req.Mechanism == policy.Approximate:
	case req.Rule.Algorithm == limit.SlidingLog || mode == hotkey.Never && req.Mechanism != policy.ByLease:
		return nil
	case req.Mechanism == policy.ByLease, mode != hotkey.Auto:
	case !n.forwardsMany(s, now, req.Key):
		return nil
	}
	return n.addLease(s, req)
}

// addLease adds a held lease for req's key. It returns nil if there are too many.
func (n *Node) addLease(s *shard, req *Request) *heldLease {
	if n.held.Add(1) > int64(n.options.MaxLeases) {
		n.held.Add(-1)
		s.counts.Lease.NoRoom++
		return nil
	}
	if s.held == nil {
		s.held = map[Key]*heldLease{}
	}
	held := &heldLease{key: req.Key}
	held.Salt = counter.Mix(req.Key[0] ^ n.options.BootID)
	held.update(req)
	s.held[req.Key] = held
	return held
}

// update sets what req's rule sets for leases.
func (held *heldLease) update(req *Request) {
	held.ringPos, held.domain, held.rule, held.mechanism = req.RingPos, req.Domain, req.Rule, req.Mechanism
	if req.LeaseTerms != nil {
		held.Terms = *req.LeaseTerms
	}
	if held.mechanism == policy.ByLease {
		held.MarkHot()
	}
}

// queueLeaseRequest queues a request for the lease for the next Flush, which urgent requires at once.
func (n *Node) queueLeaseRequest(s *shard, held *heldLease, urgent bool) {
	if held.queued {
		return
	}
	held.queued = true
	s.leaseRequests = append(s.leaseRequests, held.key)
	n.requestFlush(urgent)
}

// requestFlush makes the next Flush send messages about leases; urgent requires it at once.
func (n *Node) requestFlush(urgent bool) {
	n.leaseTraffic.Store(true)
	n.dirty.Store(true)
	if urgent {
		n.urgent.Store(true)
	}
}

// observeHot requests a lease of req's key, which its owner reports as hot. If the owner has refused req because
// nothing is left, this member refuses for a moment; hits that become free meanwhile are not lost.
func (n *Node) observeHot(s *shard, now int64, req *Request, res *Result) {
	if req.Op != Take || req.Rule.Algorithm == limit.SlidingLog || req.Mechanism == policy.Approximate {
		return
	}
	held := s.held[req.Key]
	if held == nil {
		if held = n.addLease(s, req); held == nil {
			return
		}
	}
	held.update(req)
	held.MarkHot()
	depth := req.Rule.Depth()
	if res.Over && res.Authority == Full && res.Before >= uint64(depth) && now >= held.DeniedUntil() {
		held.ReceiveNotice(now, &lease.Notice{Kind: lease.Deny, Window: math.MaxInt64, Limit: depth, Left: leastDeny})
	}
}

// sendLeaseRequests sends the queued requests for leases.
func (n *Node) sendLeaseRequests(s *shard, now int64, fx *Ready) {
	at := s.clock(now)
	for _, key := range s.leaseRequests {
		held := s.held[key]
		if held == nil {
			continue
		}
		held.queued = false
		_, hash := n.shard(key)
		owner := s.view.Ownership(held.ringPos, s.counters.Owned.Find(hash, key).OwnedEpoch(held.ringPos))
		if p := n.serial.machine.Peer(owner.Member); owner.State != handoff.OwnedElsewhere || p == nil || p.NoHandoff {
			continue
		}
		held.grantor = owner.Member
		r := n.leaseRequest(s, held, at)
		m := leaseTo(&fx.Leases, held.grantor, lease.Ask)
		m.Requests = append(m.Requests, r)
	}
	s.leaseRequests = s.leaseRequests[:0]
}

// leaseRequest returns the request for a lease, or the report of an approximate rule.
func (n *Node) leaseRequest(s *shard, held *heldLease, now int64) lease.GrantRequest {
	var r lease.GrantRequest
	if held.mechanism == policy.Approximate {
		r = n.buildReport(s, held, now)
	} else {
		r = held.Request(now)
	}
	r.Key, r.RingPos, r.Domain, r.Always = held.key, held.ringPos, held.domain, held.mechanism == policy.ByLease
	if !held.named {
		r.Name = s.names[held.key].wire()
	}
	return r
}

// acceptGrant processes the reply to a request for a lease.
func (n *Node) acceptGrant(now int64, from ring.ID, g *lease.Grant) {
	s, _ := n.shard(g.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.held[g.Key]
	if held == nil || held.grantor != from {
		return
	}
	now = s.clock(now)
	if held.mechanism == policy.Approximate {
		n.acceptReportReply(s, held, now, g)
		return
	}
	before := held.Left(now)
	if !held.Accept(now, g) {
		return
	}
	if held.named = g.Flags&lease.Named != 0; held.mechanism == policy.ByLease {
		held.MarkHot()
	}
	if got := saturatingSub(held.Left(now), before); got > 0 {
		s.counts.Lease.Granted++
		s.counts.Lease.GrantedHits += got
	} else {
		s.counts.Lease.Empty++
	}
}

// acceptNotice processes a notice of a grantor.
func (n *Node) acceptNotice(now int64, from ring.ID, notice *lease.Notice) {
	s, hash := n.shard(notice.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.held[notice.Key]
	if held == nil || held.grantor != from {
		return
	}
	now = s.clock(now)
	if held.ReceiveNotice(now, notice); notice.Kind == lease.Lift {
		s.counters.Deny.Remove(hash, notice.Key)
	}
	if held.Due(now) {
		n.queueLeaseRequest(s, held, false)
	}
}

// tickHeld queues the requests that are due at time now, and drops unused leases.
func (n *Node) tickHeld(s *shard, now int64) {
	for _, key := range counter.SortedKeys(s.held) {
		held := s.held[key]
		switch {
		case held.mechanism == policy.Approximate:
			if n.reportDue(s, held, now) {
				n.queueLeaseRequest(s, held, false)
			} else if held.drift.idle(now) {
				n.dropLease(s, held)
			}
		case held.Idle(now):
			n.dropLease(s, held)
		case held.Due(now):
			n.queueLeaseRequest(s, held, false)
		}
	}
}

// dropLease removes held.
func (n *Node) dropLease(s *shard, held *heldLease) {
	s.counts.heldStats(held.TakeStats())
	delete(s.held, held.key)
	n.held.Add(-1)
}

// forgetLeases drops what depends on earlier readings of the clock, which has stepped.
func (s *shard) forgetLeases(now int64) {
	clear(s.lent)
	for _, held := range s.held {
		held.Drop(now)
		held.drift.reporting, held.drift.sentAt, held.drift.syncedAt, held.drift.askedAt = false, now, now, now
	}
}

// HeldKey describes a lease of a key that another member owns.
type HeldKey struct {
	Key Key
	KeyName
	Member     ring.ID // the grantor
	Window     int64   // of the leased hits
	Left, Have uint64
	Demand     float64 // hits per second
	Denied     bool
	Expires    int64 // Unix nanoseconds
	Mechanism  policy.Mechanism
}

// Held returns the leases of this member, in the order of their keys within a shard.
func (n *Node) Held(now int64) []HeldKey {
	var all []HeldKey
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		for _, key := range counter.SortedKeys(s.held) {
			held := s.held[key]
			x := HeldKey{
				Key: key, Member: held.grantor, Window: held.Window(), Left: held.Left(now), Have: held.Have(),
				Demand: held.Demand(now), Denied: now < held.DeniedUntil(), Expires: held.Expires(), Mechanism: held.mechanism,
			}
			if m := s.names[key]; m != nil {
				x.KeyName = m.KeyName
			}
			all = append(all, x)
		}
		s.mu.Unlock()
	}
	return all
}
