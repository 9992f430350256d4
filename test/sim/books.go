package sim

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner"
)

func (t faultKind) String() string {
	var s []string
	for i, name := range faultNames {
		if t&(1<<i) != 0 {
			s = append(s, name)
		}
	}
	if s == nil {
		return "planned only"
	}
	return strings.Join(s, "+")
}

func (x *span) String() string {
	var by []string
	for _, m := range x.deciders {
		by = append(by, m.name())
	}
	return fmt.Sprintf("%v, phi %d, losses %d, ghost %d, extra %d, split %d, deciders %v", x.faults, x.shared,
		x.losses, x.lostState, x.allowance, x.split, by)
}

// unseen records a request that may have been decided without the oracle seeing the decision.
func (o *oracle) unseen(q *request, m *member) {
	if o.probing || q.quota != nil || q.req.Op == owner.DryRun || q.req.Op == owner.Read || q.req.Op > owner.Reserve {
		return
	}
	a := o.account(q)
	// It may be in any current window, or in one without a decision so far.
	a.unseen = append(a.unseen, abandoned{o.w.now, q})
	if a.journaled && !slices.Contains(a.undecided, m) {
		a.undecided = append(a.undecided, m)
	}
	o.current(func(b *account, x *span) {
		if a == b {
			x.addUnseen(q)
		}
	})
	if q.req.Op == owner.Refund {
		a.credit += float64(q.req.Hits)
	}
}

// addUnseen records that q may have been decided in x.
func (x *span) addUnseen(q *request) {
	x.unseen++
	x.unknown += q.req.Hits
	if q.req.Op == owner.Refund {
		x.refunds = true
		x.refunded += q.req.Hits
	}
}

// adopted records that a member has adopted another ring or membership.
func (o *oracle) adopted(m *member) {
	if n := m.view.NRef; n >= 3 {
		o.leastN = min(o.leastN, n)
	}
}

// grown records that a member has taken a place on the ring while parts of the cluster may operate independently. A
// part that grows considers itself more of the cluster than it was when the others were lost.
func (o *oracle) grown() {
	for i := range o.lastFault {
		if o.w.now-o.lastFault[i] < o.faultTail() {
			o.joins++
			return
		}
	}
	if _, n := o.w.parts(); n > 1 {
		o.joins++
	}
}

// decayed records that N_ref has excluded a member that may be alive.
func (o *oracle) decayed() {
	o.decays++
	o.w.stats.count("transition: N_ref decayed")
}

// disturbed records that a fault has begun or ended: a part of the cluster may now lack all members that knew a
// counter.
func (o *oracle) disturbed(kind faultKind) {
	for i := range o.lastFault {
		if kind&(1<<i) != 0 {
			o.lastFault[i] = o.w.now
		}
	}
	part, n := o.w.parts()
	apart := o.independentParts(n)
	if apart > 1 || o.split > 1 {
		o.dividedAt = o.w.now
	}
	o.split = apart
	o.current(func(a *account, x *span) {
		x.faults |= kind
		x.split += uint64(max(0, apart-1))
		if x.last == nil {
			return
		}
		for c := range n {
			if !within(x.last, part, c) && !within(x.successor, part, c) && !within(x.spare, part, c) {
				x.lostState += o.lostStateAllowance(a, x)
				x.assumed = true
				return
			}
		}
	})
}

// independentParts returns how many of n parts operate independently. With --partition available, a paused member
// that had the ring to itself is one more: it continues with the full limit when it resumes, until it learns of the
// takeover.
func (o *oracle) independentParts(n int) int {
	if !o.w.o.mayContinueAlone() {
		return n
	}
	for _, m := range o.w.running() {
		if m.paused {
			n++
		}
	}
	return n
}

// within reports whether m is in part c.
func within(m *member, part []int, c int) bool {
	return m != nil && !m.gone && !m.paused && part[m.slot] == c
}

// lostStateAllowance returns how much members without the state of x may admit in it.
func (o *oracle) lostStateAllowance(a *account, x *span) uint64 {
	switch {
	case o.w.o.Full:
		return x.limit
	case a.rule.Algorithm.Bucket():
		return 0
	}
	rest := float64(x.end-o.w.now+int64(o.w.o.Skew)) / float64(a.rule.Window)
	return uint64(float64(x.limit)*min(1, max(0, rest))) + 1
}

// copyDelay is how long the first successor of a member that was alone may lack its replicas: they are sent again a
// second after they were lost.
const copyDelay = 1500 * time.Millisecond

// wasAlone reports whether m was alone on its ring within the given time.
func (m *member) wasAlone(within int64) bool {
	for i := len(m.pastRings) - 1; i > 0 && m.w.now-m.pastRings[i].at < within; i-- {
		if m.pastRings[i-1].ring.Len() <= 1 && m.pastRings[i].ring.Len() > 1 {
			return true
		}
	}
	return false
}

// crashed records that a member has died. What only it has charged is lost.
func (o *oracle) crashed(m *member) {
	o.crashedHolds()
	part, _ := o.w.parts()
	alone := m.view.Ring == nil || m.view.Ring.Len() <= 1
	if p := part[m.slot]; p >= 0 {
		n := 0
		for _, q := range part {
			if q == p {
				n++
			}
		}
		alone = alone || n == 1
	}
	// If no member remains that is not leaving, the cluster will start again with the full limit.
	last := !slices.ContainsFunc(o.w.running(), func(p *member) bool {
		return p != m && p.view.Ring != nil && p.view.Ring.Index(slotID(p.slot)) >= 0
	})
	company := m.wasAlone(int64(o.w.o.slowed(copyDelay)))
	o.current(func(a *account, x *span) {
		if slices.Contains(x.deciders, m) {
			x.losses++
			if alone {
				x.allowance += x.limit
				return
			}
			if company && m.view.NRef <= 2 { // docs/bounds.md: as if all members restarted
				x.allowance += x.limit
			} else if company {
				x.lostState += o.lostStateAllowance(a, x)
				x.assumed = true
			}
		}
		if last {
			x.allowance += x.limit
		}
	})
}

// disconnected records that a member has lost some of the others, which may continue without its last charges.
func (o *oracle) disconnected(m *member) {
	o.disconnectedAt[m.slot] = o.w.now
	o.current(func(_ *account, x *span) {
		if slices.Contains(x.deciders, m) {
			x.losses++
		}
	})
}

// revoked records that a member's ownership was revoked because it was disconnected.
func (o *oracle) revoked(m *member) { o.disconnectedAt[m.slot] = math.MinInt64 / 2 }

// beforeRevocation records hits that a member has admitted with the full limit after it was disconnected and before
// its ownership was revoked. Its replicas go to members on its side, so the others may lack them when they take over.
func (o *oracle) beforeRevocation(x *span, v *decision, hits uint64) {
	if o.unrevoked(v) {
		x.allowance += hits
	}
}

// unrevoked reports whether a member has decided with the full limit after it was disconnected and before its ownership was revoked.
func (o *oracle) unrevoked(v *decision) bool {
	return v.result.Authority == owner.Full && o.w.now-o.disconnectedAt[v.by.slot] < int64(v.by.revokedWithin())
}

// outsideWindow records hits that a member whose clock was set has admitted in a window that ended, or has not begun,
// for the others by more than clocks may differ. The others have no counter of it.
func (o *oracle) outsideWindow(a *account, x *span, v *decision, hits uint64) {
	begin := a.rule.End(x.index - 1)
	if v.by.stepped && (o.w.now-x.end > int64(limit.ClockTolerance) || begin-o.w.now > int64(limit.ClockTolerance)) {
		x.allowance += hits
	}
}

// clockFarOff reports whether a member that decided in x has a clock that was set further than clocks may differ. It
// ends windows at other times than the others.
func (o *oracle) clockFarOff(x *span) bool {
	return slices.ContainsFunc(x.deciders, func(m *member) bool {
		off := m.clock() - o.w.now
		return m.stepped && max(off, -off) > int64(limit.ClockTolerance)
	})
}

// checkShare checks that a member admits no more than its share of the limit under authorities SHARE and CLOSED.
func (o *oracle) checkShare(a *account, x *span, q *request, v *decision) {
	x.shared += q.req.Hits
	if a.rule.Algorithm != limit.FixedWindow || v.by.stepped || a.nearEdge(x, v.latest) {
		return // it is uncertain which of two windows it fell into
	}
	if x.shares == nil {
		x.shares = map[*member]uint64{}
	}
	x.shares[v.by] += q.req.Hits
	x.share = max(x.share, x.limit/uint64(max(1, v.by.view.NRef))+1)
	if n := x.shares[v.by]; n > x.share {
		o.w.fail("I5: request #%d on %04x: %s has admitted %d by its share in window %d, and a share of %d is %d",
			q.id, a.key[0]>>48, v.by.name(), n, x.index, x.limit, x.share)
	}
}

// stepped records that a clock was set. A member that returns to an earlier window may have dropped its counter.
func (o *oracle) stepped() {
	o.current(func(_ *account, x *span) { x.allowance += x.limit })
}

// lagged records that the clock of a moved machine was corrected. With a clock that was behind, it has taken over no
// counters of windows that had not begun for it.
func (o *oracle) lagged() {
	o.current(func(_ *account, x *span) { x.allowance += x.limit })
}

// sent checks an outgoing message: a slot is written by its writer only, and only grows (I1). With holds, the next owner
// gives back in the name of one that was lost.
func (o *oracle) sent(m *member, msg *protocol.Message) {
	if msg.Kind == protocol.OwnershipRequest {
		return
	}
	self := inst(m.slot, m.boot)
	for i := range msg.Counters {
		c := &msg.Counters[i]
		if c.Rule.Algorithm != limit.FixedWindow && c.Rule.Algorithm != limit.SlidingWindow {
			continue
		}
		for _, s := range c.State.Slots {
			if s.Writer == limit.LostStateWriter && o.w.o.Zones > 0 {
				o.w.fail("I12: %s reports lost state of %04x, although only one zone failed", m.name(), c.Key[0]>>48)
			}
			if s.Writer == limit.LostStateWriter || s.Writer == noWriter { // noWriter is a deliberate bug, for I10 to find
				continue
			}
			at := slotKey{c.Key, s.Writer, s.At}
			known := o.written[at]
			over := m.stepped || c.Rule.End(s.At) <= m.clock() // a counter that was dropped may return
			if s.Writer != self && s.Writer != self&^1 {
				if !over && !o.w.fromJournal(s.Writer) && (s.Charged > known.Charged || s.Refunded > known.Refunded && !o.w.o.Holds.On && !o.w.o.Quota.On) {
					o.w.fail("I1: %s reports that %x charged %d-%d in window %d of %04x; that writer has reported %d-%d",
						m.name(), s.Writer, s.Charged, s.Refunded, s.At, c.Key[0]>>48, known.Charged, known.Refunded)
				}
				continue
			}
			// A sketch that has counted the key in between keeps the sum of all writers.
			kept := o.w.o.MaxKeys > 0 && netOf(c, s.At) >= known.Charged-min(known.Charged, known.Refunded)
			if !over && !kept && (s.Charged < known.Charged || s.Refunded < known.Refunded) {
				o.w.fail("I1: %s lowers its own slot in window %d of %04x from %d-%d to %d-%d", m.name(), s.At,
					c.Key[0]>>48, known.Charged, known.Refunded, s.Charged, s.Refunded)
			}
			s.Charged, s.Refunded = max(s.Charged, known.Charged), max(s.Refunded, known.Refunded)
			o.written[at] = s
		}
	}
}

// missesMembers reports whether m has lost more members than full authority allows. They count until N_ref excludes
// them.
func (m *member) missesMembers() bool {
	n := m.view.NRef
	if n >= 3 {
		n--
	}
	return m.view.Ring.Len() < n
}

// probed checks the decisions of the liveness phase (I9).
func (o *oracle) probed(probes []*request) {
	holder := map[owner.Key]*member{}
	for _, q := range probes {
		v := q.decision
		switch {
		case !q.done || v == nil:
			o.w.fail("I9: %s does not answer for %04x", q.from.name(), q.req.Key[0]>>48)
		case v.result.Authority == owner.Overflow && o.w.o.MaxKeys > 0:
		case v.result.Authority != owner.Full && (v.result.Authority != owner.Part || !v.missesMembers):
			o.w.fail("I9: %s gets a decision with authority %d for %04x from %s", q.from.name(), v.result.Authority,
				q.req.Key[0]>>48, v.by.name())
		case holder[q.req.Key] != nil && holder[q.req.Key] != v.by:
			o.w.fail("I9: %s and %s both decide %04x", holder[q.req.Key].name(), v.by.name(), q.req.Key[0]>>48)
		}
		if v != nil {
			o.checkRoom(q, v)
			holder[q.req.Key] = v.by
		}
	}
	o.checkSettled(probes)
}
