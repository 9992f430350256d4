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

// faultKind is a kind of fault. A window is clean when none has touched it.
type faultKind uint8

const (
	faultCrash faultKind = 1 << iota
	faultPause
	faultCut
	faultStep
)

var faultNames = [...]string{"crash", "pause", "cut", "clock step"}

// revokedWithin is how long after a cut a member may go on with the whole limit: T_own, from the last ping that was answered.
const revokedWithin = 2100 * time.Millisecond

const faultTail = int64(8 * time.Second) // a fault may show this long after its end

// oracle holds what members decide against what they may. It sees every decision when it is made, every answer when a
// client gets it, and every fault; a bound is made of the faults that touched the window that it is for.
type oracle struct {
	w              *world
	accounts       map[owner.Key]*account
	accountOrder   []*account
	written        map[slotKey]limit.Slot // what each writer has told of its own slots
	lastFault      [len(faultNames)]int64 // end of the last fault of each kind
	decays         int                    // members whose N_ref has forgotten somebody
	split          int                    // parts at the last fault
	disconnectedAt []int64                // when each member was last cut off from others
	dividedAt      int64                  // when there were parts last
	joins          int                    // places taken while members were lost
	leastN         int                    // of N_ref, from 3 on
	probing        bool
	loans          map[leasePair]*terms
	known          map[slotKey]uint64 // charges of each writer that another member has been told
	lent           map[slotKey]uint64 // what each grantor has lent
	carried        map[carried]uint64 // hits
	expectFull     bool               // nothing hinders anybody, so every answer is by full authority
}

// slotKey names a slot.
type slotKey struct {
	key    [2]uint64
	writer uint64
	at     int64
}

func (o *oracle) init(w *world) {
	*o = oracle{w: w, accounts: map[owner.Key]*account{}, carried: map[carried]uint64{}, written: map[slotKey]limit.Slot{}, loans: map[leasePair]*terms{}, known: map[slotKey]uint64{}, lent: map[slotKey]uint64{}, leastN: w.o.Slots, disconnectedAt: make([]int64, w.o.Slots)}
	o.dividedAt = math.MinInt64 / 2
	for i := range o.lastFault {
		o.lastFault[i] = math.MinInt64 / 2
	}
	p := &w.o
	o.expectFull = p.onlyPlanned() && p.Serial && p.Loss == 0 && p.Reorder == 0 && p.Breaks == 0 && p.Deaf == 0 && p.Deadline >= 250*time.Millisecond
}

// account is all that is known of one counter.
type account struct {
	key    owner.Key
	rule   limit.Rule
	strict bool
	unseen []abandoned // decisions that nobody has seen
	spans  []*span     // windows, the newest last; of a bucket the one busy period
	level  float64     // of a bucket, in hits
	credit float64     // of a bucket: hits given back
	freed  float64     // of a bucket: hits that credit has paid for since it was last empty
	early  float64     // the same, before it was: refunds may be seen before the charges that they are for
	at     int64       // of level, by the decider's clock
	by     *member
	skew   float64     // hits that other clocks let through
	log    []admission // of a log

	owner  uint64  // ring position
	depth  uint64  // by the newest request for a lease
	lends  bool    // somebody has asked for a lease, or reported
	lender *member // the last one
	until  int64   // that what it lent is good for
	asked  []int64 // when, in calm runs
}

// abandoned is a question that was, and that may have been decided.
type abandoned struct {
	at int64
	q  *request
}

// admission is an admission, by the decider's clock.
type admission struct {
	at   int64
	n    uint64
	slop int64 // it may have been this much earlier
}

// span is a window, or a busy period of a bucket, and what may have gone wrong in it.
type span struct {
	index     int64
	start     int64 // by true time, when first seen
	end       int64 // by the decider's clock; of a bucket never
	latest    int64 // decision in it, by the decider's clock
	limit     uint64
	admitted  uint64
	refunded  uint64
	older     uint64 // hits given back of the window before that refunded does not show
	shared    uint64 // admitted under SHARE
	shares    map[*member]uint64
	share     uint64 // of one member, at most
	losses    uint64 // members lost that had decided in it
	lostState uint64 // what may be admitted for lost state
	allowance uint64
	split     uint64 // parts of the cluster beside the first
	faults    faultKind
	deciders  []*member
	last      *member // the last of them
	successor *member // the heir of that one
	refunds   bool
	scaled    bool              // some of it was decided by a part of the limit
	leftAt    map[uint64]uint64 // counts at which a decision was made: the question
	balance   map[uint64]int    // decisions that lead away from a count, less those that lead to it
	unseen    int               // decisions that nobody has seen
	charged   uint64            // hits that were asked for
	unknown   uint64            // hits of decisions that nobody has seen

	byOwner uint64    // admitted by decisions on the counter
	lenders []*member // of parts of it
	copiers map[*member]uint64
	ahead   uint64 // what copiers may have admitted unseen
}

func (o *oracle) account(q *request) *account {
	a := o.accounts[q.req.Key]
	if a == nil {
		a = &account{key: q.req.Key, rule: q.req.Rule, strict: q.req.Strict}
		o.accounts[q.req.Key] = a
		o.accountOrder = append(o.accountOrder, a)
	}
	return a
}

// span finds the window of a decision.
func (o *oracle) span(a *account, v *decision) *span {
	switch {
	case a.rule.Algorithm.Bucket():
		return o.at(a, 0)
	case v.fromLease:
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
	x := &span{index: index, start: o.w.now, end: math.MaxInt64, leftAt: map[uint64]uint64{}, balance: map[uint64]int{}}
	if !a.rule.Algorithm.Bucket() {
		x.end = a.rule.End(index)
	}
	a.spans = append(a.spans, x)
	o.touch(x)
	// Some may have been given up before anybody saw a decision in x, maybe at this very moment.
	for i := len(a.unseen) - 1; i >= 0 && o.w.now-a.unseen[i].at < int64(time.Second); i-- {
		x.addUnseen(a.unseen[i].q)
	}
	return x
}

// index is the window that v was decided in. A decider may use the next one a little early, when another clock is ahead;
// where Reset is the end of the window, it tells.
func (a *account) index(v *decision) int64 {
	i := a.rule.Index(v.latest)
	if a.rule.Algorithm != limit.FixedWindow && (a.rule.Algorithm != limit.SlidingWindow || v.result.Over) {
		return i
	}
	for _, c := range []int64{a.rule.Index(v.earliest), i, i + 1} {
		most, least := wholeSeconds(a.rule.End(c)-v.earliest), wholeSeconds(a.rule.End(c)-v.latest)
		if least <= v.result.Reset && v.result.Reset <= most {
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
	for i, at := range o.lastFault {
		if o.w.now-at < faultTail {
			x.faults |= 1 << i
		}
	}
	for i := range o.w.slots {
		if m := o.w.slots[i].now; m != nil && m.paused {
			x.faults |= faultPause
		}
		for j := range o.w.slots {
			if o.w.blocked[i][j] {
				x.faults |= faultCut
			}
		}
	}
	if x.faults != 0 && x.split == 0 {
		// After a heal, parts go on by themselves until they meet.
		_, n := o.w.parts()
		if x.split = uint64(max(0, o.independentParts(n)-1)); o.w.now-o.dividedAt < faultTail {
			x.split = max(1, x.split)
		}
	}
}

// current calls fn for every span that is not over.
func (o *oracle) current(fn func(*account, *span)) {
	for _, a := range o.accountOrder {
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
	b := x.shared + x.losses*a.slack(x.limit) + x.lostState + x.allowance + x.ahead
	if x.faults == 0 {
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
func (o *oracle) decided(q *request, v *decision) {
	if o.probing {
		v.missesMembers = v.by.missesMembers()
		return
	}
	a := o.account(q)
	x := o.span(a, v)
	x.limit = max(x.limit, uint64(q.req.Rule.Depth()))
	x.addCharge(q, v)
	o.addCarried(a, x, q, v)
	whole := v.onCounter()
	if whole && !slices.Contains(x.deciders, v.by) {
		x.deciders = append(x.deciders, v.by)
	}
	if whole {
		o.setHolders(x, v.by, q.req.RingPos)
	}
	x.scaled = x.scaled || v.result.Authority == owner.Part
	switch {
	case q.req.Op == owner.Refund && whole:
		o.refunded(x, q, v)
		a.credit += float64(q.req.Hits)
	case q.req.Op != owner.Take || q.req.Hits == 0:
		return
	case v.result.Authority == owner.Full && v.result.Over != (v.result.After > uint64(q.req.Rule.Depth())):
		o.w.fail("#%d: %d hits at %d, over %v, limit %d", q.id, q.req.Hits, v.result.Before, v.result.Over, q.req.Rule.Depth())
	}
	if v.fromCopy {
		o.addAhead(x, q, v)
	}
	if v.result.Authority == owner.Full && a.rule.Algorithm == limit.FixedWindow && !v.fromCopy && !a.lends && o.w.o.MaxKeys == 0 {
		o.checkChain(a, x, q, v)
	}
	if q.req.Op == owner.Take && !v.result.Over && v.result.Authority != owner.Cached {
		o.checkAdmitted(a, x, q, v)
		if !v.fromLease {
			x.byOwner += q.req.Hits
		}
		if whole && a.lends {
			o.checkLent(v.by)
		}
	}
}

// setHolders notes who decides, and who would know if that one were gone.
func (o *oracle) setHolders(x *span, m *member, h uint64) {
	x.last, x.successor = m, nil
	if i := m.ring.Owner(h); i >= 0 && m.ring.At(i).ID != slotID(m.slot) {
		x.successor = o.w.slots[slotOf(m.ring.At(i).ID)].now
	} else if i := m.ring.Successor(h); i >= 0 {
		x.successor = o.w.slots[slotOf(m.ring.At(i).ID)].now
	}
}

// checkChain holds the decisions on a counter to be one chain: each leads from a count to the next, and no count is left twice.
func (o *oracle) checkChain(a *account, x *span, q *request, v *decision) {
	x.balance[v.result.Before]++
	x.balance[v.result.After]--
	if q.req.Op != owner.Take {
		return
	}
	if other, twice := x.leftAt[v.result.Before]; twice && x.faults == 0 && !x.refunds && !o.clockFarOff(x) {
		o.w.fail("I3, I6: questions #%d and #%d on %04x were both decided at count %d, the second by %s", other, q.id, a.key[0]>>48, v.result.Before, v.by.name())
	}
	x.leftAt[v.result.Before] = q.id
}

// answered sees what a client is told.
func (o *oracle) answered(q *request, v *decision) {
	if o.probing {
		return
	}
	if o.expectFull && v.result.Authority != owner.Full && v.result.Path != owner.Leased && (v.result.Authority != owner.Overflow || o.w.o.MaxKeys == 0) {
		o.w.fail("I4: question #%d was answered by %s by authority %d, though all is well", q.id, v.by.name(), v.result.Authority)
	}
	if q.req.Op != owner.Take || v.result.Over || q.req.Hits == 0 {
		return
	}
	a := o.account(q)
	if a.rule.Algorithm.Bucket() {
		return
	}
	x := o.span(a, v)
	x.admitted += q.req.Hits
	if v.result.Authority == owner.Share {
		o.checkShare(a, x, q, v)
	}
	if !v.fromLease && !v.fromCopy {
		o.beforeRevocation(x, v, q.req.Hits)
		if v.result.Authority != owner.Share { // those are counted
			o.outsideWindow(a, x, v, q.req.Hits)
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
		o.checkLog(a, x, q, v)
	case limit.SlidingWindow:
		o.checkSlidingWindow(a, x, q, v)
	}
}

// finish closes the books: what was decided in clean windows is one chain from 0.
func (o *oracle) finish() {
	for _, m := range o.w.running() {
		o.checkViolations(m)
	}
	for _, a := range o.accountOrder {
		for _, x := range a.spans {
			o.w.stats.window(x)
			o.checkUsed(a, x)
			if x.faults != 0 || x.scaled || a.lends || a.rule.Algorithm != limit.FixedWindow || o.w.failure != "" || o.clockFarOff(x) {
				continue
			}
			starts, from := 0, []uint64(nil)
			for _, count := range slices.Sorted(maps.Keys(x.balance)) {
				if n := x.balance[count]; n > 0 {
					starts, from = starts+n, append(from, count)
				}
			}
			// What was admitted under SHARE comes in between. A sharer's clock may put it into the window beside.
			known := x.shared
			for _, y := range a.spans {
				if d := y.index - x.index; d == 1 || d == -1 {
					known += y.shared
				}
			}
			if starts > 1+x.unseen+int(known) {
				o.w.fail("I3, I6: window %d of %04x: its decisions are %d chains, not one, from %v; %d are unknown", x.index, a.key[0]>>48, starts, from, x.unseen)
			}
		}
	}
}
