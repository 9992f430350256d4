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
func (n *Node) holdLocked(s *shard, now int64, q *Request, live bool, a *Result) bool {
	x := s.held[q.Key]
	if q.Op == Refund && x != nil {
		x.ReceiveNotice(s.clock(now), &lease.Notice{Kind: lease.Lift, Window: math.MaxInt64})
	}
	if q.Op != Take || q.Hits == 0 || x == nil && live {
		return false
	}
	now = s.clock(now)
	if x == nil {
		if x = n.maybeAcquire(s, now, q); x == nil {
			return false
		}
	}
	x.update(q)
	if x.by == policy.Approximate {
		return n.approximate(s, x, now, q, a)
	}
	d, verdict := x.Decide(now, q.Rule, q.Hits)
	switch urgent := verdict == lease.Unknown; {
	case x.queued && urgent:
		n.requestFlush(true)
	case !x.queued && x.Due(now):
		n.queueLeaseRequest(s, x, urgent || x.Urgent(now))
	}
	switch verdict {
	case lease.Admitted:
		a.Authority = Full
		s.counts.lease.LocalHits += q.Hits
	case lease.Refused:
		a.Authority = Cached
		s.counts.lease.LocalDenied++
	default:
		return false
	}
	a.Decision, a.Kind, a.Path, a.Hot = d, Decided, Leased, true
	s.counts.decided[a.Authority]++
	return true
}

// maybeAcquire makes a holding for q's key if there is reason for one.
func (n *Node) maybeAcquire(s *shard, now int64, q *Request) *heldLease {
	switch mode := n.routeMode(q.RingPos); {
	case q.Mechanism == policy.Approximate:
	case q.Rule.Algorithm == limit.SlidingLog || mode == hotkey.Never && q.Mechanism != policy.ByLease:
		return nil
	case q.Mechanism == policy.ByLease, mode != hotkey.Auto:
	case !n.forwardsMany(s, now, q.Key):
		return nil
	}
	return n.addLease(s, q)
}

// addLease makes a holding for q's key; nil if there are too many.
func (n *Node) addLease(s *shard, q *Request) *heldLease {
	if n.held.Add(1) > int64(n.options.MaxLeases) {
		n.held.Add(-1)
		s.counts.lease.NoRoom++
		return nil
	}
	if s.held == nil {
		s.held = map[Key]*heldLease{}
	}
	x := &heldLease{key: q.Key}
	x.Salt = counter.Mix(q.Key[0] ^ n.options.BootID)
	x.update(q)
	s.held[q.Key] = x
	return x
}

// update takes over what q's rule says.
func (x *heldLease) update(q *Request) {
	x.owner, x.domain, x.rule, x.by = q.RingPos, q.Domain, q.Rule, q.Mechanism
	if q.LeaseConfig != nil {
		x.Terms = *q.LeaseConfig
	}
	if x.by == policy.ByLease {
		x.MarkHot()
	}
}

// queueLeaseRequest lets x be asked for with the next Flush; urgent, at once.
func (n *Node) queueLeaseRequest(s *shard, x *heldLease, urgent bool) {
	if x.queued {
		return
	}
	x.queued = true
	s.leaseRequests = append(s.leaseRequests, x.key)
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
func (n *Node) observeHot(s *shard, now int64, q *Request, a *Result) {
	if q.Op != Take || q.Rule.Algorithm == limit.SlidingLog || q.Mechanism == policy.Approximate {
		return
	}
	x := s.held[q.Key]
	if x == nil {
		if x = n.addLease(s, q); x == nil {
			return
		}
	}
	x.update(q)
	x.MarkHot()
	if depth := q.Rule.Depth(); a.Over && a.Authority == Full && a.Before >= uint64(depth) && now >= x.DeniedUntil() {
		x.ReceiveNotice(now, &lease.Notice{Kind: lease.Deny, Window: math.MaxInt64, Limit: depth, Left: leastDeny})
	}
}

// sendLeaseRequests sends what the shard's holdings have to say.
func (n *Node) sendLeaseRequests(s *shard, now int64, fx *Effects) {
	at := s.clock(now)
	for _, k := range s.leaseRequests {
		x := s.held[k]
		if x == nil {
			continue
		}
		x.queued = false
		_, h := n.shard(k)
		hold := s.view.Ownership(x.owner, s.counters.Owned.Find(h, k).OwnedEpoch(x.owner))
		if p, live := n.serial.peers[hold.Member]; hold.State != handoff.OwnedElsewhere || !live || p.NoHandoff {
			continue
		}
		x.to = hold.Member
		r := n.leaseRequest(s, x, at)
		m := leaseTo(&fx.Leases, x.to, lease.Ask)
		m.Requests = append(m.Requests, r)
	}
	s.leaseRequests = s.leaseRequests[:0]
}

func (n *Node) leaseRequest(s *shard, x *heldLease, now int64) lease.GrantRequest {
	var r lease.GrantRequest
	if x.by == policy.Approximate {
		r = n.buildReport(s, x, now)
	} else {
		r = x.Request(now)
	}
	r.Key, r.Owner, r.Domain, r.Always = x.key, x.owner, x.domain, x.by == policy.ByLease
	if !x.named {
		r.Name = s.names[x.key].wire()
	}
	return r
}

// acceptGrant takes in what a grantor has answered.
func (n *Node) acceptGrant(now int64, from ring.ID, g *lease.Grant) {
	s, _ := n.shard(g.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.held[g.Key]
	if x == nil || x.to != from {
		return
	}
	now = s.clock(now)
	if x.by == policy.Approximate {
		n.acceptReportReply(s, x, now, g)
		return
	}
	had := x.Left(now)
	if !x.Accept(now, g) {
		return
	}
	if x.named = g.Flags&lease.Named != 0; x.by == policy.ByLease {
		x.MarkHot()
	}
	if got := saturatingSub(x.Left(now), had); got > 0 {
		s.counts.lease.Granted++
		s.counts.lease.GrantedHits += got
	} else {
		s.counts.lease.Empty++
	}
}

// acceptNotice takes in what a grantor tells.
func (n *Node) acceptNotice(now int64, from ring.ID, notice *lease.Notice) {
	s, h := n.shard(notice.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.held[notice.Key]
	if x == nil || x.to != from {
		return
	}
	now = s.clock(now)
	if x.ReceiveNotice(now, notice); notice.Kind == lease.Lift {
		s.counters.Deny.Remove(h, notice.Key)
	}
	if x.Due(now) {
		n.queueLeaseRequest(s, x, false)
	}
}

// tickHeld says what time brings, and forgets what nobody asks for.
func (n *Node) tickHeld(s *shard, now int64) {
	for _, k := range sortedKeys(s.held) {
		x := s.held[k]
		switch {
		case x.by == policy.Approximate:
			if n.reportDue(s, x, now) {
				n.queueLeaseRequest(s, x, false)
			} else if x.drift.idle(now) {
				n.dropLease(s, x)
			}
		case x.Idle(now):
			n.dropLease(s, x)
		case x.Due(now):
			n.queueLeaseRequest(s, x, false)
		}
	}
}

// dropLease forgets x.
func (n *Node) dropLease(s *shard, x *heldLease) {
	s.counts.heldStats(x.TakeStats())
	delete(s.held, x.key)
	n.held.Add(-1)
}

// forgetLeases gives up what times do not mean anything for any more, as the clock has stepped.
func (s *shard) forgetLeases(now int64) {
	clear(s.lent)
	for _, x := range s.held {
		x.Drop(now)
		x.drift.reporting, x.drift.sentAt, x.drift.syncedAt, x.drift.askedAt = false, now, now, now
	}
}

// sortedKeys are the keys of m in an order that is the same for equal histories.
func sortedKeys[T any](m map[Key]T) []Key {
	if len(m) == 0 {
		return nil
	}
	ks := make([]Key, 0, len(m))
	for k := range m {
		ks = append(ks, k)
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
		for _, k := range sortedKeys(s.held) {
			x := s.held[k]
			y := HeldKey{Key: k, Member: x.to, Window: x.Window(), Left: x.Left(now), Have: x.Have(), Demand: x.Demand(now), Denied: now < x.DeniedUntil(), Expires: x.Expires(), Mechanism: x.by}
			if m := s.names[k]; m != nil {
				y.Domain, y.Name, y.Owner = m.domain, m.name, m.owner
			}
			all = append(all, y)
		}
		s.mu.Unlock()
	}
	return all
}
