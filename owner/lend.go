package owner

import (
	"cmp"
	"slices"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/owner/internal/lending"
	"github.com/keyward/keyward/owner/internal/writeback"
	"github.com/keyward/keyward/ring"
)

// KeyName is the readable name of a key.
type KeyName = lending.KeyName

// HotKey is a key that this member owns and that is hot or lent.
type HotKey = lending.HotKey

// StepLease processes a message about leases from the given boot of member from. It refuses messages from members that
// are not live, and from earlier boots.
func (n *Node) StepLease(now int64, from ring.ID, bootID uint64, m *lease.Batch) (fx Ready) {
	n.serial.Lock()
	defer n.serial.Unlock()
	defer n.finish(&fx)
	p := n.serial.machine.Peer(from)
	if p == nil || p.BootID != bootID || !lending.Acceptable(m) {
		n.serial.counts.refused++
		return fx
	}
	switch m.Kind {
	case lease.Ask:
		for i := range m.Requests {
			n.handleLeaseRequest(now, lease.Holder{ID: from, BootID: bootID}, &m.Requests[i], &fx)
		}
	case lease.Lend:
		for i := range m.Grants {
			s, _ := n.shard(m.Grants[i].Key)
			s.mu.Lock()
			s.leases.AcceptGrant(s.clock(now), from, &m.Grants[i])
			s.mu.Unlock()
		}
	case lease.Notify:
		for i := range m.Notices {
			s, _ := n.shard(m.Notices[i].Key)
			s.mu.Lock()
			if m.Notices[i].Kind == lease.Move {
				n.acceptMove(s, s.clock(now), &m.Notices[i])
			} else {
				s.leases.AcceptNotice(s.clock(now), from, &m.Notices[i])
			}
			s.mu.Unlock()
		}
	}
	return fx
}

// handleLeaseRequest handles a request for a part of a limit, if this member owns the key.
func (n *Node) handleLeaseRequest(now int64, from lease.Holder, r *lease.GrantRequest, fx *Ready) {
	s, hash := n.shard(r.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.counters.Owned.Find(hash, r.Key)
	extent, _, _ := n.authority(now, s.view, r.Terms.Partition)
	if extent != handoff.ExtentFull || r.Rule.Validate() != nil ||
		s.view.Ownership(r.RingPos, e.OwnedEpoch(r.RingPos)).State != handoff.OwnedHere {
		s.leases.Refuse()
		return
	}
	s.leases.Grant(s.clock(now), from, r, &fx.Outbox)
}

// lendingOwner implements lending.Owner for one shard.
type lendingOwner struct {
	n *Node
	s *shard
}

// opOf returns c as an operation on the shard. A grant is strict: the successor and the journal have its charge before
// the holder.
func (o *lendingOwner) opOf(c *lending.Charge) *shardOp {
	req := &Request{
		Key: c.Key, RingPos: c.RingPos, Domain: c.Domain, Rule: c.Full, Partition: c.Partition, Audit: c.Audit, Op: DryRun, Strict: true,
		Volatile: c.Entry != nil && o.s.counters.Volatile(c.Entry),
	}
	if c.Hits > 0 {
		req.Op, req.Hits = Take, c.Hits
	}
	return &shardOp{Request: req, now: c.Now, hash: c.Hash, table: counter.TableOwned, rule: c.Rule, grant: true}
}

// Charge decides c and, if it has hits, charges it.
func (o *lendingOwner) Charge(c *lending.Charge) {
	var res Result
	c.Entry, c.Overflow = o.n.charge(o.s, o.opOf(c), c.Entry, &res)
	c.Decision = res.Decision
}

// Refund refunds the hits of c, but not more than were charged in the window.
func (o *lendingOwner) Refund(c *lending.Charge, window int64) bool {
	s, st := o.s, &o.s.state
	s.counters.Load(c.Entry, c.Rule, st)
	charged := uint64(0)
	for _, f := range st.Slots {
		if f.At == window {
			charged = saturatingSub(limit.SaturatingAdd(charged, f.Charged), f.Refunded)
		}
	}
	c.Rule.Refund(st, c.Now, s.bootID, min(c.Hits, charged))
	c.Rule.Trim(st, c.Now)
	if !s.counters.Store(c.Entry, c.Rule, st) {
		s.counts.RefundsDropped++
		return false
	}
	if s.view.copies {
		o.n.trackUnreplicated(s, c.Entry, c.Rule, 0)
	}
	if o.n.journalsEntry(s, c.Entry) {
		o.n.trackUnwritten(s, c.Entry, c.Rule, &writeback.Hits{Now: c.Now})
	}
	return true
}

// AwaitReplication makes g wait until the successor has confirmed its charge (C5), and the journal contains it. If there
// is no room to replicate it, g is dropped: the holder will ask again, and get it then.
func (o *lendingOwner) AwaitReplication(c *lending.Charge, g *lending.PendingGrant) bool {
	res := Result{Decision: c.Decision, Kind: Decided, Authority: Full}
	if w := o.n.awaitConfirmation(o.s, o.opOf(c), c.Entry, &res); w != nil {
		w.grant = g
		return false
	}
	return res.Kind == Decided && res.Authority == Full
}

// Merge merges what another member has recorded of a counter, if the number of its slots is valid.
func (o *lendingOwner) Merge(now int64, c *protocol.CounterRecord) {
	if len(c.State.Slots) > 0 && len(c.State.Slots) <= maxSlots {
		o.n.mergeOne(o.s, o.s.counters.Hash(c.Key), now, c)
	}
}

// RecordReclaim adds hits, which holders may have spent although they were refunded, to the bound. The bound is the sum
// for all keys of the shard.
func (o *lendingOwner) RecordReclaim(now, end int64, hits uint64) {
	b := &o.s.bounds[reclaimBound]
	b.push(now, end, limit.SaturatingAdd(b.at(now), hits))
}

// RequestFlush makes the next Flush send messages about leases; urgent requires it at once.
func (o *lendingOwner) RequestFlush(urgent bool) {
	o.n.leaseTraffic.Store(true)
	o.n.dirty.Store(true)
	if urgent {
		o.n.urgent.Store(true)
	}
}

// decideFromLease decides op, whose key another member owns, from this member's lease. It returns false if the owner
// has to decide. With existing, it requests no new lease.
func (n *Node) decideFromLease(s *shard, op *shardOp, existing bool, res *Result) bool {
	if op.Op == Refund && s.leases.Holds(op.Key) {
		s.leases.AllowHits(s.clock(op.now), op.Key)
	}
	if !op.charges() || op.Tenant != 0 || existing && !s.leases.Holds(op.Key) {
		return false
	}
	op.now = s.clock(op.now)
	spend := op.spend()
	d, result := s.leases.Decide(&spend)
	switch result {
	case lease.Admitted:
		res.Authority = Full
	case lease.Refused:
		res.Authority = Cached
	default:
		return false
	}
	res.Decision, res.Kind, res.Path, res.Hot = d, Decided, Leased, true
	s.counts.Decided[res.Authority]++
	return true
}

// spend returns op, whose key another member owns, as a request to package lending.
func (op *shardOp) spend() lending.Spend {
	x := lending.Spend{Ref: op.ref(), Hits: op.Hits, Mechanism: op.Mechanism, Terms: op.LeaseTerms}
	x.Table, x.Rule = counter.TableOwned, op.Request.Rule
	return x
}

// observeHot processes that the owner of op's key reports it as hot.
func (s *shard) observeHot(op *shardOp, res *Result) {
	r := &op.Request.Rule
	if op.Op == Take && !r.Algorithm.Log() && op.Mechanism != policy.Approximate {
		spend := op.spend()
		s.leases.ObserveHot(&spend, res.Over && res.Authority == Full && res.Before >= uint64(r.Depth()))
	}
}

// updateHolders updates the holders of parts of the limit of op's key after a decision by e.
func (s *shard) updateHolders(op *shardOp, e *counter.Owned, res *Result) {
	res.Hot = res.Hot || s.leases.RequiresLease(op.Key)
	if op.Op == Take || op.Op == Refund {
		c := lending.Count{Now: op.now, Rule: op.Request.Rule, Hits: res.After, Refund: op.Op == Refund}
		s.leases.Update(e, &c)
	}
}

// evaluateHot determines which keys are hot.
func (n *Node) evaluateHot(now int64, fx *Ready) {
	if !n.lender.StartEvaluation(now) {
		return
	}
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		s.leases.EvaluateHot(s.clock(now), &fx.Outbox)
		s.mu.Unlock()
	}
	n.lender.FinishEvaluation()
}

// flushLeases sends the pending requests for leases and notices to holders.
func (n *Node) flushLeases(now int64, fx *Ready) {
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		s.leases.Flush(s.clock(now), &fx.Outbox)
		s.mu.Unlock()
	}
}

// tickLeases does what is due for leases at time now.
func (n *Node) tickLeases(now int64, fx *Ready) {
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		at := s.clock(now)
		s.leases.Tick(at)
		s.endDegraded(at, false)
		s.leases.TakeAudits(&fx.Outbox)
		s.budgets.take(fx)
		s.mu.Unlock()
	}
}

// SetLoad sets how many requests per second this machine could decide, and whether it is overloaded: then keys are hot
// at half the rate. It may be called concurrently with anything else.
func (n *Node) SetLoad(capacity float64, overloaded bool) { n.lender.SetLoad(capacity, overloaded) }

// SetRoutes makes the keys of the owner strings in rs always or never hot, as the modes of their routes require. hash
// is Envoy's hash. SetRoutes may be called concurrently with anything else.
func (n *Node) SetRoutes(rs []hotkey.Route, hash func(string) uint64) { n.lender.SetRoutes(rs, hash) }

// Name stores the name of key, and what its rule sets for leases, if the key is hot or leased. It may be called
// concurrently with anything else, and costs little if the name is stored already.
func (n *Node) Name(key Key, text KeyName, terms *lease.Terms) {
	s, _ := n.shard(key)
	s.mu.Lock()
	s.leases.Name(s.now, key, text, terms)
	s.mu.Unlock()
}

// HotKeys returns the keys of this member that are hot or lent, the hottest first.
func (n *Node) HotKeys(now int64) (all []HotKey) {
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		all = s.leases.HotKeys(s.clock(now), all)
		s.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b HotKey) int {
		return cmp.Or(cmp.Compare(b.Rate, a.Rate), a.Key.Compare(b.Key))
	})
	return all
}

// Held returns the leases of this member, in the order of their keys within a shard.
func (n *Node) Held(now int64) (all []lending.HeldKey) {
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		all = s.leases.Held(now, all)
		s.mu.Unlock()
	}
	return all
}
