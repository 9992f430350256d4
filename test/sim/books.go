package sim

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner"
)

func (t trouble) String() string {
	var s []string
	for i, name := range troubles {
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
	return fmt.Sprintf("%v, phi %d, losses %d, ghost %d, extra %d, split %d, deciders %v", x.troubles, x.phi, x.losses, x.ghost, x.extra, x.split, by)
}

// unseen notes that a question may have been decided without anybody seeing how.
func (o *oracle) unseen(q *question, m *member) {
	if o.probing || q.q.Op == owner.DryRun || q.q.Op == owner.Read {
		return
	}
	a := o.account(q)
	// It may be any window of now, or one that nobody has seen yet.
	a.unseen = append(a.unseen, givenUp{o.w.now, q})
	o.current(func(b *account, x *span) {
		if a == b {
			x.lacks(q)
		}
	})
	if q.q.Op == owner.Refund {
		a.credit += float64(q.q.Hits)
	}
}

// lacks notes that q may have been decided in x unseen.
func (x *span) lacks(q *question) {
	x.missing++
	x.unknown += q.q.Hits
	if q.q.Op == owner.Refund {
		x.refunds = true
		x.refunded += q.q.Hits
	}
}

// adopted sees a member go by another ring or standing.
func (o *oracle) adopted(m *member) {
	if n := m.stand.NRef; n >= 3 {
		o.leastN = min(o.leastN, n)
	}
}

// grown sees a member take a place while parts of the cluster may go without each other: a part that grows counts
// itself for more of the cluster than it was when the others were lost.
func (o *oracle) grown() {
	for i := range o.last {
		if o.w.now-o.last[i] < aftermath {
			o.joins++
			return
		}
	}
	if _, n := o.w.parts(); n > 1 {
		o.joins++
	}
}

// decayed sees N_ref forget a member that may be alive.
func (o *oracle) decayed() {
	o.decays++
	o.w.stats.count("transition: N_ref decayed")
}

// disturbed sees that a fault has begun or ended: parts of the cluster may now be without anybody who knew a counter.
func (o *oracle) disturbed(kind trouble) {
	for i := range o.last {
		if kind&(1<<i) != 0 {
			o.last[i] = o.w.now
		}
	}
	part, n := o.w.parts()
	apart := o.apart(n)
	if apart > 1 || o.split > 1 {
		o.divided = o.w.now
	}
	o.split = apart
	o.current(func(a *account, x *span) {
		x.troubles |= kind
		x.split += uint64(max(0, apart-1))
		if x.last == nil {
			return
		}
		for c := range n {
			if !within(x.last, part, c) && !within(x.heir, part, c) {
				x.ghost += o.forgiven(a, x)
				return
			}
		}
	})
}

// apart is how many go without each other, of n parts: with --partition available a stopped member that had the ring to itself is one
// more, for it goes on with the whole limit when it wakes, until it has heard of those who took over.
func (o *oracle) apart(n int) int {
	if o.w.o.Policy != handoff.PolicyAvailable {
		return n
	}
	for _, m := range o.w.running() {
		if m.paused {
			n++
		}
	}
	return n
}

// within says whether m is in part c.
func within(m *member, part []int, c int) bool {
	return m != nil && !m.gone && !m.paused && part[m.slot] == c
}

// forgiven is what those who know nothing of x may admit in it.
func (o *oracle) forgiven(a *account, x *span) uint64 {
	switch {
	case o.w.o.Full:
		return x.limit
	case a.rule.Algorithm.Bucket():
		return 0
	}
	rest := float64(x.end-o.w.now+int64(o.w.o.Skew)) / float64(a.rule.Window)
	return uint64(float64(x.limit)*min(1, max(0, rest))) + 1
}

// copying is how long the first heir of a member that was alone may be without its copies: they are sent again a second
// after they were lost.
const copying = int64(1500 * time.Millisecond)

// company says that m was alone on its ring until less than so long ago.
func (m *member) company(within int64) bool {
	for i := len(m.past) - 1; i > 0 && m.w.now-m.past[i].at < within; i-- {
		if m.past[i-1].ring.Len() <= 1 && m.past[i].ring.Len() > 1 {
			return true
		}
	}
	return false
}

// crashed sees a member die: what it has charged and nobody else knows is gone.
func (o *oracle) crashed(m *member) {
	part, _ := o.w.parts()
	alone := m.ring == nil || m.ring.Len() <= 1
	if p := part[m.slot]; p >= 0 {
		n := 0
		for _, q := range part {
			if q == p {
				n++
			}
		}
		alone = alone || n == 1
	}
	// When none is left that stays, the cluster will start again, with the whole limit.
	last := !slices.ContainsFunc(o.w.running(), func(p *member) bool {
		return p != m && p.ring != nil && p.ring.Index(slotID(p.slot)) >= 0
	})
	company := m.company(copying)
	o.current(func(a *account, x *span) {
		if slices.Contains(x.deciders, m) {
			x.losses++
			if alone {
				x.extra += x.limit
				return
			}
			if company {
				x.ghost += o.forgiven(a, x)
			}
		}
		if last {
			x.extra += x.limit
		}
	})
}

// cutOff sees a member lose some or all of the others, who may go on without what it has not told them.
func (o *oracle) cutOff(m *member) {
	o.severed[m.slot] = o.w.now
	o.current(func(_ *account, x *span) {
		if slices.Contains(x.deciders, m) {
			x.losses++
		}
	})
}

// fenced sees a member give up its tokens because it was cut off.
func (o *oracle) fenced(m *member) { o.severed[m.slot] = math.MinInt64 / 2 }

// unaware notes hits that a member admits with the whole limit after it was cut off and before it can know: its copies
// go to those on its side, and the others, when they take over, may not have them.
func (o *oracle) unaware(x *span, v *verdict, hits uint64) {
	if v.a.Authority == owner.Full && o.w.now-o.severed[v.by.slot] < int64(aware) {
		x.extra += hits
	}
}

// astray notes hits that a member whose clock was set admits in a window that has been over for the others, or has not
// begun, for longer than clocks may differ: they know nothing of it.
func (o *oracle) astray(a *account, x *span, v *verdict, hits uint64) {
	begin := a.rule.End(x.index - 1)
	if v.by.stepped && (o.w.now-x.end > int64(limit.ClockTolerance) || begin-o.w.now > int64(limit.ClockTolerance)) {
		x.extra += hits
	}
}

// apartInTime says that one who decided in x goes by a clock that was set further than clocks may differ: it ends windows, and forgets
// what it refused in them, at times of its own.
func (o *oracle) apartInTime(x *span) bool {
	return slices.ContainsFunc(x.deciders, func(m *member) bool {
		off := m.clock() - o.w.now
		return m.stepped && max(off, -off) > int64(limit.ClockTolerance)
	})
}

// shared sees hits admitted under SHARE: of one member no more than its part of the limit.
func (o *oracle) shared(a *account, x *span, q *question, v *verdict) {
	x.phi += q.q.Hits
	near := func(t int64) bool {
		return t-a.rule.End(x.index-1) < int64(limit.ClockTolerance) || x.end-t < int64(limit.ClockTolerance)
	}
	if a.rule.Algorithm != limit.FixedWindow || v.by.stepped || near(v.until) {
		return // which of two windows it fell into is uncertain
	}
	if x.shares == nil {
		x.shares = map[*member]uint64{}
	}
	x.shares[v.by] += q.q.Hits
	x.share = max(x.share, x.limit/uint64(max(1, v.by.stand.NRef))+1)
	if n := x.shares[v.by]; n > x.share {
		o.w.fail("I5: question #%d on %04x: %s has admitted %d by its share in window %d, and a share of %d is %d", q.id, a.key[0]>>48, v.by.name(), n, x.index, x.limit, x.share)
	}
}

// stepped sees a clock set: a member that goes back into a window may have forgotten it.
func (o *oracle) stepped() {
	o.current(func(_ *account, x *span) { x.extra += x.limit })
}

// left sees a member go that has handed over: others know all that it knew. When there are no others, whoever starts
// next starts a cluster with the whole limit.
func (o *oracle) left(m *member) {
	alone := true
	for _, other := range o.w.running() {
		if other == m || other.ring == nil {
			continue
		}
		alone = alone && other.ring.Len() == 0 && other.table[other.slot].state == joining
		if other.ring.Len() == 0 {
			continue
		}
		o.current(func(a *account, x *span) {
			if x.last == m || x.heir == m {
				o.inherit(a, x, other)
			}
		})
		return
	}
	if alone {
		o.current(func(_ *account, x *span) {
			x.extra += x.limit
			x.troubles |= crashTrouble // they count from nothing
		})
	}
}

// lagged sees that the clock of a machine which was moved is right again. It took keys over by a clock that was behind, and so nothing
// of what others had admitted in windows that had not begun for it.
func (o *oracle) lagged() {
	o.current(func(_ *account, x *span) { x.extra += x.limit })
}

// inherit notes who knows x after a farewell, by the ring of a member.
func (o *oracle) inherit(a *account, x *span, m *member) {
	for v := len(o.w.rules) - 1; v >= 0; v-- {
		for _, r := range o.w.rules[v] {
			if r.digest != a.key {
				continue
			}
			x.last = o.w.slots[slotOf(m.ring.At(m.ring.Owner(r.owner)).ID)].now
			if i := m.ring.Successor(r.owner); i >= 0 {
				x.heir = o.w.slots[slotOf(m.ring.At(i).ID)].now
			}
			return
		}
	}
}

// netOf is what all writers together have charged in window w of c, and not given back.
func netOf(c *handoff.CounterRecord, w int64) (net uint64) {
	for _, s := range c.State.Slots {
		if s.At == w {
			net += s.Charged - min(s.Charged, s.Refunded)
		}
	}
	return net
}

// sent sees a message leave: a slot is its writer's alone, and only grows (I1).
func (o *oracle) sent(m *member, msg *handoff.Message) {
	if msg.Kind == handoff.OwnershipRequest {
		return
	}
	self := inst(m.slot, m.boot)
	for i := range msg.Counters {
		c := &msg.Counters[i]
		if c.Rule.Algorithm != limit.FixedWindow && c.Rule.Algorithm != limit.SlidingWindow {
			continue
		}
		for _, s := range c.State.Slots {
			if s.Writer == limit.LostStateWriter || s.Writer == nobody { // the second is a deliberate mistake, for I10 to find
				continue
			}
			at := writing{c.Key, s.Writer, s.At}
			known := o.written[at]
			over := m.stepped || c.Rule.End(s.At) <= m.clock() // what was dropped may have come back
			if s.Writer != self && s.Writer != self&^1 {
				if !over && (s.Charged > known.Charged || s.Refunded > known.Refunded) {
					o.w.fail("I1: %s says that %x charged %d-%d in window %d of %04x, which has said %d-%d", m.name(), s.Writer, s.Charged, s.Refunded, s.At, c.Key[0]>>48, known.Charged, known.Refunded)
				}
				continue
			}
			// A sketch that counted the key meanwhile keeps the sum of all writers.
			kept := o.w.o.MaxKeys > 0 && netOf(c, s.At) >= known.Charged-min(known.Charged, known.Refunded)
			if !over && !kept && (s.Charged < known.Charged || s.Refunded < known.Refunded) {
				o.w.fail("I1: %s lowers its own slot in window %d of %04x from %d-%d to %d-%d", m.name(), s.At, c.Key[0]>>48, known.Charged, known.Refunded, s.Charged, s.Refunded)
			}
			s.Charged, s.Refunded = max(s.Charged, known.Charged), max(s.Refunded, known.Refunded)
			o.written[at] = s
		}
	}
}

// bereft says that more members are lost to m now than a full right may miss. They count until N_ref forgets them.
func (m *member) bereft() bool {
	n := m.stand.NRef
	if n >= 3 {
		n--
	}
	return m.ring.Len() < n
}

// probed looks at the answers of the liveness phase (I9).
func (o *oracle) probed(probes []*question) {
	holder := map[owner.Key]*member{}
	for _, q := range probes {
		v := q.verdict
		switch {
		case !q.done || v == nil:
			o.w.fail("I9: %s does not answer for %04x", q.from.name(), q.q.Key[0]>>48)
		case v.a.Authority == owner.Overflow && o.w.o.MaxKeys > 0:
		case v.a.Authority != owner.Full && (v.a.Authority != owner.Part || !v.bereft):
			o.w.fail("I9: %s gets an answer by authority %d for %04x from %s", q.from.name(), v.a.Authority, q.q.Key[0]>>48, v.by.name())
		case holder[q.q.Key] != nil && holder[q.q.Key] != v.by:
			o.w.fail("I9: %s and %s both decide %04x", holder[q.q.Key].name(), v.by.name(), q.q.Key[0]>>48)
		}
		if v != nil {
			o.roomy(q, v)
			holder[q.q.Key] = v.by
		}
	}
}
