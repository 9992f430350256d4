package owner

import (
	"math"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/owner/internal/writeback"
)

// Degrade decides req by its rule's degraded policy, for when the owner cannot be reached in time. Refunds are dropped
// and counted: only an owner can refund hits, and only an owner can settle a claim. A Reserve that is admitted from the
// local share makes a claim, which the owner gets with the charge; with fail_open it makes none.
//
// Before and After of the decision include the hits that the policy withholds from this member, so that After exceeds
// the rule's limit exactly when Over, and Remaining is the number of hits that this member may still admit.
func (n *Node) Degrade(now int64, req *Request) Result {
	if req.Op > Reserve {
		return Result{Authority: Shed}
	}
	var res Result
	s, hash := n.shard(req.Key)
	op := shardOp{Request: req, now: now, hash: hash}
	s.mu.Lock()
	switch {
	case req.Federation != nil:
		n.decideUnowned(s, &op, &res)
	case req.Mechanism == policy.Static:
		n.decideStatic(s, &op, &res)
	case req.Degraded == policy.FailOpen:
		n.decideOpen(s, &op, &res)
	case req.Degraded == policy.FailClosed:
		n.decideClosed(s, &op, &res)
	default:
		n.decideFromShare(s, &op, &res)
	}
	s.mu.Unlock()
	return res
}

// Shed refuses req, for when its owner is alive but cannot decide all its requests in time: a local share in addition
// to what the owner admits would exceed the limit. Rules that fail open are decided by their policy, and static rules
// by this member's share.
func (n *Node) Shed(now int64, req *Request) Result {
	if req.Degraded == policy.FailOpen || req.Mechanism == policy.Static {
		return n.Degrade(now, req)
	}
	res := Result{Authority: Shed}
	if req.Op > Reserve {
		return res
	}
	s, hash := n.shard(req.Key)
	s.mu.Lock()
	s.refuse(&shardOp{Request: req, now: s.clock(now), hash: hash, rule: req.Rule}, &res)
	s.mu.Unlock()
	return res
}

// decideFromShare decides op from this member's local share of the limit. The share includes this member's own charges
// as the owner. The limit includes all recorded charges, so a former owner or a successor with a spent counter admits
// nothing. Admitted hits are reported to the owner later.
func (n *Node) decideFromShare(s *shard, op *shardOp, res *Result) {
	op.now, op.table, op.rule = s.clock(op.now), counter.TableShare, s.localRule(op.Request.Rule, op.RingPos)
	op.elsewhere = s.usedAgainstShare(op)
	res.Authority = Share
	if s.chargeLocal(op, res) {
		n.reportLater(s, op)
	}
}

// localRule returns rule r with this member's local share of its limit and burst.
func (s *shard) localRule(r limit.Rule, ringPos uint64) limit.Rule {
	share, burst := s.view.LocalShare(r.Limit, ringPos), s.view.LocalShare(r.Burst, ringPos)
	r.Limit, r.Burst = partialLimits(r, share, burst)
	return r
}

// decideOpen admits up to the rule's local cap in a window, whatever other members admit; without a cap, this member's
// local share of the limit, and at least one hit.
func (n *Node) decideOpen(s *shard, op *shardOp, res *Result) {
	op.now, op.table, op.rule = s.clock(op.now), counter.TableOpen, op.Request.Rule
	if op.rule.Limit, op.rule.Burst = op.LocalCap, 0; op.LocalCap == 0 {
		if op.rule = s.localRule(op.Request.Rule, op.RingPos); op.rule.Limit == 0 && op.Request.Rule.Limit > 0 {
			op.rule.Limit, op.rule.Burst = 1, 0
		}
	}
	res.Authority = Open
	s.chargeLocal(op, res)
}

// usedAgainstShare returns the usage already recorded for op's key that must be deducted from the local share: this
// member's own charges, or as much of all charges as the rest of the limit has no room for.
func (s *shard) usedAgainstShare(op *shardOp) uint64 {
	e := s.counters.Owned.Find(op.hash, op.Key)
	if e == nil {
		return s.estimateIn(op, counter.TableOwned)
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
	w := s.counters.Newest(e, r)
	if r.End(w-1) > op.now+int64(limit.ClockTolerance) { // the newest window was charged ahead
		return s.usedInWindow(op, e, r.Index(op.now))
	}
	t := s.counters.Tally(e, w)
	all, mine := t.Count(), s.counters.Inline(e)
	if charged, refunded, found := s.counters.Recorded(e, t.Window, s.bootID); found {
		mine = saturatingSub(limit.SaturatingAdd(mine, charged), refunded)
	}
	if charged, refunded, found := s.counters.Recorded(e, t.Window, s.share()); found {
		all = saturatingSub(all, saturatingSub(charged, refunded)) // the share has counted these, too
	}
	return max(mine, saturatingSub(all, uint64(r.Limit-op.rule.Limit)))
}

// usedInWindow is usedAgainstShare for a window of e that is not its newest.
func (s *shard) usedInWindow(op *shardOp, e *counter.Owned, w int64) uint64 {
	r, mine, all := op.Request.Rule, uint64(0), uint64(0)
	s.counters.Load(e, r, &s.state)
	for _, f := range s.state.Slots {
		n := saturatingSub(f.Charged, f.Refunded)
		switch {
		case f.At != w || f.Writer == s.share(): // the share has counted these, too
			continue
		case f.Writer == s.bootID:
			mine += n
		}
		all = limit.SaturatingAdd(all, n)
	}
	return max(mine, saturatingSub(all, uint64(r.Limit-op.rule.Limit)))
}

// unreportedShare returns the hits of op's key that were admitted from the local share and are not in TableOwned.
func (s *shard) unreportedShare(op *shardOp) uint64 {
	if e := s.counters.Share.Find(op.hash, op.Key); e != nil {
		if s.counters.EndLocal(e, op.Request.Rule) <= op.now {
			return 0
		}
		return e.Unreported()
	}
	return s.estimateIn(op, counter.TableShare)
}

// estimateIn returns what sketches have counted of op's key in place of a counter in table t.
func (s *shard) estimateIn(op *shardOp, t counter.Table) uint64 {
	other := *op
	other.table = t
	return s.sketches.Estimate(other.ref())
}

// reportLater charges op, which was admitted from the local share, in TableOwned, so that it is replicated to the key's
// owner.
func (n *Node) reportLater(s *shard, op *shardOp) {
	e := s.counters.Owned.Find(op.hash, op.Key)
	if e == nil {
		other := *op
		other.table, other.rule = counter.TableOwned, op.Request.Rule
		e = s.insert(&other, true)
	}
	if e != nil && s.chargeShare(op, e, op.Hits) {
		if n.journals(op.Request) {
			s.counters.SetVolatile(e, false)
			n.trackUnwritten(s, e, op.Request.Rule, &writeback.Hits{Now: op.now, N: op.Hits})
		}
		if op.Op == Reserve {
			s.claimShare(op, e)
		}
		if n.trackUnreplicated(s, e, op.Request.Rule, op.Hits) != nil {
			return
		}
	}
	s.counts.ShareUnreported += op.Hits
	if x := s.counters.Share.Find(op.hash, op.Key); x != nil {
		x.AddUnreported(op.Hits)
	}
}

// chargeLocal decides op by its counter in TableShare or TableOpen. It reports whether op was charged and admitted.
func (s *shard) chargeLocal(op *shardOp, res *Result) bool {
	e := s.localEntry(op)
	switch {
	case e != nil && op.rule.Algorithm != limit.FixedWindow:
		s.chargeLocalState(op, e, res)
	case e != nil:
		if s.decidePart(op, e.Charged(), res); op.charges() {
			e.Charge(op.Hits)
		}
	default:
		s.chargeLocalSketch(op, res)
		return false // what a sketch counts is not reported to the owner
	}
	if !op.charges() || res.Over {
		return false
	}
	e.Admit(op.Hits)
	s.recordLocalBound(op, s.counters.EndLocal(e, op.rule), e.Admitted())
	return true
}

// localEntry returns the counter of op's key in TableShare or TableOpen, of the present window. If there is none and op
// charges hits, it adds one. It returns nil if there is no room.
func (s *shard) localEntry(op *shardOp) *counter.Local {
	e := s.localTable(op.table).Find(op.hash, op.Key)
	if e != nil && s.counters.EndLocal(e, op.rule) <= op.now {
		s.counters.RenewLocal(e, op.rule, op.now)
	}
	if e == nil && op.charges() {
		e = s.counters.InsertLocal(op.ref())
	}
	return e
}

// chargeLocalState is chargeLocal for rules without fixed windows.
func (s *shard) chargeLocalState(op *shardOp, e *counter.Local, res *Result) {
	st := &s.state
	s.counters.LoadLocal(e, op.rule, st)
	if op.Op == Refund || op.elsewhere == math.MaxUint64 {
		other := *op
		other.rule = op.flatRule()
		s.decidePart(&other, op.rule.Used(st, op.now), res)
		return
	}
	op.decideState(st, s.bootID, &res.Decision)
	if op.charges() {
		op.rule.Trim(st, op.now)
		if until := e.Until(); !s.counters.StoreLocal(e, op.rule, st) {
			s.counts.Refused++
			op.overflow(&res.Decision)
		} else {
			e.Prolong(until)
		}
	}
	scaleToFull(op, res)
	s.decidedPart(op, res)
}

// chargeLocalSketch is chargeLocal for a key without room in the table.
func (s *shard) chargeLocalSketch(op *shardOp, res *Result) {
	est := s.sketches.Estimate(op.ref())
	flat := *op
	flat.rule = op.flatRule()
	s.decidePart(&flat, est, res)
	if op.charges() {
		s.addToSketch(op, est)
		s.recordLocalBound(op, op.rule.End(op.rule.Index(op.now)), uint64(op.rule.Limit))
	}
}

// decidePart decides op by a part of its limit, of which op's table has charged hits.
func (s *shard) decidePart(op *shardOp, charged uint64, res *Result) {
	st := limit.Tally{Window: op.rule.Index(op.now), Charged: limit.SaturatingAdd(charged, op.elsewhere)}
	d := &res.Decision
	if op.Op == Refund {
		s.counts.RefundsDropped++
		*d = op.rule.PeekTally(st, op.now, 0)
		d.Over = false
	} else {
		op.decideTally(st, d)
	}
	scaleToFull(op, res)
	s.decidedPart(op, res)
}

// scaleToFull adds the difference between the limit and op's part of it to the counts of res.
func scaleToFull(op *shardOp, res *Result) {
	part, full := op.rule.Depth(), op.Request.Rule.Depth()
	res.After = toFull(res.After, part, full)
	if res.Before = toFull(res.Before, part, full); op.Op == Read {
		res.Before = res.After - op.Hits
	}
}

// toFull adds full - part to x.
func toFull(x uint64, part, full uint32) uint64 {
	if part <= full {
		return limit.SaturatingAdd(x, uint64(full-part))
	}
	if x == math.MaxUint64 {
		return x
	}
	return x - min(x, uint64(part-full))
}

// refuse refuses op, whose count is not known.
func (s *shard) refuse(op *shardOp, res *Result) {
	depth := op.Request.Rule.Depth()
	op.rule.Limit = depth
	st := limit.Tally{Window: op.rule.Index(op.now), Charged: uint64(depth)}
	res.Decision = op.rule.PeekTally(st, op.now, max(1, op.Hits))
	if op.Op == Refund {
		s.counts.RefundsDropped++
		res.Over, res.After = false, res.Before
	}
	s.decidedPart(op, res)
}

// decidedPart completes res, a decision by a degraded policy or a static rule, and counts it.
func (s *shard) decidedPart(op *shardOp, res *Result) {
	res.Kind, res.Path = Decided, Fallback
	s.counts.Decided[res.Authority]++
	if res.Authority == Static {
		res.Path = Local
		return
	}
	if op.charges() && !res.Over {
		s.counts.Admitted[res.Authority] += op.Hits
	}
	if op.Audit && op.charges() {
		s.auditDegraded(op, res)
	}
}

// Observe records what another member has decided as the owner: the hits that remain, for rules that fail closed, and
// that a key is above its limit.
func (n *Node) Observe(now int64, req *Request, res *Result) {
	if res.Kind != Decided || res.Authority != Full && res.Authority != Part && res.Authority != Overflow {
		return
	}
	if req.Degraded != policy.FailClosed && n.options.DenyCache <= 0 && !res.Hot {
		return
	}
	s, hash := n.shard(req.Key)
	s.mu.Lock()
	op := shardOp{Request: req, now: s.clock(now), hash: hash, rule: req.Rule}
	if res.Hot {
		s.observeHot(&op, res)
	}
	if req.Degraded == policy.FailClosed {
		op.table = counter.TableQuota
		n.observe(s, &op, res)
	}
	n.updateDenyCache(s, &op, res)
	s.mu.Unlock()
}

// countAfter returns the count after a decision.
func (op *shardOp) countAfter(res *Result) uint64 {
	if op.Op == DryRun {
		return res.Before
	}
	return res.After
}

// localTable returns the table of a degraded policy, TableShare or TableOpen.
func (s *shard) localTable(t counter.Table) *counter.LocalTable {
	if t == counter.TableOpen {
		return &s.counters.Open
	}
	return &s.counters.Share
}

// saturatingSub returns a - b, at least 0.
func saturatingSub(a, b uint64) uint64 { return a - min(a, b) }
