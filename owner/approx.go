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
func (s *shard) slack(held *heldLease) uint64 {
	return uint64(held.Terms.Slack) / uint64(s.view.NRef())
}

// approximate answers q from this member's copy of the counter; false when the owner is to be asked.
func (n *Node) approximate(s *shard, held *heldLease, now int64, req *Request, res *Result) bool {
	d, room := &held.drift, s.slack(held)
	d.askedAt = now
	if room == 0 {
		return false
	}
	_, hash := n.shard(req.Key)
	e := s.counters.Owned.Find(hash, req.Key)
	s.state.TAT, s.state.Slots = 0, s.state.Slots[:0]
	if e != nil && !e.Expired(now) {
		s.counters.Load(e, req.Rule, &s.state)
	}
	res.Decision = req.Rule.Peek(&s.state, now, req.Hits)
	switch {
	case res.Over:
		res.Kind, res.Path, res.Authority, res.Hot = Decided, Leased, Cached, true
		s.counts.lease.LocalDenied++
	case !d.allows(req, res, room, held.Terms.Watermark, uint64(s.view.NRef())) || !n.admitDrift(s, held, hash, now, req, e):
		*res = Result{}
	default:
		res.Kind, res.Path, res.Authority, res.Hot = Decided, Leased, Full, true
		s.counts.lease.Approximated += req.Hits
	}
	if n.reportDue(s, held, now) {
		n.queueLeaseRequest(s, held, res.Kind != Decided)
	}
	if res.Kind != Decided || res.Path != Leased {
		return false
	}
	s.counts.decided[res.Authority]++
	return true
}

// allows says whether q, answered with a, may be admitted unseen.
func (d *drift) allows(req *Request, res *Result, room uint64, watermark uint8, members uint64) bool {
	if watermark == 0 {
		watermark = defaultWatermark
	}
	depth := uint64(req.Rule.Depth())
	left := depth - min(depth, res.Before)
	d.nearLimit = false
	if left*100 <= depth*uint64(watermark) {
		most := min(room, left/(2*members))
		if d.nearLimit = d.since+req.Hits > most/2; d.since+req.Hits > most {
			return false
		}
	}
	return d.unsynced+req.Hits <= room
}

// admitDrift charges q to this member's own slot; false when there is no room for it.
func (n *Node) admitDrift(s *shard, held *heldLease, hash uint64, now int64, req *Request, e *counter.Owned) bool {
	op := shardOp{Request: req, now: now, hash: hash, table: counter.TableOwned, rule: req.Rule}
	if e == nil {
		if e = s.insert(&op, true); e == nil {
			return false
		}
	}
	if !s.admit(&op, e, req.Rule, req.Hits) {
		return false
	}
	held.linger(e, now)
	held.drift.unsynced += req.Hits
	held.drift.since += req.Hits
	return true
}

// linger keeps a bucket that has drained here until the owner knows what was charged: there it may be full.
func (held *heldLease) linger(e *counter.Owned, now int64) {
	if e != nil && held.rule.Algorithm.Bucket() {
		e.Prolong(now + driftLife)
	}
}

// reportDue says that x is to be reported now.
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

// buildReport is what x has admitted.
func (n *Node) buildReport(s *shard, held *heldLease, now int64) lease.GrantRequest {
	d := &held.drift
	if d.reporting {
		d.tries++
		s.counts.lease.Timeouts++
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

// acceptReportReply takes in the answer to a report.
func (n *Node) acceptReportReply(s *shard, held *heldLease, now int64, g *lease.Grant) {
	d := &held.drift
	if !d.reporting || g.Seq != d.seq {
		return
	}
	d.reporting, d.tries, d.syncedAt, d.since = false, 0, now, d.unsynced-d.inFlight
	d.unsynced -= d.inFlight
	d.inFlight = 0
	held.named = g.Flags&lease.Named != 0
	s.counts.lease.Reconciled++
	n.mergeState(s, now, held.key, held.owner, held.domain, held.rule, &g.State)
	if d.unsynced > 0 {
		_, hash := n.shard(held.key)
		held.linger(s.counters.Owned.Find(hash, held.key), now)
	}
	if n.reportDue(s, held, now) {
		n.queueLeaseRequest(s, held, false)
	}
}

func (n *Node) mergeState(s *shard, now int64, key Key, owner, domain uint64, r limit.Rule, st *limit.State) {
	if len(st.Slots) == 0 || len(st.Slots) > maxSlots {
		return
	}
	_, hash := n.shard(key)
	n.mergeOne(s, hash, now, &handoff.CounterRecord{Key: key, RingPos: owner, Domain: domain, Rule: r, State: *st})
}

// reconcile takes in a member's report, and answers with all that is known of the key.
func (n *Node) reconcile(s *shard, l *leaseOp, fx *Effects) {
	op, share := &l.hit, l.inst&^1
	in := l.State
	in.Slots = slices.DeleteFunc(slices.Clone(in.Slots), func(f limit.Slot) bool { return f.Writer != share })
	n.mergeState(s, op.now, op.Key, op.RingPos, op.Domain, op.rule, &in)
	s.counts.lease.Reconciled++
	var res Result
	e, _ := n.charge(s, op, s.counters.Owned.Find(op.hash, op.Key), part{}, &res)
	g := lease.Grant{Key: op.Key, Seq: l.Seq, Window: s.windowOf(e, op.rule, op.now), Used: res.Before, Limit: op.rule.Depth(), Flags: lease.Hot}
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
