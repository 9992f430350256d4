package owner

import (
	"math"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/owner/internal/writeback"
)

// repeatWithin is how long after a claim was made a request with the same id and hits is the same request again.
const repeatWithin = int64(time.Second)

// holdCounts counts what happened to claims. Its fields only increase.
type holdCounts struct {
	Reserved    uint64 // claims made
	Refused     uint64 // requests refused for lack of room for a claim, of the key, the domain or the member
	Repeats     uint64 // requests that were recognized as repeated, and not charged again
	Collisions  uint64 // requests refused because their id had an open claim of other hits, or an old one
	GivenBack   uint64 // hits given back
	Excess      uint64 // hits that commits charged beyond what was reserved
	Unmatched   uint64 // settlements of claims that were not known
	Unknown     uint64 // of the unmatched, commits, which are charged in full
	Lapsed      uint64 // claims that nothing had settled in time
	Dropped     uint64 // claims of other members that found no room
	Lost        uint64 // hits that were not given back, because there was no room for the record
	CallersDead uint64 // claims released because their caller was dead
	// SetsUnclaimed are charges of sets without a claim, for lack of room: they stay charged even if the set is refused.
	SetsUnclaimed uint64
}

func (c *holdCounts) add(o *holdCounts) {
	c.Reserved += o.Reserved
	c.Refused += o.Refused
	c.Repeats += o.Repeats
	c.Collisions += o.Collisions
	c.GivenBack += o.GivenBack
	c.Excess += o.Excess
	c.Unmatched += o.Unmatched
	c.Unknown += o.Unknown
	c.Lapsed += o.Lapsed
	c.Dropped += o.Dropped
	c.Lost += o.Lost
	c.CallersDead += o.CallersDead
	c.SetsUnclaimed += o.SetsUnclaimed
}

// decideClaim decides op, which makes, extends or settles a claim and whose key this member owns. e is the key's
// counter, or nil.
func (n *Node) decideClaim(s *shard, op *shardOp, e *counter.Owned, res *Result) {
	switch {
	case op.Op == Take || op.Op == Reserve:
		n.reserve(s, op, e, res)
	case op.Op == Extend:
		n.extend(s, op, e, res)
	default:
		n.settle(s, op, e, res)
	}
	if res.Kind == Decided {
		s.counts.Decided[res.Authority]++
	}
}

// reserve charges op and makes its claim.
func (n *Node) reserve(s *shard, op *shardOp, e *counter.Owned, res *Result) {
	t := &s.counters.Claims
	var ended claim.Claim // with the same id
	if c := t.Find(op.Hold.ID); c != nil {
		if n.repeats(s, op, e, c, res) {
			return
		}
		ended = *c
		t.Remove(c)
	}
	c := s.addClaim(op)
	if c == nil {
		s.counts.Holds.Refused++
		s.refuseClaim(op, res)
		n.restoreClaim(s, &ended)
		return
	}
	e, overflow := n.charge(s, op, e, res)
	if overflow || e == nil || op.uncharged || res.Over && op.Op == Reserve && !op.Hold.ChargeOver {
		t.Remove(c)
		n.restoreClaim(s, &ended)
		return
	}
	s.counts.Holds.Reserved++
	if op.Op == Reserve {
		s.noteBudget(op, res.Before, res.After)
		if op.ahead() {
			r := &op.Request.Rule
			s.leases.RecordAhead(op.now, e, r.End(r.Index(op.now)+1), int64(r.Window), op.Hits)
		}
	}
	switch {
	case op.Op != Take:
		c.At = s.chargedAt(op, e, s.bootID)
	case res.Over: // nothing is given back of it, but a repeated request gets the same answer
		c.At = 1
	}
	n.changeClaim(s, c)
	if s.view.copies || n.options.DataWindow > 0 {
		n.awaitConfirmation(s, op, e, res)
	}
}

// repeats decides op if c, the claim with its id, shows that it is a repeated request, or that the id is in use. It
// reports whether it has; if not, c has ended, and its id may be that of another request.
func (n *Node) repeats(s *shard, op *shardOp, e *counter.Owned, c *claim.Claim, res *Result) bool {
	age := op.now - c.Made()
	switch {
	case c.State() == claim.Open && uint64(c.Amount) == op.Hits && age <= repeatWithin:
		s.counts.Holds.Repeats++
		n.reread(s, op, e, op.Hits, res)
		res.Over = op.Op == Take && c.At != 0 // as at first, whatever came in between
		n.awaitEarlier(s, op, e, res)
		return true
	case c.State() == claim.Settling, c.State() == claim.Open && c.Flags()&claim.Once == 0:
		s.counts.Holds.Collisions++
		s.refuseClaim(op, res)
		return true
	}
	return false
}

// restoreClaim adds c again, which was removed for a claim with its ID that was not made. Without c, a settlement that
// comes again would find no claim, and another member's copy would stay open. An empty c is none.
func (n *Node) restoreClaim(s *shard, c *claim.Claim) {
	if c.Made() == 0 {
		return
	}
	if x := s.counters.Claims.Restore(c); x != nil {
		n.changeClaim(s, x)
	}
}

// awaitEarlier makes res Pending if op repeats a request that may still wait for its replica.
func (n *Node) awaitEarlier(s *shard, op *shardOp, e *counter.Owned, res *Result) {
	if !s.view.copies || e == nil || res.Over {
		return
	}
	u, t := s.counters.Unreplicated(e), tolerance(op.Request)
	if u == nil || u.Unconfirmed() <= t {
		return
	}
	m := mark{u.Seq(), u.Charged() - t}
	if w := n.await(s, op, res); w != nil {
		w.replica = m
		k := s.pending.key(op.Key)
		k.unconfirmed = append(k.unconfirmed, w)
	}
}

// addClaim adds the claim of op, without the place of its charge. It returns nil if there is no room.
func (s *shard) addClaim(op *shardOp) *claim.Claim {
	h, t := op.Hold, &s.counters.Claims
	if op.Hits > math.MaxUint32 || h.Max > 0 && t.Totals(op.Key).Open >= h.Max {
		return nil
	}
	c := op.newClaim()
	return t.Add(&c, false)
}

// claimShare makes the claim of op, a Reserve that was admitted from the local share and charged to e, for the owner.
func (s *shard) claimShare(op *shardOp, e *counter.Owned) {
	t := &s.counters.Claims
	if t.Find(op.Hold.ID) != nil {
		return
	}
	c := op.newClaim()
	if c.Flags()&claim.Set != 0 || op.Hits > math.MaxUint32 {
		return
	}
	c.At = s.chargedAt(op, e, s.share())
	if x := t.Add(&c, true); x != nil {
		t.Change(x)
	}
}

// newClaim returns the claim that op makes, without the place of its charge.
func (op *shardOp) newClaim() (c claim.Claim) {
	h := op.Hold
	c = claim.Claim{ID: h.ID, Key: op.Key, RingPos: op.RingPos, Caller: h.Caller, Amount: uint32(op.Hits)}
	c.SetMade(op.now)
	c.SetTTL(h.TTL)
	c.SetFlags(h.Flags)
	c.SetDomain(op.Domain)
	return c
}

// chargedAt returns where op, which writer has charged to e last, was charged: see claim.Claim.
func (s *shard) chargedAt(op *shardOp, e *counter.Owned, writer uint64) int64 {
	r := op.Request.Rule
	s.counters.Load(e, r, &s.state)
	if op.ahead() && writer != s.share() { // a share charges the current window
		return r.Index(op.now) + 1
	}
	at := r.ChargedAt(&s.state, op.now, writer)
	if r.Algorithm.Bucket() {
		at += s.counters.Claims.Given(op.Key)
	}
	return at
}

// refuseClaim refuses op, for which there is no claim. It is not charged.
func (s *shard) refuseClaim(op *shardOp, res *Result) {
	res.Kind, res.Path, res.Authority = Decided, Local, Overflow
	res.Reset = time.Second
	op.overflow(&res.Decision)
}

// reread makes res the decision about op as it is now: the count, of which hits are op's own.
func (n *Node) reread(s *shard, op *shardOp, e *counter.Owned, hits uint64, res *Result) {
	res.Kind, res.Path, res.Authority = Decided, Local, Full
	s.state.TAT, s.state.Slots = 0, s.state.Slots[:0]
	if e != nil && s.counters.End(e, op.rule) > op.now {
		s.counters.Load(e, op.rule, &s.state)
	}
	res.Decision = op.rule.Peek(&s.state, op.now, 0)
	res.Before = saturatingSub(res.After, hits)
}

// settle settles the claim of op. If it gives hits back, that waits until another member knows.
func (n *Node) settle(s *shard, op *shardOp, e *counter.Owned, res *Result) {
	t := &s.counters.Claims
	c := t.Find(op.Hold.ID)
	if op.Hold.Oldest {
		if c != nil {
			n.reread(s, op, e, 0, res) // it comes again
			return
		}
		if c = s.oldest(op); c != nil {
			req, h := *op.Request, *op.Hold
			h.ID, h.Oldest, req.Hold = c.ID, false, &h
			n.addOrphan(s, op, true) // c is not valid any more
			op.Request = &req
			c = t.Find(h.ID)
		}
	}
	switch {
	case c == nil || c.Flags()&claim.Once != 0:
		n.settleUnknown(s, op, e, c == nil, res)
		return
	case c.Ended(): // by a settlement that came before it
		n.lapse(s, op.now, c)
	case c.State() == claim.Open:
		n.settleOpen(s, op, e, c)
	case c.State() == claim.Settling && !c.Gives() && !s.view.Steady(): // the former owner may still say
		res.Kind = Forward
		return
	case c.State() == claim.Settling && !c.Tracked():
		n.changeClaim(s, c)
	}
	n.reread(s, op, s.counters.Find(op.Key), 0, res)
	if c = t.Find(op.Hold.ID); c == nil || c.State() != claim.Settling {
		return
	}
	if s.mayGiveBack(c) {
		n.giveBack(s, op.now, c)
		n.reread(s, op, s.counters.Find(op.Key), 0, res)
		return
	}
	if w := n.await(s, op, res); w != nil {
		k := s.pending.key(op.Key)
		k.settles = append(k.settles, w)
	}
}

// oldest returns the open claim of op's key and caller that was made first, or nil.
func (s *shard) oldest(op *shardOp) (first *claim.Claim) {
	s.counters.Claims.EachOpen(op.Key, func(c *claim.Claim) bool {
		if c.Caller == op.Hold.Caller && (first == nil || c.Made() < first.Made()) {
			first = c
		}
		return true
	})
	return first
}

// settleOpen settles c, which is open, as op requires, but gives nothing back yet.
func (n *Node) settleOpen(s *shard, op *shardOp, e *counter.Owned, c *claim.Claim) {
	held, back, excess := uint64(c.Amount), uint64(0), uint64(0)
	switch {
	case op.Op == Release:
		back = held
	case op.Op == Commit && op.Hits < held:
		back = held - op.Hits
	case op.Op == Commit:
		excess = op.Hits - held
	}
	if e == nil || s.counters.End(e, s.counters.Rule(e)) <= op.now {
		back = 0 // its window has ended
	}
	n.mark(s, op.now, c, uint32(back))
	if excess > 0 {
		s.counts.Holds.Excess += excess
		n.chargeMore(s, op, e, excess)
	}
}

// settleUnknown settles a claim that is not known: what a Commit asks for is charged, whatever the claim has charged. If
// the claim comes later, from another member, the record that mark adds gives it back.
func (n *Node) settleUnknown(s *shard, op *shardOp, e *counter.Owned, mark bool, res *Result) {
	s.counts.Holds.Unmatched++
	if op.Op == Commit && op.Hits > 0 {
		s.counts.Holds.Unknown++
		n.chargeMore(s, op, e, op.Hits)
	}
	n.reread(s, op, s.counters.Find(op.Key), 0, res)
	if mark {
		n.addOrphan(s, op, op.Op == Keep)
	}
}

// addOrphan records that op has settled a claim with its ID, if there is room.
func (n *Node) addOrphan(s *shard, op *shardOp, keeps bool) {
	c := claim.Claim{ID: op.Hold.ID, Key: op.Key, RingPos: op.RingPos}
	c.SetMade(op.now)
	c.SetDomain(op.Domain)
	c.SetState(claim.Orphan)
	if keeps {
		c.SetFlags(claim.Keeps)
	}
	if x := s.counters.Claims.Add(&c, false); x != nil {
		n.changeClaim(s, x)
	}
}

// chargeMore charges hits that were already used, even if they exceed the limit.
func (n *Node) chargeMore(s *shard, op *shardOp, e *counter.Owned, hits uint64) {
	r, st := op.Request.Rule, &s.state
	full := *op
	full.rule = r
	if e == nil {
		if e = s.insert(&full, false); e == nil {
			s.counts.Refused++
			return
		}
	}
	s.counters.Load(e, r, st)
	before := r.Used(st, op.now)
	r.Charge(st, op.now, s.bootID, hits)
	after := r.Used(st, op.now)
	r.Trim(st, op.now)
	if !s.counters.Store(e, r, st) {
		s.counts.Refused++
		return
	}
	s.noteBudget(op, before, after)
	s.markOwned(&full, e)
	if s.view.copies {
		n.trackUnreplicated(s, e, r, hits)
	}
	if n.options.DataWindow > 0 && n.journals(op.Request) {
		n.trackUnwritten(s, e, r, &writeback.Hits{Now: op.now, N: hits})
	}
}

// extend makes the life of op's claim begin again. Unknown and settled claims have none, nor has a request in flight whose
// slot was freed when the rule's window had passed: another request may have it.
func (n *Node) extend(s *shard, op *shardOp, e *counter.Owned, res *Result) {
	c := s.counters.Claims.Find(op.Hold.ID)
	n.reread(s, op, e, 0, res)
	if c == nil || c.State() != claim.Open || !n.keepSlot(s, op, e, c) {
		s.counts.Holds.Unmatched++
		res.Over = true
		return
	}
	c.SetTTL(time.Duration(op.now-c.Made()) + op.Hold.TTL)
	n.changeClaim(s, c)
}

// keepSlot lets the slot of c count for another window if its rule counts requests in flight. It returns false if c has no
// slot any more.
func (n *Node) keepSlot(s *shard, op *shardOp, e *counter.Owned, c *claim.Claim) bool {
	r := op.Request.Rule
	if r.Algorithm != limit.InFlight || c.Amount == 0 {
		return true
	}
	if e == nil {
		return false
	}
	s.counters.Load(e, r, &s.state)
	at, ok := r.Extend(&s.state, op.now, s.bootID, c.At, uint64(c.Amount))
	if ok {
		if r.Trim(&s.state, op.now); s.counters.Store(e, r, &s.state) {
			c.At = at
		}
	}
	return ok
}

// changeClaim records that c has changed, so that the successor learns of it with the key's counter. A claim without a
// counter has no effect any more.
func (n *Node) changeClaim(s *shard, c *claim.Claim) {
	if !s.view.copies {
		return
	}
	e := s.counters.Find(c.Key)
	if e == nil || n.trackUnreplicated(s, e, s.counters.Rule(e), 0) == nil {
		return
	}
	s.counters.Claims.Change(c)
	if c.State() == claim.Settling {
		n.urgent.Store(true)
	}
}
