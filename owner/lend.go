package owner

import (
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/ring"
)

const (
	maxItems         = 512                     // of one message about leases
	lentKeyLife      = int64(30 * time.Second) // after the last request
	maxLentKeys      = 64                      // of one shard
	unreachableAfter = int64(3 * time.Second)  // a holder with hits that sends nothing for so long is unreachable
	// leastDeny is the shortest refusal for limits that free up gradually; meanwhile more than one hit becomes free.
	leastDeny = 20 * time.Millisecond
)

// lentKey is a key of which this member, the owner, has lent parts.
type lentKey struct {
	lease.Book
	key         Key
	ringPos     uint64
	rule        limit.Rule
	terms       lease.Terms
	always      bool  // the rule requires leases
	requestedAt int64 // when the last request arrived

	// What the holders know of the counter. They are notified when it changes.
	window int64
	level  limitLevel
	queued bool // the shard's pendingNotices contain the key
	lift   bool // the limit is not exhausted any more
}

// pendingGrant is a grant that waits until the successor has confirmed its charge.
type pendingGrant struct {
	to    ring.ID
	grant lease.Grant
}

// StepLease processes a message about leases from the given boot of member from. It refuses messages from members that
// are not live, and from earlier boots.
func (n *Node) StepLease(now int64, from ring.ID, bootID uint64, m *lease.Batch) (fx Ready) {
	n.serial.Lock()
	defer n.serial.Unlock()
	defer n.finish(&fx)
	p := n.serial.machine.Peer(from)
	if p == nil || p.BootID != bootID || len(m.Requests)+len(m.Grants)+len(m.Notices) > maxItems {
		n.serial.counts.refused++
		return fx
	}
	switch m.Kind {
	case lease.Ask:
		for i := range m.Requests {
			n.handleLeaseRequest(now, &leaseOp{GrantRequest: &m.Requests[i], from: from, bootID: bootID}, &fx)
		}
	case lease.Lend:
		for i := range m.Grants {
			n.acceptGrant(now, from, &m.Grants[i])
		}
	case lease.Notify:
		for i := range m.Notices {
			n.acceptNotice(now, from, &m.Notices[i])
		}
	}
	return fx
}

// leaseTo returns a message of that kind to a member with room for an item. It adds one to out if there is none.
func leaseTo(out *[]lease.Delivery, to ring.ID, k lease.BatchKind) *lease.Batch {
	for i := range *out {
		m := &(*out)[i].Batch
		if (*out)[i].To == to && m.Kind == k && len(m.Requests)+len(m.Grants)+len(m.Notices) < maxItems {
			return m
		}
	}
	*out = append(*out, lease.Delivery{To: to, Batch: lease.Batch{Kind: k}})
	return &(*out)[len(*out)-1].Batch
}

// leaseOp is one request for a lease while a shard handles it.
type leaseOp struct {
	*lease.GrantRequest
	from   ring.ID
	bootID uint64
	req    Request
	op     shardOp
	lent   *lentKey
	e      *counter.Owned // the key's counter, or nil
	used   uint64         // hits that count against the limit
	window int64
	res    Result // of the charge
	size   uint64 // hits that are lent
}

// handleLeaseRequest handles a request for a part of a limit, if this member owns the key.
func (n *Node) handleLeaseRequest(now int64, l *leaseOp, fx *Ready) {
	s, hash := n.shard(l.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	l.e = s.counters.Owned.Find(hash, l.Key)
	extent, _, _ := n.authority(now, s.view)
	if extent != handoff.ExtentFull || l.Rule.Validate() != nil ||
		s.view.Ownership(l.RingPos, l.e.OwnedEpoch(l.RingPos)).State != handoff.OwnedHere {
		s.counts.Lease.Refused++
		return
	}
	l.req = Request{Key: l.Key, RingPos: l.RingPos, Domain: l.Domain, Rule: l.Rule, Op: DryRun, Strict: true}
	l.op = shardOp{Request: &l.req, now: s.clock(now), hash: hash, table: counter.TableOwned, rule: l.Rule}
	if l.Terms.Slack > 0 {
		n.reconcile(s, l, fx)
		return
	}
	if l.lent = s.lentKeyFor(l); l.lent == nil {
		s.counts.Lease.Refused++
		return
	}
	if n.creditReturned(s, l) {
		n.grantLease(s, l, fx)
	}
}

// lentKeyFor returns the lentKey of l's key, which it adds if there is none. It returns nil if there are too many.
func (s *shard) lentKeyFor(l *leaseOp) *lentKey {
	lent := s.lent[l.Key]
	if lent == nil {
		if len(s.lent) >= maxLentKeys {
			return nil
		}
		if s.lent == nil {
			s.lent = map[Key]*lentKey{}
		}
		lent = &lentKey{key: l.Key, ringPos: l.RingPos, rule: l.Rule}
		s.lent[l.Key] = lent
	}
	lent.requestedAt, lent.always, lent.terms = l.op.now, l.Always, l.Terms
	s.learnName(l.Key, l.Name, &l.Terms)
	return lent
}

// creditReturned credits the hits that the holder returns, and sets l.used to the count after that. It returns false if
// the request is not valid.
func (n *Node) creditReturned(s *shard, l *leaseOp) bool {
	op := &l.op
	var res Result
	n.charge(s, op, l.e, &res)
	l.e = s.counters.Owned.Find(op.hash, op.Key)
	if l.window = s.windowOf(l.e, op.rule, op.now); op.rule.Algorithm.Bucket() {
		l.window = op.now // of a slice, which never returns
	}
	credit, ok := l.lent.Receive(op.now, lease.Holder{ID: l.from, BootID: l.bootID}, l.GrantRequest, l.window)
	if !ok {
		s.counts.Lease.Refused++
		return false
	}
	if credit > 0 && l.e != nil && !op.rule.Algorithm.Bucket() {
		n.credit(s, op, l.e, unspent{l.window, credit})
		n.charge(s, op, l.e, &res)
	}
	if !n.options.NoHot {
		if s.hot.rates.Report(op.now, hotkey.Digest(op.Key), l.bootID, float64(l.Demand)/1000); l.e != nil {
			s.track(l.e)
		}
	}
	l.used = res.Before
	return true
}

// windowOf returns the window in which a charge at now counts.
func (s *shard) windowOf(e *counter.Owned, r limit.Rule, now int64) int64 {
	w := r.Index(now)
	if e != nil && counter.Windowed(r) {
		if x := s.counters.Newest(e, r); x > w && r.End(x-1) <= now+int64(limit.ClockTolerance) {
			return x
		}
	}
	return w
}

// unspent is hits of a window that were lent and not spent.
type unspent struct {
	window int64
	hits   uint64
}

// credit refunds hits to e that were lent and not spent (C4).
func (n *Node) credit(s *shard, op *shardOp, e *counter.Owned, u unspent) {
	st := &s.state
	s.counters.Load(e, op.rule, st)
	charged := uint64(0)
	for _, f := range st.Slots {
		if f.At == u.window {
			charged = saturatingSub(limit.SaturatingAdd(charged, f.Charged), f.Refunded)
		}
	}
	op.rule.Refund(st, op.now, s.bootID, min(u.hits, charged))
	op.rule.Trim(st, op.now)
	if !s.counters.Store(e, op.rule, st) {
		s.counts.RefundsDropped++
		return
	}
	s.counts.Lease.Credited += u.hits
	if s.view.copies {
		n.trackUnreplicated(s, e, op.Request, 0)
	}
}

// grantLease lends as much as it may, and replies to the request.
func (n *Node) grantLease(s *shard, l *leaseOp, fx *Ready) {
	op := &l.op
	r, at := op.rule, op.now
	depth, used := r.Depth(), l.used
	if r.Algorithm.Bucket() {
		used = max(used, refill(r))
	}
	g := lease.Grant{
		Key: op.Key, Seq: l.Seq, Window: l.window, Total: l.Have, Limit: depth, Left: lifetime(r, l.window, at),
	}
	if l.Window != l.window {
		g.Total = 0
	}
	size, last := uint64(0), false
	if (l.lent.always || n.isHot(s, op.Key, op.RingPos)) && n.routeMode(op.RingPos) != hotkey.Never {
		g.Flags |= lease.Hot
		size, last = l.lent.Size(at, l.from, l.GrantRequest, lease.Usage{Used: used, Depth: depth})
	}
	if s.names[op.Key] != nil {
		g.Flags |= lease.Named
	}
	if last {
		g.Flags |= lease.Last
	}
	if n.chargeLease(s, l, size); l.size > 0 {
		g.Total = l.lent.Grant(at, l.from, l.window, l.size)
	}
	if g.Used = limit.SaturatingAdd(used, l.size); g.Used >= uint64(depth) && l.size == 0 {
		g.Flags |= lease.Denied
		g.Left = s.denialTime(l.e, r, at)
	}
	if l.e != nil {
		n.updateLevel(s, l.lent, r, usage{l.window, g.Used, false})
	}
	s.audit(l, l.size, g.Used, fx)
	n.sendGrant(s, l, pendingGrant{l.from, g}, fx)
}

// audit adds an Audit if l's rule requires it.
func (s *shard) audit(l *leaseOp, hits, count uint64, fx *Ready) {
	if !l.Terms.Audit {
		return
	}
	x := Audit{Key: l.Key, Member: l.from, IsReport: l.Terms.Slack > 0, Hits: hits, Used: count, Limit: l.Rule.Depth()}
	if m := s.names[l.Key]; m != nil {
		x.Name = m.Name
	}
	fx.Audits = append(fx.Audits, x)
}

// refill returns the hits that drain from a bucket in the life of a slice. A part of a bucket that is lent is charged
// as if it were spent at the end of its life. So the level here is never below what it would be if every hit had been
// charged when it was spent, whichever member decides the key then, and the bucket admits no more hits than without
// leases.
func refill(r limit.Rule) uint64 {
	return uint64(lease.Slice)*uint64(r.Limit)/uint64(r.End(0)) + 1
}

// lifetime returns how long hits that are lent in window are valid.
func lifetime(r limit.Rule, window, now int64) time.Duration {
	if r.Algorithm.Bucket() {
		return lease.Slice
	}
	return time.Duration(min(r.End(window)-now, r.End(0)))
}

// denialTime returns how long a holder may refuse hits of e, which has no room for any.
func (s *shard) denialTime(e *counter.Owned, r limit.Rule, now int64) time.Duration {
	if e == nil {
		return 0
	}
	s.counters.Load(e, r, &s.state)
	left := r.NextFit(&s.state, now)
	if r.Algorithm != limit.FixedWindow && left > 0 {
		left = max(left, leastDeny)
	}
	return left
}

// chargeLease charges size hits (C1), and sets l.size to size, or to 0 if that is not possible.
func (n *Node) chargeLease(s *shard, l *leaseOp, size uint64) {
	if size == 0 {
		return
	}
	op := &l.op
	if l.e == nil {
		if l.e = s.insert(op, false); l.e == nil {
			return // a sketch never lends
		}
	}
	l.req.Op, l.req.Hits = Take, size
	if op.rule.Algorithm.Bucket() {
		op.now += int64(lease.Slice)
	}
	e, overflow := n.charge(s, op, l.e, &l.res)
	if l.e = e; overflow || l.res.Over {
		s.counts.Lease.Violations[lease.C1]++
		return
	}
	s.counts.Lease.Lent += size
	l.size = size
}

// sendGrant sends g, or makes it wait until the successor has confirmed its charge (C5).
func (n *Node) sendGrant(s *shard, l *leaseOp, g pendingGrant, fx *Ready) {
	if l.size > 0 && s.view.copies {
		if w := n.awaitReplication(s, &l.op, l.e, &l.res); w != nil {
			w.grant = &g
			return
		}
		if l.res.Kind != Decided || l.res.Authority != Full {
			return // no room to replicate it: the holder will ask again, and get it then
		}
	}
	g.send(fx)
}

func (g *pendingGrant) send(fx *Ready) {
	m := leaseTo(&fx.Leases, g.to, lease.Lend)
	m.Grants = append(m.Grants, g.grant)
}

// tickLent reclaims what silent holders have lost the right to spend, and drops lent keys without requests.
func (n *Node) tickLent(s *shard, now int64) {
	for _, key := range counter.SortedKeys(s.lent) {
		lent := s.lent[key]
		s.counts.violate(lent.TakeViolations())
		if now-lent.requestedAt > lentKeyLife {
			delete(s.lent, key)
			continue
		}
		if !lent.terms.Reclaim || lent.rule.Algorithm.Bucket() {
			continue
		}
		_, hash := n.shard(key)
		e := s.counters.Owned.Find(hash, key)
		if e == nil {
			continue
		}
		req := Request{Key: key, RingPos: lent.ringPos, Rule: lent.rule}
		w := s.windowOf(e, lent.rule, now)
		if hits := lent.Reclaim(now, w); hits > 0 {
			op := shardOp{Request: &req, now: now, hash: hash, table: counter.TableOwned, rule: lent.rule}
			n.credit(s, &op, e, unspent{w, hits})
			s.counts.Lease.Reclaimed += hits
		}
	}
}

// dropUnownedLeases drops the lent keys that this member does not own any more (C4).
func (s *shard) dropUnownedLeases(n *Node) {
	for key, lent := range s.lent {
		_, hash := n.shard(key)
		e := s.counters.Owned.Find(hash, key)
		if s.view.Ownership(lent.ringPos, e.OwnedEpoch(lent.ringPos)).State != handoff.OwnedHere {
			s.counts.violate(lent.TakeViolations())
			delete(s.lent, key)
		}
	}
}
