package owner

import (
	"math"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner/internal/counter"
)

// Degrade answers q by its rule's degraded policy, for when the owner cannot be reached in time. Refunds are dropped
// and counted: only an owner may un-count hits.
//
// Before and After of such a Decision are moved by what the policy withholds from this member, so that After exceeds
// the rule's limit exactly when Over, and Remaining is what this member may still admit.
func (n *Node) Degrade(now int64, q *Request) Result {
	var a Result
	s, h := n.shard(q.Key)
	s.mu.Lock()
	switch q.Degraded {
	case policy.FailOpen:
		n.openLocked(s, h, now, q, &a)
	case policy.FailClosed:
		n.closedLocked(s, h, now, q, &a)
	default:
		n.shareLocked(s, h, now, q, &a)
	}
	s.mu.Unlock()
	return a
}

// Shed refuses q, for when its owner is alive but is asked more than it can answer in time: a share of the limit beside
// what the owner admits would be above it. Rules that fail open are answered by their policy.
func (n *Node) Shed(now int64, q *Request) Result {
	if q.Degraded == policy.FailOpen {
		return n.Degrade(now, q)
	}
	var a Result
	s, hash := n.shard(q.Key)
	s.mu.Lock()
	h := shardOp{Request: q, now: s.clock(now), hash: hash, rule: q.Rule}
	a.Authority = Shed
	s.refuse(&h, &a)
	s.mu.Unlock()
	return a
}

// shareLocked answers from this member's share of the limit. Its own charges as the owner count against the share, and
// whatever is known of the key against the whole limit, so a former owner or an heir that knows the limit to be spent
// admits nothing. What is admitted is told to the owner.
func (n *Node) shareLocked(s *shard, hash uint64, now int64, q *Request, a *Result) {
	h := shardOp{Request: q, now: s.clock(now), hash: hash, table: counter.TableShare, rule: q.Rule}
	h.rule.Limit = s.view.LocalShare(q.Rule.Limit, q.RingPos)
	h.rule.Limit, h.rule.Burst = partialLimits(q.Rule, h.rule.Limit, s.view.LocalShare(q.Rule.Burst, q.RingPos))
	h.elsewhere = s.usedAgainstShare(&h)
	a.Authority = Share
	if s.chargeLocal(&h, a) {
		n.reportLater(s, &h)
	}
}

// openLocked admits up to the rule's local cap a window, whatever others admit; without one, this member's share of the
// limit, and at least one hit.
func (n *Node) openLocked(s *shard, hash uint64, now int64, q *Request, a *Result) {
	h := shardOp{Request: q, now: s.clock(now), hash: hash, table: counter.TableOpen, rule: q.Rule}
	if h.rule.Limit, h.rule.Burst = q.LocalCap, 0; q.LocalCap == 0 {
		limit, burst := s.view.LocalShare(q.Rule.Limit, q.RingPos), s.view.LocalShare(q.Rule.Burst, q.RingPos)
		if h.rule.Limit, h.rule.Burst = partialLimits(q.Rule, limit, burst); h.rule.Limit == 0 && q.Rule.Limit > 0 {
			h.rule.Limit, h.rule.Burst = 1, 0
		}
	}
	a.Authority = Open
	s.chargeLocal(&h, a)
}

// closedLocked admits this member's share of what the owner last said was left in this window, then refuses.
func (n *Node) closedLocked(s *shard, hash uint64, now int64, q *Request, a *Result) {
	h := shardOp{Request: q, now: s.clock(now), hash: hash, table: counter.TableQuota, rule: q.Rule}
	h.rule = h.flatRule()
	e := s.counters.Quota.Find(hash, q.Key)
	a.Authority = Closed
	if e == nil || s.counters.EndQuota(e, h.rule) <= h.now || h.now-e.ObservedAt() > int64(n.options.SnapshotAge) {
		s.refuse(&h, a)
		return
	}
	h.rule.Limit = s.view.LocalShare(e.Remaining(), q.RingPos)
	s.decidePart(&h, e.Spent(), a)
	if h.charges() && !a.Over {
		e.Spend(h.Hits)
		s.bounds[closedBound].push(h.now, s.counters.EndQuota(e, h.rule), e.Spent())
	}
}

// usedAgainstShare is what counts against the share of h's key, of all that stands in the owned table: this member's own charges,
// or as much of everybody's as the whole limit has no room for beside the share.
func (s *shard) usedAgainstShare(h *shardOp) uint64 {
	e := s.counters.Owned.Find(h.hash, h.Key)
	if e == nil {
		g := *h
		g.table = counter.TableOwned
		return s.sketches.Estimate(g.ref())
	}
	r := h.Request.Rule
	if s.counters.End(e, r) <= h.now {
		return 0
	}
	if r.Algorithm != limit.FixedWindow {
		s.counters.Load(e, r, &s.state)
		if r.Peek(&s.state, h.now, max(1, h.Hits)).Over {
			return math.MaxUint64
		}
		return 0
	}
	t := s.counters.Tally(e, s.counters.Newest(e, r))
	all, mine := t.Count(), s.counters.Inline(e)
	if charged, refunded, found := s.counters.Recorded(e, t.Window, s.bootID); found {
		mine = saturatingSub(limit.SaturatingAdd(mine, charged), refunded)
	}
	if charged, _, found := s.counters.Recorded(e, t.Window, s.share()); found {
		all = saturatingSub(all, charged) // what the share's own count has, too
	}
	return max(mine, saturatingSub(all, uint64(r.Limit-h.rule.Limit)))
}

// unreportedShare is what was admitted under SHARE of h's key and stands in no entry of the owned table.
func (s *shard) unreportedShare(h *shardOp) uint64 {
	if e := s.counters.Share.Find(h.hash, h.Key); e != nil {
		if s.counters.EndLocal(e, h.Request.Rule) <= h.now {
			return 0
		}
		return e.Unreported()
	}
	g := *h
	g.table = counter.TableShare
	return s.sketches.Estimate(g.ref())
}

// reportLater puts what h was admitted under SHARE into the owned table, for the key's owner to learn.
func (n *Node) reportLater(s *shard, h *shardOp) {
	e := s.counters.Owned.Find(h.hash, h.Key)
	if e == nil {
		g := *h
		g.table, g.rule = counter.TableOwned, h.Request.Rule
		e = s.insert(&g, true)
	}
	if e != nil && s.admit(h, e, h.Request.Rule, h.Hits) && n.trackUnreplicated(s, e, h.Request, h.Hits) != nil {
		return
	}
	s.counts.shareUnreported += h.Hits
	if x := s.counters.Share.Find(h.hash, h.Key); x != nil {
		x.AddUnreported(h.Hits)
	}
}

// chargeLocal answers h from a table whose entries remember what was charged, and how much of it was admitted. It says whether
// h was charged and admitted.
func (s *shard) chargeLocal(h *shardOp, a *Result) bool {
	e := s.localTable(h.table).Find(h.hash, h.Key)
	if e != nil && s.counters.EndLocal(e, h.rule) <= h.now {
		s.counters.RenewLocal(e, h.rule, h.now)
	}
	if e == nil && h.charges() {
		e = s.counters.InsertLocal(h.ref())
	}
	switch {
	case e != nil && h.rule.Algorithm != limit.FixedWindow:
		s.chargeLocalState(h, e, a)
	case e != nil:
		if s.decidePart(h, e.Charged(), a); h.charges() {
			e.Charge(h.Hits)
		}
	default:
		s.chargeLocalSketch(h, a)
		return false // the sketch's count is told by nobody
	}
	if !h.charges() || a.Over {
		return false
	}
	e.Admit(h.Hits)
	s.bounds[boundOf(h.table)].push(h.now, s.counters.EndLocal(e, h.rule), e.Admitted())
	return true
}

// chargeLocalState is spend for what does not fit in an entry alone.
func (s *shard) chargeLocalState(h *shardOp, e *counter.Local, a *Result) {
	st := &s.state
	s.counters.LoadLocal(e, h.rule, st)
	if h.Op == Refund || h.elsewhere == math.MaxUint64 {
		g := *h
		g.rule = h.flatRule()
		s.decidePart(&g, h.rule.Used(st, h.now), a)
		return
	}
	h.decide(st, s.bootID, &a.Decision)
	if h.charges() {
		h.rule.Trim(st, h.now)
		if until := e.Until(); !s.counters.StoreLocal(e, h.rule, st) {
			s.counts.refused++
			h.overflow(&a.Decision)
		} else {
			e.Prolong(until)
		}
	}
	scaleToWhole(h, a)
	s.decidedPart(h, a)
}

// chargeLocalSketch is spend for a key that found no place.
func (s *shard) chargeLocalSketch(h *shardOp, a *Result) {
	est := s.sketches.Estimate(h.ref())
	flat := *h
	flat.rule = h.flatRule()
	s.decidePart(&flat, est, a)
	if h.charges() {
		s.addToSketch(h, est)
		s.bounds[boundOf(h.table)].push(h.now, h.rule.End(h.rule.Index(h.now)), uint64(h.rule.Limit))
	}
}

// decidePart answers h against a part of its limit, of which charged is used up in h's table.
func (s *shard) decidePart(h *shardOp, charged uint64, a *Result) {
	st := limit.Tally{Window: h.rule.Index(h.now), Charged: limit.SaturatingAdd(charged, h.elsewhere)}
	d := &a.Decision
	if h.Op == Refund {
		s.counts.refundsDropped++
		*d = h.rule.PeekTally(st, h.now, 0)
		d.Over = false
	} else {
		h.answer(st, d)
	}
	scaleToWhole(h, a)
	s.decidedPart(h, a)
}

// scaleToWhole moves the counts of an answer by a part of the limit to where they would stand in the whole.
func scaleToWhole(h *shardOp, a *Result) {
	part, whole := h.rule.Depth(), h.Request.Rule.Depth()
	a.After = toWhole(a.After, part, whole)
	if a.Before = toWhole(a.Before, part, whole); h.Op == Read {
		a.Before = a.After - h.Hits
	}
}

// toWhole moves count x of a part of a limit to where it would stand in the whole: part goes to whole.
func toWhole(x uint64, part, whole uint32) uint64 {
	if part <= whole {
		return limit.SaturatingAdd(x, uint64(whole-part))
	}
	if x == math.MaxUint64 {
		return x
	}
	return x - min(x, uint64(part-whole))
}

// refuse answers a question of which nothing is known.
func (s *shard) refuse(h *shardOp, a *Result) {
	whole := h.Request.Rule.Depth()
	h.rule.Limit = whole
	st := limit.Tally{Window: h.rule.Index(h.now), Charged: uint64(whole)}
	a.Decision = h.rule.PeekTally(st, h.now, max(1, h.Hits))
	if h.Op == Refund {
		s.counts.refundsDropped++
		a.Over, a.After = false, a.Before
	}
	s.decidedPart(h, a)
}

func (s *shard) decidedPart(h *shardOp, a *Result) {
	a.Kind, a.Path = Decided, Fallback
	s.counts.decided[a.Authority]++
	if h.charges() && !a.Over {
		s.counts.admitted[a.Authority] += h.Hits
	}
}

// Observe learns from what the owner answered q, when another member is the owner: how much is left, for rules that
// fail closed, and that a key is over.
func (n *Node) Observe(now int64, q *Request, a *Result) {
	if a.Kind != Decided || a.Authority != Full && a.Authority != Part && a.Authority != Overflow {
		return
	}
	if q.Degraded != policy.FailClosed && n.options.DenyCache <= 0 && !a.Hot {
		return
	}
	s, hash := n.shard(q.Key)
	s.mu.Lock()
	if a.Hot {
		n.observeHot(s, s.clock(now), q, a)
	}
	h := shardOp{Request: q, now: s.clock(now), hash: hash, rule: q.Rule}
	if q.Degraded == policy.FailClosed {
		h.table = counter.TableQuota
		s.observe(&h, a)
	}
	n.updateDenyCache(s, &h, a)
	s.mu.Unlock()
}

// countAfter is the count that a leaves behind.
func (h *shardOp) countAfter(a *Result) uint64 {
	if h.Op == DryRun {
		return a.Before
	}
	return a.After
}

func (s *shard) observe(h *shardOp, a *Result) {
	t := &s.counters.Quota
	e := t.Find(h.hash, h.Key)
	if e == nil {
		if e = t.Insert(h.ref()); e == nil {
			return
		}
	}
	depth := h.rule.Depth()
	left := depth - uint32(min(h.countAfter(a), uint64(depth)))
	e.Observe(h.now, h.rule.End(h.rule.Index(h.now)), left)
}

// localTable returns the table of a degraded policy, TableShare or TableOpen.
func (s *shard) localTable(t counter.Table) *counter.LocalTable {
	if t == counter.TableOpen {
		return &s.counters.Open
	}
	return &s.counters.Share
}

func saturatingSub(a, b uint64) uint64 { return a - min(a, b) }
