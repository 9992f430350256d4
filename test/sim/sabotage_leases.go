package sim

import (
	"math"
	"time"

	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner"
)

// The bugs that omit one of the conditions that make leases safe.
const (
	bugUnchargedGrant bug = 100 + iota // C1
	bugOldReturn                       // C2
	bugLongWindow                      // C3
	bugLateReturn                      // C4, of a window that is over
	bugForeignReturn                   // C4, at a grantor that has not decided the key all the time
	bugEarlyGrant                      // C5
	bugReclaimTwice
)

// leaseBugs are the bugs of leases, by name.
var leaseBugs = map[string]bug{
	"C1: a grant is not charged": bugUnchargedGrant, "C2: an old return counts again": bugOldReturn,
	"C3: a holder goes on after the window": bugLongWindow, "C4: a return counts in a later window": bugLateReturn,
	"C4: a return counts at a grantor that has not lent it": bugForeignReturn,
	"C5: a grant does not wait for the successor":           bugEarlyGrant,
}

// reclaimBugs are the bugs of owners that reclaim the hits of failed holders, by name.
var reclaimBugs = map[string]bug{"the hits of a failed holder are reclaimed twice": bugReclaimTwice}

// sabotageReclaim processes that m has reclaimed n hits of a.
func (w *world) sabotageReclaim(m *member, a *account, n uint64) {
	if w.bug == bugReclaimTwice {
		m.uncharge(a, n)
	}
}

// sabotageLease changes a message that m is about to process.
func (w *world) sabotageLease(m *member, msg *lease.Batch) {
	if w.bug == bugMoveAges {
		for i := range msg.Notices {
			msg.Notices[i].EndsAt = math.MaxInt64
		}
	}
	if w.bug != bugLongWindow {
		return
	}
	for i := range msg.Grants {
		g := &msg.Grants[i]
		if a := w.oracle.accounts[g.Key]; !a.rule.Algorithm.Bucket() && g.Flags&lease.Denied == 0 {
			g.Left = a.rule.Window
		}
	}
}

// sabotageDelay delays messages, so that more of them arrive after their window.
func (w *world) sabotageDelay(msg *lease.Batch) time.Duration {
	switch {
	case w.bug == bugLateReturn && msg.Kind == lease.Ask:
		return w.randomBelow(300 * time.Millisecond)
	case w.bug == bugMoveAges && msg.Kind == lease.Notify:
		return w.randomBelow(3 * time.Second)
	}
	return 0
}

// sabotageGrant processes a grant of n hits that m sends.
func (w *world) sabotageGrant(m *member, a *account, n uint64) {
	if w.bug == bugUnchargedGrant {
		m.uncharge(a, n)
	}
}

// sabotageCredit processes a message that m has processed, with the terms before each of its requests.
func (w *world) sabotageCredit(m, from *member, msg *lease.Batch, before []terms) {
	for i := range msg.Requests {
		r, t := &msg.Requests[i], &before[i]
		a := w.oracle.accounts[r.Key]
		if a.rule.Algorithm.Bucket() {
			continue
		}
		old, over, known := r.Seq <= t.seq, r.Window < a.rule.Index(m.clock()), r.Window == t.window
		switch {
		case w.bug == bugOldReturn && known && old && !over, w.bug == bugLateReturn && known && !old && over:
			m.uncharge(a, t.total-min(t.total, r.Have))
		case w.bug == bugForeignReturn && !known && !old && !over:
			most := w.oracle.lentByOthers(m, from, r)
			m.uncharge(a, most-min(most, r.Have))
		}
	}
}

// lentByOthers returns the most that a grantor other than m has lent to a holder in r's window.
func (o *oracle) lentByOthers(m, from *member, r *lease.GrantRequest) (most uint64) {
	for l, t := range o.loans {
		if l.key == r.Key && l.holder == from.slot && l.grantor != m && t.window == r.Window {
			most = max(most, t.most)
		}
	}
	return most
}

// uncharge refunds n hits of a's counter at m without a request.
func (m *member) uncharge(a *account, n uint64) {
	reqs := []owner.Request{
		{Key: a.key, RingPos: a.owner, Rule: a.rule, Hits: n, Op: owner.Refund, Waiter: new(int)},
	}
	m.node.Serve(m.clock(), false, reqs, make([]owner.Result, 1))
}

// sabotageReplica confirms, and loses, the replicas of what m charges for grants.
func (w *world) sabotageReplica(m *member, msg *protocol.Message) bool {
	return w.bug == bugEarlyGrant && m.steppingLease && msg.Kind == protocol.Replica
}
