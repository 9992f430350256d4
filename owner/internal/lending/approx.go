package lending

import (
	"slices"
	"time"

	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/protocol"
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
	defaultSync   = 2 * time.Second
	taperBelow    = 20 // percent of the limit; without a watermark, members report more often below it
	reportAgain   = int64(50 * time.Millisecond)
	reportTail    = int64(5 * time.Millisecond) // the least time between reports when little is left
	reportSlowest = 10 * reportAgain
	driftLife     = int64(10 * time.Second)
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
	nearLimit bool   // the next report is due soon: little is left, or a watermark does not allow more hits before it
	// atWatermark reports whether the rule's watermark has made the owner decide the last request.
	atWatermark bool
}

// idle reports whether the key can be dropped.
func (d *drift) idle(now int64) bool { return d.unsynced == 0 && now-d.askedAt > driftLife }

// slack returns S, the hits that this member may admit before it has reported them.
func (l *Leases) slack(held *heldLease) uint64 {
	return uint64(held.Terms.Slack) / uint64(l.view.NRef())
}

// approximate decides r by this member's copy of the counter. The result is lease.Unknown if the owner has to decide.
func (l *Leases) approximate(held *heldLease, r *Spend) (d limit.Decision, result lease.SpendResult) {
	held.drift.askedAt = r.Now
	if l.slack(held) == 0 {
		return d, lease.Unknown
	}
	e := l.counters.Owned.Find(r.Hash, r.Key)
	l.state.TAT, l.state.Slots = 0, l.state.Slots[:0]
	if e != nil && !e.Expired(r.Now) {
		l.counters.Load(e, r.Rule, &l.state)
	}
	d = r.Rule.Peek(&l.state, r.Now, r.Hits)
	switch {
	case d.Over:
		result = lease.Refused
		l.stats.LocalDenied++
	case l.allowsDrift(held, r, d.Before) && l.admitDrift(held, r, e):
		result = lease.Admitted
		l.stats.Approximated += r.Hits
	default:
		result = lease.Unknown
	}
	if l.reportDue(held, r.Now) {
		l.queueRequest(held, held.drift.atWatermark)
	}
	return d, result
}

// allowsDrift reports whether r may be admitted before it is reported; used is the count before it. If a watermark does
// not allow it, this member reports at once what it has admitted.
func (l *Leases) allowsDrift(held *heldLease, r *Spend, used uint64) bool {
	d, room, terms := &held.drift, l.slack(held), &held.Terms
	depth := uint64(r.Rule.Depth())
	left := depth - min(depth, used)
	d.nearLimit, d.atWatermark = false, false
	switch {
	case terms.Watermark > 0 && isBelow(left, terms.Watermark, depth),
		terms.LocalWatermark > 0 && isBelow(room-min(room, d.unsynced), terms.LocalWatermark, room):
		d.nearLimit, d.atWatermark = d.unsynced > 0, true
		return false
	case terms.Watermark == 0 && isBelow(left, taperBelow, depth):
		most := min(room, left/(2*uint64(l.view.NRef())))
		if d.nearLimit = d.since+r.Hits > most/2; d.since+r.Hits > most {
			return false
		}
	}
	return d.unsynced+r.Hits <= room
}

// isBelow reports whether left is at most the given percentage of all.
func isBelow(left uint64, percent uint8, all uint64) bool { return left*100 <= all*uint64(percent) }

// admitDrift charges r to this member's own slot in e, or in a counter that it adds. It returns false if there is no
// room.
func (l *Leases) admitDrift(held *heldLease, r *Spend, e *counter.Owned) bool {
	if e == nil {
		if e = l.counters.Insert(r.Ref, true, &l.state); e == nil {
			return false
		}
		l.counters.SetVolatile(e, true)
	}
	if !l.counters.ChargeShare(r.Ref, e, r.Hits, &l.state) {
		return false
	}
	held.keepUntilReported(e, r.Now)
	held.drift.unsynced += r.Hits
	held.drift.since += r.Hits
	return true
}

// keepUntilReported keeps a bucket that has drained here until its charges are reported: at the owner it may be full.
func (held *heldLease) keepUntilReported(e *counter.Owned, now int64) {
	if e != nil && held.rule.Algorithm.Bucket() {
		e.Prolong(now + driftLife)
	}
}

// reportDue reports whether the charges of held are to be reported now.
func (l *Leases) reportDue(held *heldLease, now int64) bool {
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
	return d.unsynced > l.slack(held)/2 || now-d.syncedAt >= int64(every) && (d.unsynced > 0 || d.askedAt > d.syncedAt)
}

// buildReport returns a report of the charges of held.
func (l *Leases) buildReport(held *heldLease, now int64) lease.GrantRequest {
	d := &held.drift
	if d.reporting {
		d.tries++
		l.stats.Timeouts++
	}
	d.seq = max(d.seq+1, uint64(max(0, now)))
	d.reporting, d.sentAt, d.inFlight = true, now, d.unsynced
	r := lease.GrantRequest{Rule: held.rule, Terms: held.Terms, Seq: d.seq, Left: d.unsynced}
	if e := l.counters.Find(held.key); e != nil && !e.Expired(now) {
		l.counters.Load(e, held.rule, &l.state)
		r.State.TAT = l.state.TAT
		for _, f := range l.state.Slots {
			if f.Writer == l.lender.share() {
				r.State.Slots = append(r.State.Slots, f)
			}
		}
	}
	return r
}

// acceptReportReply processes the reply to a report.
func (l *Leases) acceptReportReply(held *heldLease, now int64, g *lease.Grant) {
	d := &held.drift
	if !d.reporting || g.Seq != d.seq {
		return
	}
	d.reporting, d.tries, d.syncedAt, d.since = false, 0, now, d.unsynced-d.inFlight
	d.unsynced -= d.inFlight
	d.inFlight = 0
	if d.atWatermark {
		d.nearLimit = d.unsynced > 0
	}
	held.named = g.Flags&lease.Named != 0
	l.stats.Reconciled++
	l.owner.Merge(now, &protocol.CounterRecord{
		Key: held.key, RingPos: held.ringPos, Domain: held.domain, Rule: held.rule, Volatile: true, State: g.State,
	})
	if d.unsynced > 0 {
		held.keepUntilReported(l.counters.Find(held.key), now)
	}
	if l.reportDue(held, now) {
		l.queueRequest(held, false)
	}
}

// reconcile merges a member's report, and replies with all that is recorded of the key.
func (l *Leases) reconcile(op *grantOp, out *Outbox) {
	share, c := op.from.BootID&^1, &op.charge
	in := op.State
	in.Slots = slices.DeleteFunc(slices.Clone(in.Slots), func(f limit.Slot) bool { return f.Writer != share })
	l.owner.Merge(op.now, &protocol.CounterRecord{
		Key: op.Key, RingPos: op.RingPos, Domain: op.Domain, Rule: op.Rule, Volatile: true, State: in,
	})
	l.stats.Reconciled++
	c.Entry = l.counters.Owned.Find(c.Hash, c.Key)
	l.owner.Charge(c)
	if c.Entry != nil && !l.counters.SetAudited(c.Entry, op.Terms.Audit) {
		l.LoseAudit()
	}
	g := lease.Grant{
		Key: op.Key, Seq: op.Seq, Window: l.windowOf(c.Entry, op.Rule, op.now), Used: c.Before, Limit: op.Rule.Depth(),
		Flags: lease.Hot,
	}
	l.learnName(op.now, op.GrantRequest)
	if l.names[op.Key] != nil {
		g.Flags |= lease.Named
	}
	if c.Entry != nil {
		l.counters.Load(c.Entry, op.Rule, &l.state)
		g.State = limit.State{TAT: l.state.TAT, Slots: slices.Clone(l.state.Slots)}
	}
	l.auditGrant(op, op.Left, g.Used, out)
	(&PendingGrant{op.from.ID, g}).Send(out)
}
