package owner

import (
	"cmp"
	"math"
	"slices"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/ring"
)

// heldLease is what this member holds of one key that another one owns.
type heldLease struct {
	lease.Holding
	key    Key
	owner  uint64 // ring position
	domain uint64
	rule   limit.Rule
	by     policy.Mechanism
	to     ring.ID // who was asked last
	queued bool    // it is among the shard's due
	named  bool    // the grantor knows the key's name
	drift  drift   // of Approximate
}

// holdLocked answers q, which another member owns, from what this one holds; false when the owner is to be asked. With
// live only a lease that is there already counts.
func (n *Node) holdLocked(s *shard, now int64, req *Request, live bool, res *Result) bool {
	held := s.held[req.Key]
	if req.Op == Refund && held != nil {
		held.ReceiveNotice(s.clock(now), &lease.Notice{Kind: lease.Lift, Window: math.MaxInt64})
	}
	if req.Op != Take || req.Hits == 0 || held == nil && live {
		return false
	}
	now = s.clock(now)
	if held == nil {
		if held = n.maybeAcquire(s, now, req); held == nil {
			return false
		}
	}
	held.update(req)
	if held.by == policy.Approximate {
		return n.approximate(s, held, now, req, res)
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
		s.counts.lease.LocalHits += req.Hits
	case lease.Refused:
		res.Authority = Cached
		s.counts.lease.LocalDenied++
	default:
		return false
	}
	res.Decision, res.Kind, res.Path, res.Hot = d, Decided, Leased, true
	s.counts.decided[res.Authority]++
	return true
}

// maybeAcquire makes a holding for q's key if there is reason for one.
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

// addLease makes a holding for q's key; nil if there are too many.
func (n *Node) addLease(s *shard, req *Request) *heldLease {
	if n.held.Add(1) > int64(n.options.MaxLeases) {
		n.held.Add(-1)
		s.counts.lease.NoRoom++
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

// update takes over what q's rule says.
func (held *heldLease) update(req *Request) {
	held.owner, held.domain, held.rule, held.by = req.RingPos, req.Domain, req.Rule, req.Mechanism
	if req.LeaseConfig != nil {
		held.Terms = *req.LeaseConfig
	}
	if held.by == policy.ByLease {
		held.MarkHot()
	}
}

// queueLeaseRequest lets x be asked for with the next Flush; urgent, at once.
func (n *Node) queueLeaseRequest(s *shard, held *heldLease, urgent bool) {
	if held.queued {
		return
	}
	held.queued = true
	s.leaseRequests = append(s.leaseRequests, held.key)
	n.requestFlush(urgent)
}

// requestFlush lets the next Flush send what is due or told; urgent, at once.
func (n *Node) requestFlush(urgent bool) {
	n.leaseTraffic.Store(true)
	n.dirty.Store(true)
	if urgent {
		n.urgent.Store(true)
	}
}

// observeHot takes in that the owner calls q's key hot. When nothing fits, as a says, this member refuses for a moment: of
// what frees up meanwhile, nothing is lost.
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
	if depth := req.Rule.Depth(); res.Over && res.Authority == Full && res.Before >= uint64(depth) && now >= held.DeniedUntil() {
		held.ReceiveNotice(now, &lease.Notice{Kind: lease.Deny, Window: math.MaxInt64, Limit: depth, Left: leastDeny})
	}
}

// sendLeaseRequests sends what the shard's holdings have to say.
func (n *Node) sendLeaseRequests(s *shard, now int64, fx *Effects) {
	at := s.clock(now)
	for _, key := range s.leaseRequests {
		held := s.held[key]
		if held == nil {
			continue
		}
		held.queued = false
		_, hash := n.shard(key)
		hold := s.view.Ownership(held.owner, s.counters.Owned.Find(hash, key).OwnedEpoch(held.owner))
		if p, live := n.serial.peers[hold.Member]; hold.State != handoff.OwnedElsewhere || !live || p.NoHandoff {
			continue
		}
		held.to = hold.Member
		r := n.leaseRequest(s, held, at)
		m := leaseTo(&fx.Leases, held.to, lease.Ask)
		m.Requests = append(m.Requests, r)
	}
	s.leaseRequests = s.leaseRequests[:0]
}

func (n *Node) leaseRequest(s *shard, held *heldLease, now int64) lease.GrantRequest {
	var r lease.GrantRequest
	if held.by == policy.Approximate {
		r = n.buildReport(s, held, now)
	} else {
		r = held.Request(now)
	}
	r.Key, r.RingPos, r.Domain, r.Always = held.key, held.owner, held.domain, held.by == policy.ByLease
	if !held.named {
		r.Name = s.names[held.key].wire()
	}
	return r
}

// acceptGrant takes in what a grantor has answered.
func (n *Node) acceptGrant(now int64, from ring.ID, g *lease.Grant) {
	s, _ := n.shard(g.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.held[g.Key]
	if held == nil || held.to != from {
		return
	}
	now = s.clock(now)
	if held.by == policy.Approximate {
		n.acceptReportReply(s, held, now, g)
		return
	}
	had := held.Left(now)
	if !held.Accept(now, g) {
		return
	}
	if held.named = g.Flags&lease.Named != 0; held.by == policy.ByLease {
		held.MarkHot()
	}
	if got := saturatingSub(held.Left(now), had); got > 0 {
		s.counts.lease.Granted++
		s.counts.lease.GrantedHits += got
	} else {
		s.counts.lease.Empty++
	}
}

// acceptNotice takes in what a grantor tells.
func (n *Node) acceptNotice(now int64, from ring.ID, notice *lease.Notice) {
	s, hash := n.shard(notice.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.held[notice.Key]
	if held == nil || held.to != from {
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

// tickHeld says what time brings, and forgets what nobody asks for.
func (n *Node) tickHeld(s *shard, now int64) {
	for _, key := range sortedKeys(s.held) {
		held := s.held[key]
		switch {
		case held.by == policy.Approximate:
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

// dropLease forgets x.
func (n *Node) dropLease(s *shard, held *heldLease) {
	s.counts.heldStats(held.TakeStats())
	delete(s.held, held.key)
	n.held.Add(-1)
}

// forgetLeases gives up what times do not mean anything for any more, as the clock has stepped.
func (s *shard) forgetLeases(now int64) {
	clear(s.lent)
	for _, held := range s.held {
		held.Drop(now)
		held.drift.reporting, held.drift.sentAt, held.drift.syncedAt, held.drift.askedAt = false, now, now, now
	}
}

// sortedKeys are the keys of m in an order that is the same for equal histories.
func sortedKeys[T any](m map[Key]T) []Key {
	if len(m) == 0 {
		return nil
	}
	ks := make([]Key, 0, len(m))
	for key := range m {
		ks = append(ks, key)
	}
	slices.SortFunc(ks, func(a, b Key) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
	return ks
}

// HeldKey is a key of another member of which this one has a lease.
type HeldKey struct {
	Key                 Key
	Domain, Name, Owner string
	Member              ring.ID // the grantor
	Window              int64   // that they are of
	Left, Have          uint64
	Demand              float64 // hits a second
	Denied              bool
	Expires             int64 // Unix nanoseconds
	Mechanism           policy.Mechanism
}

// Held are the keys of which this member has leases, in the order of their digests within a shard.
func (n *Node) Held(now int64) []HeldKey {
	var all []HeldKey
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		for _, key := range sortedKeys(s.held) {
			held := s.held[key]
			y := HeldKey{Key: key, Member: held.to, Window: held.Window(), Left: held.Left(now), Have: held.Have(), Demand: held.Demand(now), Denied: now < held.DeniedUntil(), Expires: held.Expires(), Mechanism: held.by}
			if m := s.names[key]; m != nil {
				y.Domain, y.Name, y.Owner = m.domain, m.name, m.owner
			}
			all = append(all, y)
		}
		s.mu.Unlock()
	}
	return all
}
