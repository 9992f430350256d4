package sim

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner"
)

// leasePair is one grantor and one holder of a key.
type leasePair struct {
	key     owner.Key
	grantor *member
	holder  int // its slot: a reply may reach the next boot there
}

// terms are the last messages of a grantor and a holder to each other.
type terms struct {
	seq      uint64                  // of the newest request that arrived
	requests map[uint64]leaseRequest // by seq
	window   int64                   // of the newest grant
	total    uint64                  // of that grant, or of a newer request
	most     uint64                  // of the grants of that window
}

// leaseRequest has the hits that a holder has reported for a window.
type leaseRequest struct {
	window int64
	have   uint64
}

// requestSent records a request before a member receives it.
func (o *oracle) requestSent(q *request) {
	a := o.account(q)
	a.owner = q.req.RingPos
	if o.w.o.Leases.Calm && q.req.Op == owner.Take {
		a.asked = append(a.asked, o.w.now)
	}
}

// leaseSent records an outgoing message about leases.
func (o *oracle) leaseSent(m *member, to int, msg *lease.Batch) {
	s := o.w.stats
	for i := range msg.Requests {
		r := &msg.Requests[i]
		o.accounts[r.Key].lends = true
		o.checkWritten(m, protocol.CounterRecord{Key: r.Key, Rule: r.Rule, State: r.State})
		switch {
		case r.Terms.Slack > 0:
			s.count("approximate: report")
		case r.Want:
			s.count("lease: Ask for more")
		default:
			s.count("lease: Ask that returns or reports")
		}
	}
	for i := range msg.Grants {
		g := &msg.Grants[i]
		o.checkWritten(m, protocol.CounterRecord{Key: g.Key, Rule: o.accounts[g.Key].rule, State: g.State})
		for f, name := range map[lease.GrantFlags]string{lease.Last: "last tokens", lease.Denied: "denial"} {
			if g.Flags&f != 0 {
				s.count("lease: Lend says " + name)
			}
		}
		if g.Total > 0 {
			o.granted(m, to, g)
		}
	}
	for i := range msg.Notices {
		s.count("lease: Bulk " + [...]string{"?", "Recall", "Deny", "Lift", "Cool", "Move"}[msg.Notices[i].Kind])
	}
}

// checkWritten checks the state of a counter in a message of m.
func (o *oracle) checkWritten(m *member, c protocol.CounterRecord) {
	o.sent(m, &protocol.Message{Kind: protocol.Replica, Counters: []protocol.CounterRecord{c}})
}

// granted records a grant, or the confirmation of an older one.
func (o *oracle) granted(m *member, to int, g *lease.Grant) {
	a, t := o.accounts[g.Key], o.terms(leasePair{g.Key, m, to})
	gain := g.Total
	if was := t.requests[g.Seq]; was.window == g.Window {
		gain -= min(gain, was.have)
	}
	if t.window != g.Window {
		t.most = 0
	}
	t.window, t.total, t.most = g.Window, g.Total, max(t.most, g.Total)
	if !a.rule.Algorithm.Bucket() {
		// What another owner has lent is spent by m's clock from now on.
		if x := o.at(a, g.Window); !slices.Contains(x.lenders, m) {
			x.lenders = append(x.lenders, m)
		}
	}
	if gain == 0 {
		return
	}
	o.w.stats.count("lease: Lend of more")
	if a.lender != nil && a.lender != m && o.w.now < a.until {
		o.w.stats.count("lease: another owner, with leases out")
	}
	a.lender = m
	if a.rule.Algorithm.Bucket() {
		o.countedBy(a, m)
		a.until = o.w.now + int64(lease.Slice)
		return
	}
	x := o.at(a, g.Window)
	x.limit = max(x.limit, uint64(g.Limit))
	a.until = x.end
	o.setHolders(x, m, a.owner)
	o.checkCopiedFirst(m, a, g, gain)
	o.w.sabotageGrant(m, a, gain)
}

// countersArrived records the counters in a message that has arrived.
func (o *oracle) countersArrived(m *member, msg *protocol.Message) {
	o.claimsArrived(msg)
	if !o.w.o.Leases.On {
		return
	}
	self := inst(m.slot, m.boot)
	for i := range msg.Counters {
		c := &msg.Counters[i]
		for _, s := range c.State.Slots {
			if s.Writer != self {
				at := slotKey{c.Key, s.Writer, s.At}
				o.known[at] = max(o.known[at], s.Charged)
			}
		}
	}
}

// checkCopiedFirst checks that m lends only what it has charged, and what another member knows to be charged (C1,
// C5).
func (o *oracle) checkCopiedFirst(m *member, a *account, g *lease.Grant, gain uint64) {
	at := slotKey{g.Key, inst(m.slot, m.boot), g.Window}
	over := a.rule.End(g.Window) <= m.clock() // it has waited so long that it can no longer be spent
	if o.lent[at] += gain; !over && m.view.Ring.Len() > 1 && o.known[at] < o.lent[at] {
		o.w.fail("C1, C5: %s has lent %d of window %d of %04x; others know of %d charged", m.name(), o.lent[at],
			g.Window, a.key[0]>>48, o.known[at])
	}
}

func (o *oracle) terms(l leasePair) *terms {
	t := o.loans[l]
	if t == nil {
		t = &terms{window: math.MinInt64, requests: map[uint64]leaseRequest{}}
		o.loans[l] = t
	}
	return t
}

// leaseArrived records a message about leases that has arrived, and returns the terms before each request.
func (o *oracle) leaseArrived(m, from *member, msg *lease.Batch) (before []terms) {
	for i := range msg.Requests {
		r := &msg.Requests[i]
		o.accounts[r.Key].depth = uint64(r.Rule.Depth())
		t := o.terms(leasePair{r.Key, m, from.slot})
		before = append(before, *t)
		t.requests[r.Seq] = leaseRequest{r.Window, r.Have}
		if r.Seq <= t.seq {
			o.w.stats.count("lease: Ask that is old")
			continue
		}
		if t.seq = r.Seq; r.Window != t.window {
			continue
		}
		if r.Have < t.total {
			o.w.stats.count("lease: credit")
		}
		t.total = r.Have
	}
	return before
}

// classifyPath records whether v was decided from a lease, or on a copy of the counter.
func (o *oracle) classifyPath(q *request, v *decision) {
	switch {
	case v.result.Path != owner.Leased || o.probing || q.quota != nil:
		return
	case v.result.Authority != owner.Full:
		o.w.stats.count("lease: refused by its holder")
		return
	case q.req.Mechanism == policy.Approximate:
		o.w.stats.count("approximate: admitted by a copy")
		v.fromCopy = true
		return
	}
	o.w.stats.count("lease: admitted by its holder")
	a := o.account(q)
	v.fromLease = true
	for _, h := range v.by.node.Held(v.latest) {
		if h.Key == q.req.Key {
			v.window = h.Window
		}
	}
	if !a.rule.Algorithm.Bucket() {
		o.checkLeaseWindow(a, q, v)
	}
	if a.lender != nil { // the counter includes lent hits by the grantor's clock
		v.earliest, v.latest = a.lender.clock(), a.lender.clock()
	}
}

// checkLeaseWindow checks that a holder does not use a lease after its window, by the clocks of the grantors (C3).
func (o *oracle) checkLeaseWindow(a *account, q *request, v *decision) {
	x := o.at(a, v.window)
	slow := int64(4 * o.w.o.Drift * float64(a.rule.Window))
	for _, g := range x.lenders {
		if g.stepped || v.by.stepped || g.clock() < x.end+slow {
			return
		}
	}
	o.w.fail("I7: request #%d on %04x was admitted by %s from a lease of window %d, which is over", q.id,
		a.key[0]>>48, v.by.name(), v.window)
}

// addAhead records hits admitted on a copy: each boot may be ahead of the owner by its part of the slack.
func (o *oracle) addAhead(x *span, q *request, v *decision) {
	if x.copiers == nil {
		x.copiers = map[*member]uint64{}
	}
	s := uint64(q.req.LeaseTerms.Slack) / uint64(max(1, v.by.view.NRef))
	if was := x.copiers[v.by]; s > was {
		x.copiers[v.by] = s
		x.ahead += s - was
	}
}

// checkLent checks that what m has lent, and what was decided on the counter itself, does not exceed the limit (I7).
func (o *oracle) checkLent(m *member) {
	if m.gone || o.w.failure != "" {
		return
	}
	for _, k := range m.node.HotKeys(m.clock()) {
		a := o.accounts[k.Key]
		if a == nil || a.rule.Algorithm.Bucket() {
			continue
		}
		window, lent := int64(math.MinInt64), uint64(0)
		for _, l := range k.Holders {
			if l.Window > window {
				window, lent = l.Window, 0
			}
			if l.Window == window {
				lent += l.Granted
			}
		}
		if lent == 0 {
			continue
		}
		x := o.at(a, window)
		x.limit = max(x.limit, a.depth)
		if x.byOwner+lent > x.limit+x.refunded+o.bound(a, x) {
			o.w.fail("I7: %s has lent %d of window %d of %04x, where %d were decided by owners: limit %d, refunded %d, bound %d: %s",
				m.name(), lent, window, a.key[0]>>48, x.byOwner, x.limit, x.refunded, o.bound(a, x), x)
		}
	}
}

// reclaimed records what m has taken back from silent and failed holders, which may have spent it since their last
// message.
func (o *oracle) reclaimed(m *member) {
	if !o.w.o.Leases.Reclaim && !o.w.o.Leases.OnCrash {
		return
	}
	f := m.node.Stats(m.clock())
	n := f.Lease.Reclaimed
	if n == m.reclaimed {
		return
	}
	keys := uint64(len(o.accounts)) // changes of the rules make new ones
	if f.ReclaimBound*keys < n-m.reclaimed {
		o.w.fail("I7: %s has reclaimed %d hits of %d keys, and its bound is %d", m.name(), n-m.reclaimed, keys, f.ReclaimBound)
	}
	o.w.stats.count("lease: reclaim")
	o.current(func(a *account, x *span) {
		if a.lends {
			x.allowance += n - m.reclaimed
			o.w.sabotageReclaim(m, a, n-m.reclaimed)
		}
	})
	m.reclaimed = n
}

// checkViolations checks that m has not had to prevent a violation of the lease conditions. Members cause none while
// clocks are not set and a key has one grantor, which does not hold after parts of the cluster have each continued
// with the full limit.
func (o *oracle) checkViolations(m *member) {
	if o.w.o.mayContinueAlone() && !o.w.o.onlyPlanned() || o.decays > 0 {
		return
	}
	if v := m.node.Stats(m.clock()).Lease.Violations; o.w.bug == noBug && o.w.o.Steps == 0 &&
		v != (lease.Violations{}) {
		o.w.fail("C1-C5: %s has prevented breaches %v", m.name(), v)
	}
}

// checkUsed checks that a calm run admits most of a limit for which twice as many hits were requested (liveness).
func (o *oracle) checkUsed(a *account, x *span) {
	if !o.w.o.Leases.Calm || !a.lends || a.rule.Algorithm != limit.FixedWindow ||
		x.end > o.w.safetySince+int64(o.w.o.Length) {
		return
	}
	from := x.end - int64(a.rule.Window)
	n := uint64(0)
	for _, t := range a.asked {
		if t >= from && t < x.end {
			n++
		}
	}
	if from < o.w.safetySince || n < 2*x.limit {
		return
	}
	o.w.stats.count("lease: calm windows used up")
	if x.admitted*10 < 9*x.limit {
		o.w.fail("liveness: %d admitted in window %d of %04x, limit %d, %d requested", x.admitted, x.index,
			a.key[0]>>48, x.limit, n)
	}
}

func leaseText(m *lease.Batch) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s", [...]string{"?", "Ask", "Lend", "Bulk"}[min(int(m.Kind), 3)])
	for i := range m.Requests {
		r := &m.Requests[i]
		fmt.Fprintf(&b, " {%04x seq %d window %d have %d left %d want %v always %v slack %d %v}", r.Key[0]>>48, r.Seq,
			r.Window, r.Have, r.Left, r.Want, r.Always, r.Terms.Slack, r.State.Slots)
	}
	for i := range m.Grants {
		g := &m.Grants[i]
		fmt.Fprintf(&b, " {%04x seq %d window %d total %d used %d/%d left %v flags %x %v}", g.Key[0]>>48, g.Seq,
			g.Window, g.Total, g.Used, g.Limit, g.Left, g.Flags, g.State.Slots)
	}
	for i := range m.Notices {
		n := &m.Notices[i]
		fmt.Fprintf(&b, " {%04x %d window %d limit %d left %v}", n.Key[0]>>48, n.Kind, n.Window, n.Limit, n.Left)
	}
	return b.String()
}
