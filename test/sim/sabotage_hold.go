package sim

import (
	"slices"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner"
)

// The bugs of holds.
const (
	bugEarlyGiveBack bug = 130 + iota // hits are given back before another member knows the mark
	bugForgetMarks                    // members do not learn that holds are settled
	bugGiveUnknown                    // a release of an unknown hold gives back
	bugGiveTwice                      // a settlement gives back although the hold was settled before
	bugForgetSlots                    // a handoff omits the requests in flight
)

// holdBugs are the bugs of holds, by name.
var holdBugs = map[string]bug{
	"give back before the mark": bugEarlyGiveBack, "forget marks": bugForgetMarks,
	"unknown holds give back": bugGiveUnknown, "settled holds give back again": bugGiveTwice,
	"a handoff omits requests in flight": bugForgetSlots,
}

// dropMarks removes the marks of settled holds from c.
func dropMarks(c *protocol.CounterRecord) {
	c.Claims = slices.DeleteFunc(slices.Clone(c.Claims), func(x claim.Claim) bool { return x.State() != claim.Open })
}

// sabotageMarks loses the marks of settled holds in a message that is about to be processed.
func (w *world) sabotageMarks(msg *protocol.Message) {
	if w.bug == bugForgetMarks {
		for i := range msg.Counters {
			dropMarks(&msg.Counters[i])
		}
	}
}

// sabotageMark confirms, and loses, replicas with marks, so that their hits are given back at once.
func (w *world) sabotageMark(msg *protocol.Message) bool {
	return w.bug == bugEarlyGiveBack && msg.Kind == protocol.Replica &&
		slices.ContainsFunc(msg.Counters, func(c protocol.CounterRecord) bool {
			return slices.ContainsFunc(c.Claims, func(x claim.Claim) bool { return x.State() == claim.Settling })
		})
}

// sabotageSettle gives back hits after a member has decided a settlement, if it did not know the hold, or knew that it
// was settled.
func (w *world) sabotageSettle(m *member, q *request) {
	if q.req.Op != owner.Release || q.about == nil {
		return
	}
	unknown := !q.about.admitted
	if w.bug == bugGiveUnknown && unknown || w.bug == bugGiveTwice && q.about.settled {
		r := q.req.Rule
		if r.Algorithm == limit.InFlight {
			return
		}
		reqs := []owner.Request{{Key: q.req.Key, RingPos: q.req.RingPos, Rule: r, Hits: max(q.req.Hits, q.about.hits), Op: owner.Refund, Waiter: new(int)}}
		m.node.Serve(m.clock(), false, reqs, make([]owner.Result, 1))
	}
}
