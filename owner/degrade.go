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
func (n *Node) Degrade(now int64, req *Request) Result {
	var res Result
	s, hash := n.shard(req.Key)
	s.mu.Lock()
	switch req.Degraded {
	case policy.FailOpen:
		n.openLocked(s, hash, now, req, &res)
	case policy.FailClosed:
		n.closedLocked(s, hash, now, req, &res)
	default:
		n.shareLocked(s, hash, now, req, &res)
	}
	s.mu.Unlock()
	return res
}

// Shed refuses q, for when its owner is alive but is asked more than it can answer in time: a share of the limit beside
// what the owner admits would be above it. Rules that fail open are answered by their policy.
func (n *Node) Shed(now int64, req *Request) Result {
	if req.Degraded == policy.FailOpen {
		return n.Degrade(now, req)
	}
	var res Result
	s, hash := n.shard(req.Key)
	s.mu.Lock()
	op := shardOp{Request: req, now: s.clock(now), hash: hash, rule: req.Rule}
	res.Authority = Shed
	s.refuse(&op, &res)
	s.mu.Unlock()
	return res
}

// shareLocked answers from this member's share of the limit. Its own charges as the owner count against the share, and
// whatever is known of the key against the whole limit, so a former owner or an heir that knows the limit to be spent
// admits nothing. What is admitted is told to the owner.
func (n *Node) shareLocked(s *shard, hash uint64, now int64, req *Request, res *Result) {
	op := shardOp{Request: req, now: s.clock(now), hash: hash, table: counter.TableShare, rule: req.Rule}
	op.rule.Limit = s.view.LocalShare(req.Rule.Limit, req.RingPos)
	op.rule.Limit, op.rule.Burst = partialLimits(req.Rule, op.rule.Limit, s.view.LocalShare(req.Rule.Burst, req.RingPos))
	op.elsewhere = s.usedAgainstShare(&op)
	res.Authority = Share
	if s.chargeLocal(&op, res) {
		n.reportLater(s, &op)
	}
}

// openLocked admits up to the rule's local cap a window, whatever others admit; without one, this member's share of the
// limit, and at least one hit.
func (n *Node) openLocked(s *shard, hash uint64, now int64, req *Request, res *Result) {
	op := shardOp{Request: req, now: s.clock(now), hash: hash, table: counter.TableOpen, rule: req.Rule}
	if op.rule.Limit, op.rule.Burst = req.LocalCap, 0; req.LocalCap == 0 {
		limit, burst := s.view.LocalShare(req.Rule.Limit, req.RingPos), s.view.LocalShare(req.Rule.Burst, req.RingPos)
		if op.rule.Limit, op.rule.Burst = partialLimits(req.Rule, limit, burst); op.rule.Limit == 0 && req.Rule.Limit > 0 {
			op.rule.Limit, op.rule.Burst = 1, 0
		}
	}
	res.Authority = Open
	s.chargeLocal(&op, res)
}

// closedLocked admits this member's share of what the owner last said was left in this window, then refuses.
func (n *Node) closedLocked(s *shard, hash uint64, now int64, req *Request, res *Result) {
	op := shardOp{Request: req, now: s.clock(now), hash: hash, table: counter.TableQuota, rule: req.Rule}
	op.rule = op.flatRule()
	e := s.counters.Quota.Find(hash, req.Key)
	res.Authority = Closed
	if e == nil || s.counters.EndQuota(e, op.rule) <= op.now || op.now-e.ObservedAt() > int64(n.options.SnapshotAge) {
		s.refuse(&op, res)
		return
	}
	op.rule.Limit = s.view.LocalShare(e.Remaining(), req.RingPos)
	s.decidePart(&op, e.Spent(), res)
	if op.charges() && !res.Over {
		e.Spend(op.Hits)
		s.bounds[closedBound].push(op.now, s.counters.EndQuota(e, op.rule), e.Spent())
	}
}

// usedAgainstShare is what counts against the share of h's key, of all that stands in the owned table: this member's own charges,
// or as much of everybody's as the whole limit has no room for beside the share.
func (s *shard) usedAgainstShare(op *shardOp) uint64 {
	e := s.counters.Owned.Find(op.hash, op.Key)
	if e == nil {
		other := *op
		other.table = counter.TableOwned
		return s.sketches.Estimate(other.ref())
	}
	r := op.Request.Rule
	if s.counters.End(e, r) <= op.now {
		return 0
	}
	if r.Algorithm != limit.FixedWindow {
		s.counters.Load(e, r, &s.state)
		if r.Peek(&s.state, op.now, max(1, op.Hits)).Over {
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
	return max(mine, saturatingSub(all, uint64(r.Limit-op.rule.Limit)))
}

// unreportedShare is what was admitted under SHARE of h's key and stands in no entry of the owned table.
func (s *shard) unreportedShare(op *shardOp) uint64 {
	if e := s.counters.Share.Find(op.hash, op.Key); e != nil {
		if s.counters.EndLocal(e, op.Request.Rule) <= op.now {
			return 0
		}
		return e.Unreported()
	}
	other := *op
	other.table = counter.TableShare
	return s.sketches.Estimate(other.ref())
}

// reportLater puts what h was admitted under SHARE into the owned table, for the key's owner to learn.
func (n *Node) reportLater(s *shard, op *shardOp) {
	e := s.counters.Owned.Find(op.hash, op.Key)
	if e == nil {
		other := *op
		other.table, other.rule = counter.TableOwned, op.Request.Rule
		e = s.insert(&other, true)
	}
	if e != nil && s.admit(op, e, op.Request.Rule, op.Hits) && n.trackUnreplicated(s, e, op.Request, op.Hits) != nil {
		return
	}
	s.counts.shareUnreported += op.Hits
	if x := s.counters.Share.Find(op.hash, op.Key); x != nil {
		x.AddUnreported(op.Hits)
	}
}

// chargeLocal answers h from a table whose entries remember what was charged, and how much of it was admitted. It says whether
// h was charged and admitted.
func (s *shard) chargeLocal(op *shardOp, res *Result) bool {
	e := s.localTable(op.table).Find(op.hash, op.Key)
	if e != nil && s.counters.EndLocal(e, op.rule) <= op.now {
		s.counters.RenewLocal(e, op.rule, op.now)
	}
	if e == nil && op.charges() {
		e = s.counters.InsertLocal(op.ref())
	}
	switch {
	case e != nil && op.rule.Algorithm != limit.FixedWindow:
		s.chargeLocalState(op, e, res)
	case e != nil:
		if s.decidePart(op, e.Charged(), res); op.charges() {
			e.Charge(op.Hits)
		}
	default:
		s.chargeLocalSketch(op, res)
		return false // the sketch's count is told by nobody
	}
	if !op.charges() || res.Over {
		return false
	}
	e.Admit(op.Hits)
	s.bounds[boundOf(op.table)].push(op.now, s.counters.EndLocal(e, op.rule), e.Admitted())
	return true
}

// chargeLocalState is spend for what does not fit in an entry alone.
func (s *shard) chargeLocalState(op *shardOp, e *counter.Local, res *Result) {
	st := &s.state
	s.counters.LoadLocal(e, op.rule, st)
	if op.Op == Refund || op.elsewhere == math.MaxUint64 {
		other := *op
		other.rule = op.flatRule()
		s.decidePart(&other, op.rule.Used(st, op.now), res)
		return
	}
	op.decide(st, s.bootID, &res.Decision)
	if op.charges() {
		op.rule.Trim(st, op.now)
		if until := e.Until(); !s.counters.StoreLocal(e, op.rule, st) {
			s.counts.refused++
			op.overflow(&res.Decision)
		} else {
			e.Prolong(until)
		}
	}
	scaleToWhole(op, res)
	s.decidedPart(op, res)
}

// chargeLocalSketch is spend for a key that found no place.
func (s *shard) chargeLocalSketch(op *shardOp, res *Result) {
	est := s.sketches.Estimate(op.ref())
	flat := *op
	flat.rule = op.flatRule()
	s.decidePart(&flat, est, res)
	if op.charges() {
		s.addToSketch(op, est)
		s.bounds[boundOf(op.table)].push(op.now, op.rule.End(op.rule.Index(op.now)), uint64(op.rule.Limit))
	}
}

// decidePart answers h against a part of its limit, of which charged is used up in h's table.
func (s *shard) decidePart(op *shardOp, charged uint64, res *Result) {
	st := limit.Tally{Window: op.rule.Index(op.now), Charged: limit.SaturatingAdd(charged, op.elsewhere)}
	d := &res.Decision
	if op.Op == Refund {
		s.counts.refundsDropped++
		*d = op.rule.PeekTally(st, op.now, 0)
		d.Over = false
	} else {
		op.answer(st, d)
	}
	scaleToWhole(op, res)
	s.decidedPart(op, res)
}

// scaleToWhole moves the counts of an answer by a part of the limit to where they would stand in the whole.
func scaleToWhole(op *shardOp, res *Result) {
	part, whole := op.rule.Depth(), op.Request.Rule.Depth()
	res.After = toWhole(res.After, part, whole)
	if res.Before = toWhole(res.Before, part, whole); op.Op == Read {
		res.Before = res.After - op.Hits
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
func (s *shard) refuse(op *shardOp, res *Result) {
	whole := op.Request.Rule.Depth()
	op.rule.Limit = whole
	st := limit.Tally{Window: op.rule.Index(op.now), Charged: uint64(whole)}
	res.Decision = op.rule.PeekTally(st, op.now, max(1, op.Hits))
	if op.Op == Refund {
		s.counts.refundsDropped++
		res.Over, res.After = false, res.Before
	}
	s.decidedPart(op, res)
}

func (s *shard) decidedPart(op *shardOp, res *Result) {
	res.Kind, res.Path = Decided, Fallback
	s.counts.decided[res.Authority]++
	if op.charges() && !res.Over {
		s.counts.admitted[res.Authority] += op.Hits
	}
}

// Observe learns from what the owner answered q, when another member is the owner: how much is left, for rules that
// fail closed, and that a key is over.
func (n *Node) Observe(now int64, req *Request, res *Result) {
	if res.Kind != Decided || res.Authority != Full && res.Authority != Part && res.Authority != Overflow {
		return
	}
	if req.Degraded != policy.FailClosed && n.options.DenyCache <= 0 && !res.Hot {
		return
	}
	s, hash := n.shard(req.Key)
	s.mu.Lock()
	if res.Hot {
		n.observeHot(s, s.clock(now), req, res)
	}
	op := shardOp{Request: req, now: s.clock(now), hash: hash, rule: req.Rule}
	if req.Degraded == policy.FailClosed {
		op.table = counter.TableQuota
		s.observe(&op, res)
	}
	n.updateDenyCache(s, &op, res)
	s.mu.Unlock()
}

// countAfter is the count that a leaves behind.
func (op *shardOp) countAfter(res *Result) uint64 {
	if op.Op == DryRun {
		return res.Before
	}
	return res.After
}

func (s *shard) observe(op *shardOp, res *Result) {
	t := &s.counters.Quota
	e := t.Find(op.hash, op.Key)
	if e == nil {
		if e = t.Insert(op.ref()); e == nil {
			return
		}
	}
	depth := op.rule.Depth()
	left := depth - uint32(min(op.countAfter(res), uint64(depth)))
	e.Observe(op.now, op.rule.End(op.rule.Index(op.now)), left)
}

// localTable returns the table of a degraded policy, TableShare or TableOpen.
func (s *shard) localTable(t counter.Table) *counter.LocalTable {
	if t == counter.TableOpen {
		return &s.counters.Open
	}
	return &s.counters.Share
}

func saturatingSub(a, b uint64) uint64 { return a - min(a, b) }
