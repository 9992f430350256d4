package sim

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner"
)

// trouble is a kind of fault. A window is clean when none has touched it.
type trouble uint8

const (
	crashTrouble trouble = 1 << iota
	pauseTrouble
	cutTrouble
	stepTrouble
)

var troubles = [...]string{"crash", "pause", "cut", "clock step"}

// aware is how long after a cut a member may go on with the whole limit: T_own, from the last ping that was answered.
const aware = 2100 * time.Millisecond

const aftermath = int64(8 * time.Second) // a fault may show this long after its end

// oracle holds what members decide against what they may. It sees every decision when it is made, every answer when a
// client gets it, and every fault; a bound is made of the faults that touched the window that it is for.
type oracle struct {
	w        *World
	accounts map[owner.Key]*account
	ordered  []*account
	written  map[writing]limit.Slot // what each writer has told of its own slots
	last     [len(troubles)]int64   // end of the last fault of each kind
	decays   int                    // members whose N_ref has forgotten somebody
	split    int                    // parts at the last fault
	severed  []int64                // when each member was last cut off from others
	divided  int64                  // when there were parts last
	joins    int                    // places taken while members were lost
	leastN   int                    // of N_ref, from 3 on
	probing  bool
	loans    map[loan]*terms
	known    map[writing]uint64 // charges of each writer that another member has been told
	lent     map[writing]uint64 // what each grantor has lent
	carried  map[carried]uint64 // hits
	exact    bool               // nothing hinders anybody, so every answer is by full authority
}

// writing names a slot.
type writing struct {
	key    [2]uint64
	writer uint64
	at     int64
}

func (o *oracle) init(w *World) {
	*o = oracle{w: w, accounts: map[owner.Key]*account{}, carried: map[carried]uint64{}, written: map[writing]limit.Slot{}, loans: map[loan]*terms{}, known: map[writing]uint64{}, lent: map[writing]uint64{}, leastN: w.o.Slots, severed: make([]int64, w.o.Slots)}
	o.divided = math.MinInt64 / 2
	for i := range o.last {
		o.last[i] = math.MinInt64 / 2
	}
	p := &w.o
	o.exact = p.Planned() && p.Serial && p.Loss == 0 && p.Reorder == 0 && p.Breaks == 0 && p.Deaf == 0 && p.Deadline >= 250*time.Millisecond
}

// account is all that is known of one counter.
type account struct {
	key    owner.Key
	rule   limit.Rule
	strict bool
	unseen []givenUp // decisions that nobody has seen
	spans  []*span   // windows, the newest last; of a bucket the one busy period
	level  float64   // of a bucket, in hits
	credit float64   // of a bucket: hits given back
	freed  float64   // of a bucket: hits that credit has paid for since it was last empty
	early  float64   // the same, before it was: refunds may be seen before the charges that they are for
	at     int64     // of level, by the decider's clock
	by     *member
	skew   float64 // hits that other clocks let through
	log    []hit   // of a log

	owner  uint64  // ring position
	depth  uint64  // by the newest request for a lease
	lends  bool    // somebody has asked for a lease, or reported
	lender *member // the last one
	until  int64   // that what it lent is good for
	asked  []int64 // when, in calm runs
}

// givenUp is a question that was, and that may have been decided.
type givenUp struct {
	at int64
	q  *question
}

// hit is an admission, by the decider's clock.
type hit struct {
	at   int64
	n    uint64
	slop int64 // it may have been this much earlier
}

// span is a window, or a busy period of a bucket, and what may have gone wrong in it.
type span struct {
	index    int64
	start    int64 // by true time, when first seen
	end      int64 // by the decider's clock; of a bucket never
	latest   int64 // decision in it, by the decider's clock
	limit    uint64
	admitted uint64
	refunded uint64
	older    uint64 // hits given back of the window before that refunded does not show
	phi      uint64 // admitted under SHARE
	shares   map[*member]uint64
	share    uint64 // of one member, at most
	losses   uint64 // members lost that had decided in it
	ghost    uint64 // what may be admitted for lost state
	extra    uint64
	split    uint64 // parts of the cluster beside the first
	troubles trouble
	deciders []*member
	last     *member // the last of them
	heir     *member // the heir of that one
	refunds  bool
	scaled   bool              // some of it was decided by a part of the limit
	left     map[uint64]uint64 // counts at which a decision was made: the question
	balance  map[uint64]int    // decisions that lead away from a count, less those that lead to it
	missing  int               // decisions that nobody has seen
	charged  uint64            // hits that were asked for
	unknown  uint64            // hits of decisions that nobody has seen

	own     uint64    // admitted by decisions on the counter
	lenders []*member // of parts of it
	copiers map[*member]uint64
	ahead   uint64 // what copiers may have admitted unseen
}

func (o *oracle) account(q *question) *account {
	a := o.accounts[q.q.Key]
	if a == nil {
		a = &account{key: q.q.Key, rule: q.q.Rule, strict: q.q.Strict}
		o.accounts[q.q.Key] = a
		o.ordered = append(o.ordered, a)
	}
	return a
}

// span finds the window of a decision.
func (o *oracle) span(a *account, v *verdict) *span {
	switch {
	case a.rule.Algorithm.Bucket():
		return o.at(a, 0)
	case v.drawn:
		return o.at(a, v.window)
	}
	return o.at(a, a.index(v))
}

// at is window index of a.
func (o *oracle) at(a *account, index int64) *span {
	for i := len(a.spans) - 1; i >= 0; i-- {
		if a.spans[i].index == index {
			o.touch(a.spans[i])
			return a.spans[i]
		}
	}
	x := &span{index: index, start: o.w.now, end: math.MaxInt64, left: map[uint64]uint64{}, balance: map[uint64]int{}}
	if !a.rule.Algorithm.Bucket() {
		x.end = a.rule.End(index)
	}
	a.spans = append(a.spans, x)
	o.touch(x)
	// Some may have been given up before anybody saw a decision in x, maybe at this very moment.
	for i := len(a.unseen) - 1; i >= 0 && o.w.now-a.unseen[i].at < int64(time.Second); i-- {
		x.lacks(a.unseen[i].q)
	}
	return x
}

// index is the window that v was decided in. A decider may use the next one a little early, when another clock is ahead;
// where Reset is the end of the window, it tells.
func (a *account) index(v *verdict) int64 {
	i := a.rule.Index(v.until)
	if a.rule.Algorithm != limit.FixedWindow && (a.rule.Algorithm != limit.SlidingWindow || v.a.Over) {
		return i
	}
	for _, c := range []int64{a.rule.Index(v.since), i, i + 1} {
		most, least := wholeSeconds(a.rule.End(c)-v.since), wholeSeconds(a.rule.End(c)-v.until)
		if least <= v.a.Reset && v.a.Reset <= most {
			return c
		}
	}
	return i
}

func wholeSeconds(d int64) time.Duration {
	return max(time.Second, (time.Duration(d) + time.Second - 1).Truncate(time.Second))
}

// touch notes the faults that are near.
func (o *oracle) touch(x *span) {
	for i, at := range o.last {
		if o.w.now-at < aftermath {
			x.troubles |= 1 << i
		}
	}
	for i := range o.w.slots {
		if m := o.w.slots[i].now; m != nil && m.paused {
			x.troubles |= pauseTrouble
		}
		for j := range o.w.slots {
			if o.w.cut[i][j] {
				x.troubles |= cutTrouble
			}
		}
	}
	if x.troubles != 0 && x.split == 0 {
		// After a heal, parts go on by themselves until they meet.
		_, n := o.w.parts()
		if x.split = uint64(max(0, o.apart(n)-1)); o.w.now-o.divided < aftermath {
			x.split = max(1, x.split)
		}
	}
}

// current calls fn for every span that is not over.
func (o *oracle) current(fn func(*account, *span)) {
	for _, a := range o.ordered {
		for _, x := range a.spans {
			if x.end > o.w.now-int64(2*time.Second) {
				fn(a, x)
			}
		}
	}
}

// slack is U.
func (a *account) slack(l uint64) uint64 {
	if a.strict {
		return 0
	}
	return max(1, l/100)
}

// bound is what may be admitted in x beyond its limit.
func (o *oracle) bound(a *account, x *span) uint64 {
	b := x.phi + x.losses*a.slack(x.limit) + x.ghost + x.extra + x.ahead
	if x.troubles == 0 {
		return b
	}
	most := float64(x.limit)
	if a.rule.Algorithm.Bucket() {
		most += a.rate() * float64(o.w.now-x.start)
	}
	if n := o.leastN; n >= 3 && o.w.o.Policy == handoff.PolicyShare {
		b += uint64(math.Ceil(most / float64(n)))
	}
	if o.w.o.Policy == handoff.PolicyAvailable || o.decays+o.joins > 0 {
		b += uint64(math.Ceil(most)) * x.split
	}
	return b
}

// rate is the hits that a bucket drains in a nanosecond.
func (a *account) rate() float64 { return float64(a.rule.Limit) / float64(a.rule.Window) }

// decided sees a decision when it is made.
func (o *oracle) decided(q *question, v *verdict) {
	if o.probing {
		v.bereft = v.by.bereft()
		return
	}
	a := o.account(q)
	x := o.span(a, v)
	x.limit = max(x.limit, uint64(q.q.Rule.Depth()))
	x.charges(q, v)
	o.carry(a, x, q, v)
	whole := v.whole()
	if whole && !slices.Contains(x.deciders, v.by) {
		x.deciders = append(x.deciders, v.by)
	}
	if whole {
		o.holds(x, v.by, q.q.RingPos)
	}
	x.scaled = x.scaled || v.a.Authority == owner.Part
	switch {
	case q.q.Op == owner.Refund && whole:
		o.refunded(x, q, v)
		a.credit += float64(q.q.Hits)
	case q.q.Op != owner.Take || q.q.Hits == 0:
		return
	case v.a.Authority == owner.Full && v.a.Over != (v.a.After > uint64(q.q.Rule.Depth())):
		o.w.fail("#%d: %d hits at %d, over %v, limit %d", q.id, q.q.Hits, v.a.Before, v.a.Over, q.q.Rule.Depth())
	}
	if v.copied {
		o.copied(x, q, v)
	}
	if v.a.Authority == owner.Full && a.rule.Algorithm == limit.FixedWindow && !v.copied && !a.lends && o.w.o.MaxKeys == 0 {
		o.link(a, x, q, v)
	}
	if q.q.Op == owner.Take && !v.a.Over && v.a.Authority != owner.Cached {
		o.flow(a, x, q, v)
		if !v.drawn {
			x.own += q.q.Hits
		}
		if whole && a.lends {
			o.audit(v.by)
		}
	}
}

// holds notes who decides, and who would know if that one were gone.
func (o *oracle) holds(x *span, m *member, h uint64) {
	x.last, x.heir = m, nil
	if i := m.ring.Owner(h); i >= 0 && m.ring.At(i).ID != slotID(m.slot) {
		x.heir = o.w.slots[slotOf(m.ring.At(i).ID)].now
	} else if i := m.ring.Successor(h); i >= 0 {
		x.heir = o.w.slots[slotOf(m.ring.At(i).ID)].now
	}
}

// link holds the decisions on a counter to be one chain: each leads from a count to the next, and no count is left twice.
func (o *oracle) link(a *account, x *span, q *question, v *verdict) {
	x.balance[v.a.Before]++
	x.balance[v.a.After]--
	if q.q.Op != owner.Take {
		return
	}
	if other, twice := x.left[v.a.Before]; twice && x.troubles == 0 && !x.refunds && !o.apartInTime(x) {
		o.w.fail("I3, I6: questions #%d and #%d on %04x were both decided at count %d, the second by %s", other, q.id, a.key[0]>>48, v.a.Before, v.by.name())
	}
	x.left[v.a.Before] = q.id
}

// answered sees what a client is told.
func (o *oracle) answered(q *question, v *verdict) {
	if o.probing {
		return
	}
	if o.exact && v.a.Authority != owner.Full && v.a.Path != owner.Leased && (v.a.Authority != owner.Overflow || o.w.o.MaxKeys == 0) {
		o.w.fail("I4: question #%d was answered by %s by authority %d, though all is well", q.id, v.by.name(), v.a.Authority)
	}
	if q.q.Op != owner.Take || v.a.Over || q.q.Hits == 0 {
		return
	}
	a := o.account(q)
	if a.rule.Algorithm.Bucket() {
		return
	}
	x := o.span(a, v)
	x.admitted += q.q.Hits
	if v.a.Authority == owner.Share {
		o.shared(a, x, q, v)
	}
	if !v.drawn && !v.copied {
		o.unaware(x, v, q.q.Hits)
		if v.a.Authority != owner.Share { // those are counted
			o.astray(a, x, v, q.q.Hits)
		}
	}
	b := o.bound(a, x)
	o.w.stats.approach(x, float64(x.admitted)-float64(x.refunded), float64(x.limit), float64(b))
	switch a.rule.Algorithm {
	case limit.FixedWindow:
		if x.admitted > x.limit+x.refunded+b {
			o.w.fail("I4, I5: question #%d on %04x (%v): %d admitted in window %d, limit %d, refunded %d, bound %d: %s",
				q.id, a.key[0]>>48, a.rule.Window, x.admitted, x.index, x.limit, x.refunded, b, x)
		}
	case limit.SlidingLog:
		o.slide(a, x, q, v)
	case limit.SlidingWindow:
		o.weigh(a, x, q, v)
	}
}

// finish closes the books: what was decided in clean windows is one chain from 0.
func (o *oracle) finish() {
	for _, m := range o.w.running() {
		o.upheld(m)
	}
	for _, a := range o.ordered {
		for _, x := range a.spans {
			o.w.stats.window(x)
			o.used(a, x)
			if x.troubles != 0 || x.scaled || a.lends || a.rule.Algorithm != limit.FixedWindow || o.w.failure != "" || o.apartInTime(x) {
				continue
			}
			starts, from := 0, []uint64(nil)
			for _, count := range slices.Sorted(maps.Keys(x.balance)) {
				if n := x.balance[count]; n > 0 {
					starts, from = starts+n, append(from, count)
				}
			}
			// What was admitted under SHARE comes in between. A sharer's clock may put it into the window beside.
			known := x.phi
			for _, y := range a.spans {
				if d := y.index - x.index; d == 1 || d == -1 {
					known += y.phi
				}
			}
			if starts > 1+x.missing+int(known) {
				o.w.fail("I3, I6: window %d of %04x: its decisions are %d chains, not one, from %v; %d are unknown", x.index, a.key[0]>>48, starts, from, x.missing)
			}
		}
	}
}
