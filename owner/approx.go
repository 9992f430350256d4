package owner

import (
	"slices"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner/internal/counter"
)

// An approximate rule lets every member decide by its own copy of the counter. A member may admit at most S hits that
// it has not reported to the owner; S is the rule's slack divided by the number of members. It charges these hits to
// its own slot, which it also uses for its local share. A report contains that slot, which only increases, and the
// reply contains the slots of all members. So reports may be lost or duplicated, and the owner may change.
//
// While the owner's count is below the limit L, all N members together have admitted less than L + N x S hits. A
// member that reports after that receives the count, and admits nothing more. So the sum is below L + N x S for any
// clocks and any order of messages.

const (
	defaultSync      = 2 * time.Second
	defaultWatermark = 20 // percent
	reportAgain      = int64(50 * time.Millisecond)
	reportTail       = int64(5 * time.Millisecond) // the least time between reports when little is left
	reportSlowest    = 10 * reportAgain
	driftLife        = int64(10 * time.Second)
)

// drift is the difference between the hits of one key that this member has admitted and those that it has reported.
type drift struct {
	unsynced  uint64 // hits admitted here that the owner may not have received
	inFlight  uint64 // of these, hits in the pending report
	sentAt    int64  // when the pending report was sent
	reporting bool   // a report is pending
	seq       uint64
	tries     int
	since     uint64 // hits admitted since the last reply
	syncedAt  int64  // when the last reply arrived
	askedAt   int64  // when the last request arrived
	nearLimit bool   // little is left, and half of the hits that may be admitted before the next report is spent
}

// idle reports whether the key can be dropped.
func (d *drift) idle(now int64) bool { return d.unsynced == 0 && now-d.askedAt > driftLife }

// slack returns S, the hits that this member may admit before it has reported them.
func (s *shard) slack(held *heldLease) uint64 {
	return uint64(held.Terms.Slack) / uint64(s.view.NRef())
}

// approximate decides op by this member's copy of the counter. It returns false if the owner has to decide.
func (n *Node) approximate(s *shard, held *heldLease, op *shardOp, res *Result) bool {
	req, now := op.Request, op.now
	held.drift.askedAt = now
	if s.slack(held) == 0 {
		return false
	}
	e := s.counters.Owned.Find(op.hash, req.Key)
	s.state.TAT, s.state.Slots = 0, s.state.Slots[:0]
	if e != nil && !e.Expired(now) {
		s.counters.Load(e, req.Rule, &s.state)
	}
	res.Decision = req.Rule.Peek(&s.state, now, req.Hits)
	switch {
	case res.Over:
		res.Kind, res.Path, res.Authority, res.Hot = Decided, Leased, Cached, true
		s.counts.Lease.LocalDenied++
	case !s.allowsDrift(held, req, res) || !n.admitDrift(s, held, op, e):
		*res = Result{}
	default:
		res.Kind, res.Path, res.Authority, res.Hot = Decided, Leased, Full, true
		s.counts.Lease.Approximated += req.Hits
	}
	if n.reportDue(s, held, now) {
		n.queueLeaseRequest(s, held, res.Kind != Decided)
	}
	if res.Kind != Decided || res.Path != Leased {
		return false
	}
	s.counts.Decided[res.Authority]++
	return true
}

// allowsDrift reports whether req, decided as res, may be admitted before it is reported.
func (s *shard) allowsDrift(held *heldLease, req *Request, res *Result) bool {
	d, room, watermark := &held.drift, s.slack(held), held.Terms.Watermark
	if watermark == 0 {
		watermark = defaultWatermark
	}
	depth := uint64(req.Rule.Depth())
	left := depth - min(depth, res.Before)
	d.nearLimit = false
	if left*100 <= depth*uint64(watermark) {
		most := min(room, left/(2*uint64(s.view.NRef())))
		if d.nearLimit = d.since+req.Hits > most/2; d.since+req.Hits > most {
			return false
		}
	}
	return d.unsynced+req.Hits <= room
}

// admitDrift charges op to this member's own slot. It returns false if there is no room.
func (n *Node) admitDrift(s *shard, held *heldLease, op *shardOp, e *counter.Owned) bool {
	op.table, op.rule = counter.TableOwned, op.Request.Rule
	if e == nil {
		if e = s.insert(op, true); e == nil {
			return false
		}
	}
	if !s.chargeShare(op, e, op.Hits) {
		return false
	}
	held.keepUntilReported(e, op.now)
	held.drift.unsynced += op.Hits
	held.drift.since += op.Hits
	return true
}

// keepUntilReported keeps a bucket that has drained here until its charges are reported: at the owner it may be full.
func (held *heldLease) keepUntilReported(e *counter.Owned, now int64) {
	if e != nil && held.rule.Algorithm.Bucket() {
		e.Prolong(now + driftLife)
	}
}

// reportDue reports whether the charges of held are to be reported now.
func (n *Node) reportDue(s *shard, held *heldLease, now int64) bool {
	d := &held.drift
	if d.reporting {
		return now-d.sentAt >= min(reportSlowest, reportAgain<<min(d.tries, 4))
	}
	every := held.Terms.Sync
	if every <= 0 {
		every = defaultSync
	}
	if d.nearLimit && now-d.syncedAt >= reportTail {
		return true
	}
	return d.unsynced > s.slack(held)/2 || now-d.syncedAt >= int64(every) && (d.unsynced > 0 || d.askedAt > d.syncedAt)
}

// buildReport returns a report of the charges of held.
func (n *Node) buildReport(s *shard, held *heldLease, now int64) lease.GrantRequest {
	d := &held.drift
	if d.reporting {
		d.tries++
		s.counts.Lease.Timeouts++
	}
	d.seq = max(d.seq+1, uint64(max(0, now)))
	d.reporting, d.sentAt, d.inFlight = true, now, d.unsynced
	r := lease.GrantRequest{Rule: held.rule, Terms: held.Terms, Seq: d.seq, Left: d.unsynced}
	_, hash := n.shard(held.key)
	if e := s.counters.Owned.Find(hash, held.key); e != nil && !e.Expired(now) {
		s.counters.Load(e, held.rule, &s.state)
		r.State.TAT = s.state.TAT
		for _, f := range s.state.Slots {
			if f.Writer == s.share() {
				r.State.Slots = append(r.State.Slots, f)
			}
		}
	}
	return r
}

// acceptReportReply processes the reply to a report.
func (n *Node) acceptReportReply(s *shard, held *heldLease, now int64, g *lease.Grant) {
	d := &held.drift
	if !d.reporting || g.Seq != d.seq {
		return
	}
	d.reporting, d.tries, d.syncedAt, d.since = false, 0, now, d.unsynced-d.inFlight
	d.unsynced -= d.inFlight
	d.inFlight = 0
	held.named = g.Flags&lease.Named != 0
	s.counts.Lease.Reconciled++
	n.mergeRecord(s, now, handoff.CounterRecord{
		Key: held.key, RingPos: held.ringPos, Domain: held.domain, Rule: held.rule, State: g.State,
	})
	if d.unsynced > 0 {
		_, hash := n.shard(held.key)
		held.keepUntilReported(s.counters.Owned.Find(hash, held.key), now)
	}
	if n.reportDue(s, held, now) {
		n.queueLeaseRequest(s, held, false)
	}
}

// mergeRecord merges c if the number of its slots is valid.
func (n *Node) mergeRecord(s *shard, now int64, c handoff.CounterRecord) {
	if len(c.State.Slots) > 0 && len(c.State.Slots) <= maxSlots {
		_, hash := n.shard(c.Key)
		n.mergeOne(s, hash, now, &c)
	}
}

// reconcile merges a member's report, and replies with all that is recorded of the key.
func (n *Node) reconcile(s *shard, l *leaseOp, fx *Ready) {
	op, share := &l.op, l.bootID&^1
	in := l.State
	in.Slots = slices.DeleteFunc(slices.Clone(in.Slots), func(f limit.Slot) bool { return f.Writer != share })
	n.mergeRecord(s, op.now, handoff.CounterRecord{
		Key: op.Key, RingPos: op.RingPos, Domain: op.Domain, Rule: op.rule, State: in,
	})
	s.counts.Lease.Reconciled++
	var res Result
	e, _ := n.charge(s, op, s.counters.Owned.Find(op.hash, op.Key), &res)
	g := lease.Grant{
		Key: op.Key, Seq: l.Seq, Window: s.windowOf(e, op.rule, op.now), Used: res.Before, Limit: op.rule.Depth(),
		Flags: lease.Hot,
	}
	s.learnName(op.Key, l.Name, &l.Terms)
	if s.names[op.Key] != nil {
		g.Flags |= lease.Named
	}
	if e != nil {
		s.counters.Load(e, op.rule, &s.state)
		g.State = limit.State{TAT: s.state.TAT, Slots: slices.Clone(s.state.Slots)}
	}
	s.audit(l, l.Left, g.Used, fx)
	(&pendingGrant{l.from, g}).send(fx)
}
