package lending

import (
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner/internal/counter"
)

const (
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
	queued bool // the Leases' notices contain the key
	lift   bool // the limit is not exhausted any more
}

// grantOp is one request for a lease while it is handled.
type grantOp struct {
	*lease.GrantRequest
	from   lease.Holder
	now    int64
	charge Charge
	lent   *lentKey
	used   uint64 // hits that count against the limit
	window int64
	size   uint64 // hits that are lent
}

// LendsAny reports whether parts of any limit are lent.
func (l *Leases) LendsAny() bool { return len(l.lent) > 0 }

// Refuse counts a request for a lease that this member refuses, because it does not own the key with full authority.
func (l *Leases) Refuse() { l.stats.Refused++ }

// Grant handles a valid request for a part of the limit of a key that this member owns.
func (l *Leases) Grant(now int64, from lease.Holder, r *lease.GrantRequest, out *Outbox) {
	op := &grantOp{GrantRequest: r, from: from, now: now}
	op.charge.Ref = l.ref(r.Key, r.RingPos, r.Rule, now)
	op.charge.Domain, op.charge.Partition, op.charge.Audit = r.Domain, r.Terms.Partition, r.Terms.Audit
	if r.Terms.Slack > 0 {
		l.reconcile(op, out)
		return
	}
	if op.lent = l.lentKeyFor(op); op.lent == nil {
		l.stats.Refused++
		return
	}
	if l.creditReturned(op) {
		l.grant(op, out)
	}
}

// ref names the counter of a key that is charged by rule r.
func (l *Leases) ref(key Key, ringPos uint64, r limit.Rule, now int64) counter.Ref {
	return counter.Ref{
		Key: key, Hash: l.counters.Hash(key), RingPos: ringPos, Table: counter.TableOwned, Now: now, Rule: r, Full: r,
	}
}

// lentKeyFor returns the lentKey of op's key, which it adds if there is none. It returns nil if there are too many.
func (l *Leases) lentKeyFor(op *grantOp) *lentKey {
	lent := l.lent[op.Key]
	if lent == nil {
		if len(l.lent) >= maxLentKeys {
			return nil
		}
		if l.lent == nil {
			l.lent = map[Key]*lentKey{}
		}
		lent = &lentKey{key: op.Key, ringPos: op.RingPos, rule: op.Rule}
		l.lent[op.Key] = lent
	}
	lent.requestedAt, lent.always, lent.terms = op.now, op.Always, op.Terms
	l.learnName(op.now, op.GrantRequest)
	return lent
}

// creditReturned credits the hits that the holder returns, and sets op.used to the count after that. It returns false
// if the request is not valid.
func (l *Leases) creditReturned(op *grantOp) bool {
	c := &op.charge
	c.Entry = l.counters.Owned.Find(c.Hash, c.Key)
	l.owner.Charge(c)
	c.Entry = l.counters.Owned.Find(c.Hash, c.Key)
	if op.window = l.windowOf(c.Entry, op.Rule, op.now); op.Rule.Algorithm.Bucket() {
		op.window = op.now // of a slice, which never returns
	}
	credit, ok := op.lent.Receive(op.now, op.from, op.GrantRequest, op.window)
	if !ok {
		l.stats.Refused++
		return false
	}
	if credit > 0 && c.Entry != nil && !op.Rule.Algorithm.Bucket() {
		l.credit(c, op.window, credit)
		e := c.Entry
		l.owner.Charge(c)
		c.Entry = e
	}
	if !l.lender.config.NoHot {
		l.hot.rates.Report(op.now, hotkey.Digest(op.Key), op.from.BootID, float64(op.Demand)/1000)
		if c.Entry != nil {
			l.track(c.Entry)
		}
	}
	op.used = c.Before
	return true
}

// windowOf returns the window in which a charge at now counts.
func (l *Leases) windowOf(e *counter.Owned, r limit.Rule, now int64) int64 {
	w := r.Index(now)
	if e != nil && counter.Windowed(r) {
		if x := l.counters.Newest(e, r); x > w && r.End(x-1) <= now+int64(limit.ClockTolerance) {
			return x
		}
	}
	return w
}

// credit refunds hits of a window to the counter of c that were lent and not spent (C4).
func (l *Leases) credit(c *Charge, window int64, hits uint64) {
	refund := *c
	if refund.Hits = hits; l.owner.Refund(&refund, window) {
		l.stats.Credited += hits
	}
}

// grant lends as much as it may, and replies to the request.
func (l *Leases) grant(op *grantOp, out *Outbox) {
	r, lent, depth, used := op.Rule, op.lent, op.Rule.Depth(), op.used
	if r.Algorithm.Bucket() {
		used = max(used, refill(r))
	}
	g := lease.Grant{
		Key: op.Key, Seq: op.Seq, Window: op.window, Total: op.Have, Limit: depth, Left: lifetime(r, op.window, op.now),
	}
	if op.Window != op.window {
		g.Total = 0
	}
	size, last := uint64(0), false
	if (lent.always || l.isHot(op.Key, op.RingPos)) && l.lender.routeMode(op.RingPos) != hotkey.Never {
		g.Flags |= lease.Hot
		size, last = lent.Size(op.now, op.from.ID, op.GrantRequest, lease.Usage{Used: used, Depth: depth})
	}
	if l.names[op.Key] != nil {
		g.Flags |= lease.Named
	}
	if last {
		g.Flags |= lease.Last
	}
	if l.charge(op, size); op.size > 0 {
		g.Total = lent.Grant(op.now, op.from.ID, op.window, op.size)
	}
	if g.Used = limit.SaturatingAdd(used, op.size); g.Used >= uint64(depth) && op.size == 0 {
		g.Flags |= lease.Denied
		g.Left = l.denialTime(op.charge.Entry, r, op.now)
	}
	if op.charge.Entry != nil {
		l.updateLevel(lent, r, usage{op.window, g.Used, false})
	}
	l.auditGrant(op, op.size, g.Used, out)
	if p := (PendingGrant{op.from.ID, g}); op.size == 0 || l.owner.AwaitReplication(&op.charge, &p) {
		p.Send(out)
	}
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
func (l *Leases) denialTime(e *counter.Owned, r limit.Rule, now int64) time.Duration {
	if e == nil {
		return 0
	}
	l.counters.Load(e, r, &l.state)
	left := r.NextFit(&l.state, now)
	if r.Algorithm != limit.FixedWindow && left > 0 {
		left = max(left, leastDeny)
	}
	return left
}

// charge charges size hits (C1), and sets op.size to size, or to 0 if that is not possible.
func (l *Leases) charge(op *grantOp, size uint64) {
	if size == 0 {
		return
	}
	c := &op.charge
	if c.Entry == nil {
		if c.Entry = l.counters.Insert(c.Ref, false, &l.state); c.Entry == nil {
			return // a sketch never lends
		}
	}
	c.Hits = size
	if op.Rule.Algorithm.Bucket() {
		c.Now += int64(lease.Slice)
	}
	if l.owner.Charge(c); c.Overflow || c.Over {
		l.stats.Violations[lease.C1]++
		return
	}
	l.stats.Lent += size
	op.size = size
}

// tickLent reclaims the hits of silent and of failed holders, as the rules require, and drops lent keys without
// requests.
func (l *Leases) tickLent(now int64) {
	for _, key := range counter.SortedKeys(l.lent) {
		lent := l.lent[key]
		l.stats.Violations.Add(lent.TakeViolations())
		if now-lent.requestedAt > lentKeyLife {
			delete(l.lent, key)
			continue
		}
		if !lent.rule.Algorithm.Bucket() {
			l.reclaim(now, key, lent)
		}
	}
}

// reclaim refunds the hits that holders of lent's key have lost. A member that is cut off does not take other members
// for failed: it reclaims nothing for ReclaimCrash while the members that it sees are not a whole cluster.
func (l *Leases) reclaim(now int64, key Key, lent *lentKey) {
	if !lent.terms.Reclaim && !lent.terms.ReclaimCrash {
		return
	}
	e := l.counters.Find(key)
	if e == nil {
		return
	}
	w := l.windowOf(e, lent.rule, now)
	hits := lent.Reclaim(now, w)
	if extent, _, _ := l.view.Extent(now, policy.PartShare); extent == handoff.ExtentFull && l.owns(key, lent.ringPos) {
		hits = limit.SaturatingAdd(hits, lent.ReclaimFailed(w, l.lender.isLive))
	}
	if hits > 0 {
		l.credit(&Charge{Ref: l.ref(key, lent.ringPos, lent.rule, now), Entry: e}, w, hits)
		l.stats.Reclaimed += hits
		if lent.terms.Audit {
			l.counters.Load(e, lent.rule, &l.state)
			used := lent.rule.Used(&l.state, now)
			l.AddAudit(Audit{Key: key, Kind: AuditReclaim, Hits: hits, Used: used, Limit: lent.rule.Depth(), At: now})
		}
		l.owner.RecordReclaim(now, l.counters.End(e, lent.rule), hits)
	}
}

// DropUnowned drops the lent keys that this member does not own any more (C4).
func (l *Leases) DropUnowned() {
	for key, lent := range l.lent {
		if !l.owns(key, lent.ringPos) {
			l.stats.Violations.Add(lent.TakeViolations())
			delete(l.lent, key)
		}
	}
}

// owns reports whether this member owns key.
func (l *Leases) owns(key Key, ringPos uint64) bool {
	return l.view.Ownership(ringPos, l.counters.Find(key).OwnedEpoch(ringPos)).State == handoff.OwnedHere
}
