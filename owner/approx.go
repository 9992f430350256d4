package owner

import (
	"slices"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner/internal/counter"
)

// A rule that says approximate lets every member admit by its own copy of the counter, S hits of which the owner does not
// know yet at most, S being the rule's slack divided by the members. What a member admits it charges to its own slot, the
// one it uses under SHARE, too; a report sends that slot, which only grows, and brings back everybody's. So reports may be
// lost and doubled, and the owner may change. As long as the owner's count is below the limit, everybody together has
// admitted less than the limit and N x S; who reports after that learns it and admits nothing more. So the sum is below
// L + N x S, whatever the clocks and the order of messages.

const (
	defaultSync      = 2 * time.Second
	defaultWatermark = 20 // percent
	reportAgain      = int64(50 * time.Millisecond)
	reportTail       = int64(5 * time.Millisecond) // the least between reports when little is left
	reportSlowest    = 10 * reportAgain
	driftLife        = int64(10 * time.Second)
)

// drift is how far this member's admissions of one key are ahead of what the owner knows.
type drift struct {
	unsynced  uint64 // hits admitted here that the owner may not know of
	inFlight  uint64 // of these, hits that are in the report under way
	sentAt    int64  // when that was
	reporting bool   // a report is under way
	seq       uint64
	tries     int
	since     uint64 // hits admitted since the last answer
	syncedAt  int64  // when the last answer came
	askedAt   int64  // when the last question came
	nearLimit bool   // little is left, and half of what may be admitted before the next report is used up
}

// idle says that the key needs no memory here.
func (d *drift) idle(now int64) bool { return d.unsynced == 0 && now-d.askedAt > driftLife }

// slack is S: the hits that this member may admit before the owner knows of them.
func (s *shard) slack(x *heldLease) uint64 { return uint64(x.Terms.Slack) / uint64(s.view.NRef()) }

// approximate answers q from this member's copy of the counter; false when the owner is to be asked.
func (n *Node) approximate(s *shard, x *heldLease, now int64, q *Request, a *Result) bool {
	d, room := &x.drift, s.slack(x)
	d.askedAt = now
	if room == 0 {
		return false
	}
	_, h := n.shard(q.Key)
	e := s.counters.Owned.Find(h, q.Key)
	s.state.TAT, s.state.Slots = 0, s.state.Slots[:0]
	if e != nil && !e.Expired(now) {
		s.counters.Load(e, q.Rule, &s.state)
	}
	a.Decision = q.Rule.Peek(&s.state, now, q.Hits)
	switch {
	case a.Over:
		a.Kind, a.Path, a.Authority, a.Hot = Decided, Leased, Cached, true
		s.counts.lease.LocalDenied++
	case !d.allows(q, a, room, x.Terms.Watermark, uint64(s.view.NRef())) || !n.admitDrift(s, x, h, now, q, e):
		*a = Result{}
	default:
		a.Kind, a.Path, a.Authority, a.Hot = Decided, Leased, Full, true
		s.counts.lease.Approximated += q.Hits
	}
	if n.reportDue(s, x, now) {
		n.queueLeaseRequest(s, x, a.Kind != Decided)
	}
	if a.Kind != Decided || a.Path != Leased {
		return false
	}
	s.counts.decided[a.Authority]++
	return true
}

// allows says whether q, answered with a, may be admitted unseen.
func (d *drift) allows(q *Request, a *Result, room uint64, watermark uint8, members uint64) bool {
	if watermark == 0 {
		watermark = defaultWatermark
	}
	depth := uint64(q.Rule.Depth())
	left := depth - min(depth, a.Before)
	d.nearLimit = false
	if left*100 <= depth*uint64(watermark) {
		most := min(room, left/(2*members))
		if d.nearLimit = d.since+q.Hits > most/2; d.since+q.Hits > most {
			return false
		}
	}
	return d.unsynced+q.Hits <= room
}

// admitDrift charges q to this member's own slot; false when there is no room for it.
func (n *Node) admitDrift(s *shard, x *heldLease, hash uint64, now int64, q *Request, e *counter.Owned) bool {
	h := shardOp{Request: q, now: now, hash: hash, table: counter.TableOwned, rule: q.Rule}
	if e == nil {
		if e = s.insert(&h, true); e == nil {
			return false
		}
	}
	if !s.admit(&h, e, q.Rule, q.Hits) {
		return false
	}
	x.linger(e, now)
	x.drift.unsynced += q.Hits
	x.drift.since += q.Hits
	return true
}

// linger keeps a bucket that has drained here until the owner knows what was charged: there it may be full.
func (x *heldLease) linger(e *counter.Owned, now int64) {
	if e != nil && x.rule.Algorithm.Bucket() {
		e.Prolong(now + driftLife)
	}
}

// reportDue says that x is to be reported now.
func (n *Node) reportDue(s *shard, x *heldLease, now int64) bool {
	d := &x.drift
	if d.reporting {
		return now-d.sentAt >= min(reportSlowest, reportAgain<<min(d.tries, 4))
	}
	every := x.Terms.Sync
	if every <= 0 {
		every = defaultSync
	}
	if d.nearLimit && now-d.syncedAt >= reportTail {
		return true
	}
	return d.unsynced > s.slack(x)/2 || now-d.syncedAt >= int64(every) && (d.unsynced > 0 || d.askedAt > d.syncedAt)
}

// buildReport is what x has admitted.
func (n *Node) buildReport(s *shard, x *heldLease, now int64) lease.GrantRequest {
	d := &x.drift
	if d.reporting {
		d.tries++
		s.counts.lease.Timeouts++
	}
	d.seq = max(d.seq+1, uint64(max(0, now)))
	d.reporting, d.sentAt, d.inFlight = true, now, d.unsynced
	r := lease.GrantRequest{Rule: x.rule, Terms: x.Terms, Seq: d.seq, Left: d.unsynced}
	_, h := n.shard(x.key)
	if e := s.counters.Owned.Find(h, x.key); e != nil && !e.Expired(now) {
		s.counters.Load(e, x.rule, &s.state)
		r.State.TAT = s.state.TAT
		for _, f := range s.state.Slots {
			if f.Writer == s.share() {
				r.State.Slots = append(r.State.Slots, f)
			}
		}
	}
	return r
}

// acceptReportReply takes in the answer to a report.
func (n *Node) acceptReportReply(s *shard, x *heldLease, now int64, g *lease.Grant) {
	d := &x.drift
	if !d.reporting || g.Seq != d.seq {
		return
	}
	d.reporting, d.tries, d.syncedAt, d.since = false, 0, now, d.unsynced-d.inFlight
	d.unsynced -= d.inFlight
	d.inFlight = 0
	x.named = g.Flags&lease.Named != 0
	s.counts.lease.Reconciled++
	n.mergeState(s, now, x.key, x.owner, x.domain, x.rule, &g.State)
	if d.unsynced > 0 {
		_, h := n.shard(x.key)
		x.linger(s.counters.Owned.Find(h, x.key), now)
	}
	if n.reportDue(s, x, now) {
		n.queueLeaseRequest(s, x, false)
	}
}

func (n *Node) mergeState(s *shard, now int64, k Key, owner, domain uint64, r limit.Rule, st *limit.State) {
	if len(st.Slots) == 0 || len(st.Slots) > maxSlots {
		return
	}
	_, h := n.shard(k)
	n.mergeOne(s, h, now, &handoff.CounterRecord{Key: k, RingPos: owner, Domain: domain, Rule: r, State: *st})
}

// reconcile takes in a member's report, and answers with all that is known of the key.
func (n *Node) reconcile(s *shard, l *leaseOp, fx *Effects) {
	h, share := &l.hit, l.inst&^1
	in := l.State
	in.Slots = slices.DeleteFunc(slices.Clone(in.Slots), func(f limit.Slot) bool { return f.Writer != share })
	n.mergeState(s, h.now, h.Key, h.RingPos, h.Domain, h.rule, &in)
	s.counts.lease.Reconciled++
	var a Result
	e, _ := n.charge(s, h, s.counters.Owned.Find(h.hash, h.Key), part{}, &a)
	g := lease.Grant{Key: h.Key, Seq: l.Seq, Window: s.windowOf(e, h.rule, h.now), Used: a.Before, Limit: h.rule.Depth(), Flags: lease.Hot}
	s.learnName(h.Key, l.Name, &l.Terms)
	if s.names[h.Key] != nil {
		g.Flags |= lease.Named
	}
	if e != nil {
		s.counters.Load(e, h.rule, &s.state)
		g.State = limit.State{TAT: s.state.TAT, Slots: slices.Clone(s.state.Slots)}
	}
	s.audit(l, l.Left, g.Used, fx)
	(&pendingGrant{l.from, g}).send(fx)
}
