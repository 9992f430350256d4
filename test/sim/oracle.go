package sim

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner"
)

// faultKind is a set of kinds of faults. A window is clean if none has touched it.
type faultKind uint8

const (
	faultCrash faultKind = 1 << iota
	faultPause
	faultCut
	faultStep
)

var faultNames = [...]string{"crash", "pause", "cut", "clock step"}

// revokedWithin returns how long after a disconnection m may continue with the full limit: T_own, from the last Ping that
// was answered.
func (m *member) revokedWithin() time.Duration {
	return m.w.o.detectionOf(m.slot).OwnershipTTL() + 600*time.Millisecond
}

// faultTail returns how long after its end a fault may have effects.
func (o *oracle) faultTail() int64 { return int64(o.w.o.slowed(8 * time.Second)) }

// oracle compares what members decide with what they may decide. It sees every decision when it is made, every reply
// when a client gets it, and every fault. The bound of a window follows from the faults that touched it.
type oracle struct {
	w              *world
	accounts       map[owner.Key]*account
	accountOrder   []*account
	written        map[slotKey]limit.Slot // what each writer has sent about its own slots
	lastFault      [len(faultNames)]int64 // end of the last fault of each kind
	decays         int                    // members whose N_ref has excluded another
	split          int                    // parts at the last fault
	disconnectedAt []int64                // when each member was last disconnected from others
	dividedAt      int64                  // when the cluster last had several parts
	joins          int                    // places taken while members were lost
	leastN         int                    // of N_ref, from 3 on
	probing        bool
	loans          map[leasePair]*terms
	known          map[slotKey]uint64   // charges of each writer that another member has received
	lent           map[slotKey]uint64   // what each grantor has lent
	carried        map[carried]uint64   // hits
	marked         map[claim.Ident]bool // holds of which another member than the owner knows that they are settled
	lastRestart    int64                // when all members have last ended
	expectFull     bool                 // there are no faults, so every decision has full authority
}

// slotKey identifies a slot of a counter.
type slotKey struct {
	key    [2]uint64
	writer uint64
	at     int64
}

func (o *oracle) init(w *world) {
	*o = oracle{
		w: w, accounts: map[owner.Key]*account{}, carried: map[carried]uint64{}, marked: map[claim.Ident]bool{}, written: map[slotKey]limit.Slot{},
		loans: map[leasePair]*terms{}, known: map[slotKey]uint64{}, lent: map[slotKey]uint64{},
		leastN: w.o.Slots, disconnectedAt: make([]int64, w.o.Slots),
	}
	o.dividedAt = math.MinInt64 / 2
	for i := range o.lastFault {
		o.lastFault[i] = math.MinInt64 / 2
	}
	p := &w.o
	o.expectFull = p.onlyPlanned() && p.Serial && p.Loss == 0 && p.Reorder == 0 && p.Breaks == 0 && p.Deaf == 0 &&
		p.Deadline >= 250*time.Millisecond
}

func (o *oracle) account(q *request) *account {
	a := o.accounts[q.req.Key]
	if a == nil {
		a = &account{key: q.req.Key, rule: q.req.Rule, strict: q.req.Strict, partition: q.req.Partition}
		if a.journaled = o.w.journaled(&q.req); o.w.o.Durable.On || o.w.o.Holds.On {
			a.owner = q.req.RingPos
		}
		o.accounts[q.req.Key] = a
		o.accountOrder = append(o.accountOrder, a)
	}
	return a
}

// span returns the window of a decision.
func (o *oracle) span(a *account, v *decision) *span {
	switch {
	case a.rule.Algorithm.Bucket():
		return o.at(a, 0)
	case v.fromLease:
		return o.at(a, v.window)
	}
	return o.at(a, a.index(v))
}

// at returns the window of a with that index.
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
	// Some requests may have been abandoned before the first decision in x was seen, perhaps at this very time.
	for i := len(a.unseen) - 1; i >= 0 && o.w.now-a.unseen[i].at < int64(time.Second); i-- {
		x.addUnseen(a.unseen[i].q)
	}
	return x
}

// index returns the window in which v was decided. A member may use the next window a little early if another clock
// is ahead. If Reset is the end of the window, it shows which one was used.
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

// touch records the faults near the present time.
func (o *oracle) touch(x *span) {
	for i, at := range o.lastFault {
		if o.w.now-at < o.faultTail() {
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
		// After partitions heal, parts operate independently until they meet.
		_, n := o.w.parts()
		if x.split = uint64(max(0, o.independentParts(n)-1)); o.w.now-o.dividedAt < o.faultTail() {
			x.split = max(1, x.split)
		}
	}
}

// current calls fn for every span that is not over.
func (o *oracle) current(fn func(*account, *span)) {
	for _, a := range o.accountOrder {
		for _, x := range a.spans {
			if x.open(o.w.now) {
				fn(a, x)
			}
		}
	}
}

// counting calls fn for every span that still counts.
func (o *oracle) counting(fn func(*account, *span)) {
	for _, a := range o.accountOrder {
		for _, x := range a.spans {
			if a.counts(x, o.w.now) {
				fn(a, x)
			}
		}
	}
}

// slack returns U, the number of unreplicated charges that a key may have.
func (a *account) slack(l uint64) uint64 {
	if a.strict {
		return 0
	}
	return max(1, l/100)
}

// bound returns how much may be admitted in x beyond its limit.
func (o *oracle) bound(a *account, x *span) uint64 {
	b := x.shared + x.losses*a.slack(x.limit) + x.lostState + x.allowance + x.ahead + x.restartLoss + x.holdSlack
	if x.faults == 0 || o.w.o.sharp() {
		return b
	}
	most := float64(x.limit)
	if a.rule.Algorithm.Bucket() {
		most += a.rate() * float64(o.w.now-x.start)
	}
	if n := o.leastN; n >= 3 && o.policyOf(a) == policy.PartShare {
		b += uint64(math.Ceil(most / float64(n)))
	}
	// Members that start in different parts are clusters of their own.
	if o.policyOf(a) == policy.PartAvailable || o.decays+o.joins > 0 || o.lastRestart > 0 {
		b += uint64(math.Ceil(most)) * x.split
	}
	return b
}

// rate returns the hits that a bucket drains per nanosecond.
func (a *account) rate() float64 { return float64(a.rule.Limit) / float64(a.rule.Window) }

// decided processes a decision when it is made.
func (o *oracle) decided(q *request, v *decision) {
	switch {
	case q.quota != nil:
	case o.probing:
		v.missesMembers = v.by.missesMembers()
	case q.req.Federation != nil:
		o.decidedFederated(q, v)
	case v.result.Authority == owner.Static:
		o.decidedStatic(q, v)
	default:
		o.decidedByCluster(q, v)
	}
}

// decidedByCluster processes a decision about a limit of one cluster that is not static.
func (o *oracle) decidedByCluster(q *request, v *decision) {
	a := o.account(q)
	x := o.span(a, v)
	x.limit = max(x.limit, uint64(q.req.Rule.Depth()))
	x.addCharge(q, v)
	o.addCarried(a, x, q, v)
	o.decidedFair(q, v)
	if o.decidedHold(a, x, q, v); q.about != nil && !q.admits() {
		return
	}
	whole := v.onCounter()
	if whole {
		o.decidedBy(x, v.by, q.req.RingPos)
		x.countKnown(q, v)
	}
	x.scaled = x.scaled || v.result.Authority == owner.Part
	switch {
	case q.req.Op == owner.Refund && whole:
		o.refunded(x, q, v)
		a.credit += float64(q.req.Hits)
	case !q.admits() || q.req.Hits == 0:
		return
	case v.result.Authority == owner.Full && !q.repeated() && v.result.Over != (v.result.FairShare || v.result.After > uint64(q.req.Rule.Depth())):
		o.w.fail("#%d: %d hits at %d, over %v, limit %d", q.id, q.req.Hits, v.result.Before, v.result.Over,
			q.req.Rule.Depth())
	}
	if v.fromCopy {
		o.addAhead(x, q, v)
	}
	if v.result.Authority == owner.Full && a.rule.Algorithm == limit.FixedWindow && !v.fromCopy && !a.lends &&
		o.w.o.MaxKeys == 0 && !v.refusedUncharged(q) && !o.w.o.Holds.On {
		o.checkChain(a, x, q, v)
	}
	o.checkClosed(a, x, q, v)
	o.checkSurvived(a, x, q, v)
	o.checkJournal(a, x, q, v)
	o.checkHolds(a, x, q, v)
	if q.newlyAdmitted(v) {
		o.holdAdmitted(a, x, q, v)
		o.checkAdmitted(a, x, q, v)
		if !v.fromLease {
			x.byOwner += q.req.Hits
		}
		o.countHits(a, x, q, v)
		if whole && a.lends {
			o.checkLent(v.by)
		}
	}
}

// decidedBy records which member decides.
func (o *oracle) decidedBy(x *span, m *member, h uint64) {
	if !slices.Contains(x.deciders, m) {
		x.deciders = append(x.deciders, m)
	}
	o.setHolders(x, m, h)
}

// setHolders records which member decides, and which would know the counter if that one were lost.
func (o *oracle) setHolders(x *span, m *member, h uint64) {
	x.last, x.successor, x.spare = m, nil, nil
	if i := m.view.Ring.ZoneReplica(h); i >= 0 {
		x.spare = o.w.slots[slotOf(m.view.Ring.At(i).ID)].now
	}
	if i := m.view.Ring.Owner(h); i >= 0 && m.view.Ring.At(i).ID != slotID(m.slot) {
		x.successor = o.w.slots[slotOf(m.view.Ring.At(i).ID)].now
	} else if i := m.view.Ring.Successor(h); i >= 0 {
		x.successor = o.w.slots[slotOf(m.view.Ring.At(i).ID)].now
	}
}

// answered processes a decision that a client receives.
func (o *oracle) answered(q *request, v *decision) {
	if q.req.Federation != nil {
		o.answeredFederated(q, v)
		return
	}
	if o.probing || v.result.Authority == owner.Static {
		return
	}
	if o.expectFull && v.result.Authority != owner.Full && v.result.Path != owner.Leased &&
		(v.result.Authority != owner.Overflow || o.w.o.MaxKeys == 0 && !o.w.o.Holds.On) {
		o.w.fail("I4: request #%d was decided by %s with authority %d, although there are no faults", q.id,
			v.by.name(), v.result.Authority)
	}
	if !q.admits() || v.result.Over || q.req.Hits == 0 || q.hold != nil && q.hold.answeredOnce {
		return
	}
	a := o.account(q)
	if q.hold != nil {
		q.hold.answeredOnce = true
	}
	if a.rule.Algorithm.Bucket() {
		return
	}
	x := o.span(a, v)
	x.admitted += q.req.Hits
	if v.byShare() {
		o.checkShare(a, x, q, v)
	}
	if !v.fromLease && !v.fromCopy {
		o.beforeRevocation(x, v, q.req.Hits)
		if !v.byShare() { // shares are counted
			o.outsideWindow(a, x, v, q.req.Hits)
		}
	}
	b := o.bound(a, x)
	o.w.stats.approach(x, float64(x.admitted)-float64(x.refunded), float64(x.limit), float64(b))
	switch a.rule.Algorithm {
	case limit.FixedWindow:
		if x.admitted > x.limit+x.refunded+b {
			o.w.fail("I4, I5: request #%d on %04x (%v): %d admitted in window %d, limit %d, refunded %d, bound %d: %s",
				q.id, a.key[0]>>48, a.rule.Window, x.admitted, x.index, x.limit, x.refunded, b, x)
		}
	case limit.SlidingLog, limit.InFlight:
		o.checkLog(a, x, q, v)
		o.checkSlots(a, x, q, v)
	case limit.SlidingWindow:
		o.checkSlidingWindow(a, x, q, v)
	}
}

// finish checks all windows at the end: the decisions in a clean window form one chain from 0.
func (o *oracle) finish() {
	for _, m := range o.w.running() {
		o.checkViolations(m)
	}
	for _, a := range o.accountOrder {
		for _, x := range a.spans {
			o.w.stats.window(x)
			o.checkUsed(a, x)
			if x.faults != 0 || x.scaled || a.lends || o.w.o.Holds.On || a.rule.Algorithm != limit.FixedWindow || o.w.failure != "" ||
				o.clockFarOff(x) {
				continue
			}
			starts, from := 0, []uint64(nil)
			for _, count := range slices.Sorted(maps.Keys(x.balance)) {
				if n := x.balance[count]; n > 0 {
					starts, from = starts+n, append(from, count)
				}
			}
			// Decisions under SHARE come in between. The clock of a member that decides by its share may put them
			// into the adjacent window.
			known := x.shared
			for _, y := range a.spans {
				if d := y.index - x.index; d == 1 || d == -1 {
					known += y.shared
				}
			}
			if starts > 1+x.unseen+int(known) {
				o.w.fail("I3, I6: window %d of %04x: its decisions are %d chains, not one, from %v; %d are unknown",
					x.index, a.key[0]>>48, starts, from, x.unseen)
			}
		}
	}
}
