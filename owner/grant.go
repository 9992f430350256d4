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
	lentKeyLife      = int64(30 * time.Second) // without requests
	maxLentKeys      = 64                      // of one shard
	unreachableAfter = int64(3 * time.Second)  // a holder with hits that says nothing for so long cannot be reached
	leastDeny        = 20 * time.Millisecond   // refusals of what frees up bit by bit; meanwhile more than a hit gathers
)

// lentKey is what this member, the owner, has lent of one key.
type lentKey struct {
	lease.Book
	owner  uint64 // ring position
	rule   limit.Rule
	knobs  lease.Terms
	always bool  // the rule says to lease
	asked  int64 // when the last request came

	// What holders know of the counter, to be told when it changes.
	window int64
	tide   limitLevel
	queued bool
	lift   bool
}

// pendingGrant is a Grant that waits until its charge is known to the key's heir.
type pendingGrant struct {
	to    ring.ID
	grant lease.Grant
}

// StepLease takes in a message about leases that boot inst of member from has sent. Messages of members that are not
// known to live are refused.
func (n *Node) StepLease(now int64, from ring.ID, bootID uint64, m *lease.Batch) (fx Effects) {
	n.serial.Lock()
	defer n.serial.Unlock()
	p, ok := n.serial.peers[from]
	if !ok || p.BootID != bootID || len(m.Requests)+len(m.Grants)+len(m.Notices) > maxItems {
		n.serial.counts.refused++
		return fx
	}
	switch m.Kind {
	case lease.Ask:
		for i := range m.Requests {
			n.handleLeaseRequest(now, from, bootID, &m.Requests[i], &fx)
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

// leaseTo is the message of that kind to a member, made if there is none with room.
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

// leaseOp is one Request on its way through a shard.
type leaseOp struct {
	*lease.GrantRequest
	from   ring.ID
	inst   uint64
	q      Request
	hit    shardOp
	window int64
}

// handleLeaseRequest answers a request for a part of a limit, if this member is the one to lend it.
func (n *Node) handleLeaseRequest(now int64, from ring.ID, bootID uint64, r *lease.GrantRequest, fx *Effects) {
	s, hash := n.shard(r.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.counters.Owned.Find(hash, r.Key)
	right, _, _ := n.authority(now, s.view)
	if right != handoff.ExtentFull || r.Rule.Validate() != nil || s.view.Ownership(r.RingPos, e.OwnedEpoch(r.RingPos)).State != handoff.OwnedHere {
		s.counts.lease.Refused++
		return
	}
	l := leaseOp{GrantRequest: r, from: from, inst: bootID}
	l.q = Request{Key: r.Key, RingPos: r.RingPos, Domain: r.Domain, Rule: r.Rule, Op: DryRun, Strict: true}
	l.hit = shardOp{Request: &l.q, now: s.clock(now), hash: hash, table: counter.TableOwned, rule: r.Rule}
	if r.Terms.Slack > 0 {
		n.reconcile(s, &l, fx)
		return
	}
	lent := s.lentKeyFor(&l)
	if lent == nil {
		s.counts.lease.Refused++
		return
	}
	if e, used, ok := n.creditReturned(s, lent, &l, e); ok {
		n.grantLease(s, lent, &l, e, used, fx)
	}
}

// lentKeyFor is the book of l's key, made if there is none; nil if there are too many.
func (s *shard) lentKeyFor(l *leaseOp) *lentKey {
	lent := s.lent[l.Key]
	if lent == nil {
		if len(s.lent) >= maxLentKeys {
			return nil
		}
		if s.lent == nil {
			s.lent = map[Key]*lentKey{}
		}
		lent = &lentKey{owner: l.RingPos, rule: l.Rule}
		s.lent[l.Key] = lent
	}
	lent.asked, lent.always, lent.knobs = l.hit.now, l.Always, l.Terms
	s.learnName(l.Key, l.Name, &l.Terms)
	return lent
}

// creditReturned takes in what the holder gave back, and says what stands against the limit then.
func (n *Node) creditReturned(s *shard, lent *lentKey, l *leaseOp, e *counter.Owned) (_ *counter.Owned, used uint64, ok bool) {
	op := &l.hit
	var res Result
	n.charge(s, op, e, part{}, &res)
	e = s.counters.Owned.Find(op.hash, op.Key)
	if l.window = s.windowOf(e, op.rule, op.now); op.rule.Algorithm.Bucket() {
		l.window = op.now // of a slice, which never comes again
	}
	credit, ok := lent.Receive(op.now, lease.Holder{ID: l.from, BootID: l.inst}, l.GrantRequest, l.window)
	if !ok {
		s.counts.lease.Refused++
		return e, 0, false
	}
	if credit > 0 && e != nil && !op.rule.Algorithm.Bucket() {
		n.credit(s, op, e, l.window, credit)
		n.charge(s, op, e, part{}, &res)
	}
	if !n.options.NoHot {
		if s.hot.rates.Report(op.now, hotkey.Digest(op.Key), l.inst, float64(l.Demand)/1000); e != nil {
			s.track(e)
		}
	}
	return e, res.Before, true
}

// windowOf is the window that a charge at now counts in.
func (s *shard) windowOf(e *counter.Owned, r limit.Rule, now int64) int64 {
	w := r.Index(now)
	if e != nil && counter.Windowed(r) {
		if x := s.counters.Newest(e, r); x > w && r.End(x-1) <= now+int64(limit.ClockTolerance) {
			return x
		}
	}
	return w
}

// credit gives hits of window back that were lent and not spent (C4).
func (n *Node) credit(s *shard, op *shardOp, e *counter.Owned, window int64, hits uint64) {
	st := &s.state
	s.counters.Load(e, op.rule, st)
	standing := uint64(0)
	for _, f := range st.Slots {
		if f.At == window {
			standing = saturatingSub(limit.SaturatingAdd(standing, f.Charged), f.Refunded)
		}
	}
	op.rule.Refund(st, op.now, s.bootID, min(hits, standing))
	op.rule.Trim(st, op.now)
	if !s.counters.Store(e, op.rule, st) {
		s.counts.refundsDropped++
		return
	}
	s.counts.lease.Credited += hits
	if s.view.copies {
		n.trackUnreplicated(s, e, op.Request, 0)
	}
}

// grantLease lends what can be lent, of which used stands against the limit, and answers.
func (n *Node) grantLease(s *shard, lent *lentKey, l *leaseOp, e *counter.Owned, used uint64, fx *Effects) {
	op := &l.hit
	r, at := op.rule, op.now
	depth := r.Depth()
	if r.Algorithm.Bucket() {
		used = max(used, refill(r))
	}
	g := lease.Grant{Key: op.Key, Seq: l.Seq, Window: l.window, Total: l.Have, Limit: depth, Left: lifetime(r, l.window, at)}
	if l.Window != l.window {
		g.Total = 0
	}
	hot := (lent.always || n.isHot(s, op.Key, op.RingPos)) && n.routeMode(op.RingPos) != hotkey.Never
	size, last := uint64(0), false
	if hot {
		g.Flags |= lease.Hot
		size, last = lent.Size(at, l.from, l.GrantRequest, depth, used)
	}
	if s.names[op.Key] != nil {
		g.Flags |= lease.Named
	}
	if last {
		g.Flags |= lease.Last
	}
	var res Result
	if size > 0 {
		if e, size = n.chargeLease(s, lent, l, e, size, &res); size > 0 {
			g.Total = lent.Grant(at, l.from, l.window, size)
		}
	}
	if g.Used = limit.SaturatingAdd(used, size); g.Used >= uint64(depth) && size == 0 {
		g.Flags |= lease.Denied
		g.Left = s.denialTime(e, r, at)
	}
	if e != nil {
		n.updateLevel(s, lent, op.Key, r, l.window, g.Used, false)
	}
	s.audit(l, size, g.Used, fx)
	n.sendGrant(s, l, e, &res, pendingGrant{l.from, g}, size, fx)
}

// audit keeps a record of l, if its rule wants one.
func (s *shard) audit(l *leaseOp, hits, count uint64, fx *Effects) {
	if !l.Terms.Audit {
		return
	}
	x := Audit{Key: l.Key, Member: l.from, IsReport: l.Terms.Slack > 0, Hits: hits, Used: count, Limit: l.Rule.Depth()}
	if m := s.names[l.Key]; m != nil {
		x.Name = m.name
	}
	fx.Audits = append(fx.Audits, x)
}

// refill is the hits that a bucket drains in the life of a slice. What is lent of a bucket is charged as if all of it
// were spent at the end of its life: then the level here is never below what it would be had every hit been charged when
// it was spent, whoever decides the key by then, so the bucket admits not a hit more than without leases.
func refill(r limit.Rule) uint64 {
	return uint64(lease.Slice)*uint64(r.Limit)/uint64(r.End(0)) + 1
}

// lifetime is how long what is lent in window lives.
func lifetime(r limit.Rule, window, now int64) time.Duration {
	if r.Algorithm.Bucket() {
		return lease.Slice
	}
	return time.Duration(min(r.End(window)-now, r.End(0)))
}

// denialTime is how long a holder may refuse, given that nothing fits into e.
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

// chargeLease charges size hits (C1); 0 if that is not possible.
func (n *Node) chargeLease(s *shard, lent *lentKey, l *leaseOp, e *counter.Owned, size uint64, res *Result) (*counter.Owned, uint64) {
	op := &l.hit
	if e == nil {
		if e = s.insert(op, false); e == nil {
			return nil, 0 // never from a sketch
		}
	}
	l.q.Op, l.q.Hits = Take, size
	if op.rule.Algorithm.Bucket() {
		op.now += int64(lease.Slice)
	}
	e, overflow := n.charge(s, op, e, part{}, res)
	if overflow || res.Over {
		s.counts.lease.Violations[lease.C1]++
		return e, 0
	}
	s.counts.lease.Lent += size
	return e, size
}

// sendGrant sends g, or lets it wait until what it charges is known to the key's heir (C5).
func (n *Node) sendGrant(s *shard, l *leaseOp, e *counter.Owned, res *Result, g pendingGrant, size uint64, fx *Effects) {
	if size > 0 && s.view.copies {
		if w := n.awaitReplication(s, &l.hit, e, nil, res); w != nil {
			w.grant = &g
			return
		}
		if res.Kind != Decided || res.Authority != Full {
			return // it finds no room to be told: the holder asks again, and gets it back then
		}
	}
	g.send(fx)
}

func (g *pendingGrant) send(fx *Effects) {
	m := leaseTo(&fx.Leases, g.to, lease.Lend)
	m.Grants = append(m.Grants, g.grant)
}

// tickLent takes back what silent holders have given up, and drops the books that nobody needs.
func (n *Node) tickLent(s *shard, now int64) {
	for _, key := range sortedKeys(s.lent) {
		lent := s.lent[key]
		s.counts.violate(lent.TakeViolations())
		if now-lent.asked > lentKeyLife {
			delete(s.lent, key)
			continue
		}
		if !lent.knobs.Reclaim || lent.rule.Algorithm.Bucket() {
			continue
		}
		_, hash := n.shard(key)
		e := s.counters.Owned.Find(hash, key)
		if e == nil {
			continue
		}
		req := Request{Key: key, RingPos: lent.owner, Rule: lent.rule}
		w := s.windowOf(e, lent.rule, now)
		if back := lent.Reclaim(now, w); back > 0 {
			n.credit(s, &shardOp{Request: &req, now: now, hash: hash, table: counter.TableOwned, rule: lent.rule}, e, w, back)
			s.counts.lease.Reclaimed += back
		}
	}
}

// dropUnownedLeases drops the books of keys that this member does not decide any more (C4).
func (s *shard) dropUnownedLeases(n *Node) {
	for key, lent := range s.lent {
		_, hash := n.shard(key)
		if s.view.Ownership(lent.owner, s.counters.Owned.Find(hash, key).OwnedEpoch(lent.owner)).State != handoff.OwnedHere {
			s.counts.violate(lent.TakeViolations())
			delete(s.lent, key)
		}
	}
}
