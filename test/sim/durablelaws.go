package sim

import (
	"slices"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner"
)

// unsettled is how long after a change of the ring a successor may lack a part of the replicas.
const unsettled = 2 * time.Second

// journaled reports whether counters of q's rule are in journals.
func (w *world) journaled(q *owner.Request) bool {
	return w.o.Durable.On && q.Rule.Span() >= w.o.Durable.Window && !q.Volatile && q.Mechanism != policy.Approximate &&
		q.Mechanism != policy.Static
}

// restart describes what journals may lack of one window after all members have ended: that of the member that decided
// last, and that of its successor.
type restart struct {
	owner, successor             *volume // nil: its journal may lack everything
	lostByOwner, lostBySuccessor uint64
	decidedSince                 bool // hits were admitted on the counter since then
	pending                      bool // no member trusts its ring since then
}

// recentHits are hits that were admitted on a counter.
type recentHits struct {
	at   int64
	hits uint64
}

// countHits records hits that v admits on the counter of x.
func (o *oracle) countHits(a *account, x *span, q *request, v *decision) {
	if !a.journaled || !v.onCounter() {
		return
	}
	now, hits := o.w.now, q.req.Hits
	x.counted += hits
	if x.restart != nil {
		x.restart.decidedSince = true
	}
	if n := len(x.recent); n > 0 && now-x.recent[0].at > int64(30*time.Second) {
		x.recent = x.recent[1:]
	}
	x.recent = append(x.recent, recentHits{now, hits})
}

// countKnown records up to which count the successor knows the counter of x, of which v is a decision. Refused hits are
// counted, but not replicated; the next admitted ones are, with all before them. What was refused by a lower limit stays
// unknown when the limit is raised.
func (x *span) countKnown(q *request, v *decision) {
	x.replicated = max(x.replicated, min(v.result.After, uint64(q.req.Rule.Depth())))
}

// since returns the hits that were admitted on the counter of x since then.
func (x *span) since(then int64) (n uint64) {
	for i := len(x.recent) - 1; i >= 0 && x.recent[i].at >= then; i-- {
		n += x.recent[i].hits
	}
	return n
}

// lag returns how long a hit may take to be in m's journal, if half of U of its key are not: it is charged during a
// round, which has already taken its counter, waits for the next one, at most 100 ms, and for its end. With a usual
// disk, this is 200 ms at most; with a slow one, the rounds take longer.
func (m *member) lag() int64 {
	longest := m.longest
	if m.roundSince != 0 {
		longest = max(longest, m.w.now-m.roundSince)
	}
	return max(int64(200*time.Millisecond), int64(100*time.Millisecond)+2*longest) + int64(2*time.Millisecond)
}

// tolerance returns U of the key's rule. The rule's limit may have changed.
func (a *account) tolerance(x *span) uint64 { return max(a.rule.Unreplicated(), x.limit/100) }

// everything is more than any count.
const everything = uint64(1 << 40)

// lacksAsOwner returns how many hits of x, which m has decided last, may be missing in m's journal if all members end.
func (o *oracle) lacksAsOwner(a *account, x *span, m *member) uint64 {
	switch {
	case m.clean:
		return 0
	case m.down || !m.writing:
		return everything
	case !a.strict:
		return a.tolerance(x) + x.since(o.w.now-m.lag())
	case m.stalled != 0: // no request waits for the disk
		return x.since(m.stalled)
	}
	return 0
}

// lacksAsSuccessor returns the same for m, which is the successor of the member that has decided last. It writes what it
// receives as for async, and no request waits for that: also of a strict rule it may lack U and the hits of the last
// rounds. The documented bound of a lost volume, U for strict, does not include the latter.
func (o *oracle) lacksAsSuccessor(a *account, x *span, m *member) uint64 {
	if m.clean {
		return a.slack(x.limit)
	}
	if m.down || !m.writing || o.w.now-o.w.ringChangedAt < int64(unsettled) {
		return everything
	}
	return a.slack(x.limit) + a.tolerance(x) + x.since(o.w.now-m.lag())
}

// allStop records what ms, which are all members, have counted before they stop in good order.
func (o *oracle) allStop(ms []*member) {
	o.current(func(a *account, x *span) {
		if !a.journaled || a.rule.Algorithm != limit.FixedWindow || x.index != a.rule.Index(o.w.now) {
			return
		}
		req := owner.Request{Key: a.key, RingPos: a.owner, Rule: a.rule}
		for _, m := range ms {
			if x.floors == nil {
				x.floors = map[*member]uint64{}
			}
			x.floors[m] = m.node.RecordedUsage(m.clock(), &req)
		}
	})
}

// crashedWaiting records the requests that are pending at a member that crashes: their hits may be in a journal.
func (o *oracle) crashedWaiting(m *member) {
	for q := range m.waiting {
		o.unseen(q, m)
	}
}

// open reports whether hits may be charged in x now.
func (x *span) open(now int64) bool { return x.end > now-int64(2*time.Second) }

// counts reports whether x, a window of a, still counts: it is open, or it is one of a sliding algorithm that has ended
// and weighs on the next one.
func (a *account) counts(x *span, now int64) bool {
	sliding := a.rule.Algorithm == limit.SlidingWindow || a.rule.Algorithm.Log()
	return x.open(now) || sliding && x.end+int64(a.rule.Window) > now-int64(2*time.Second)
}

// mayLose returns how much may be admitted again if everything that was counted in x is lost: its limit, but of a window
// that has ended no more than was admitted in it.
func (x *span) mayLose(now int64) uint64 {
	if x.open(now) {
		return x.limit
	}
	return min(x.limit, x.admitted)
}

// allEnd records that all members, which are ms, end now: only journals remain.
func (o *oracle) allEnd(ms []*member) {
	w := o.w
	for _, m := range ms {
		for q := range m.waiting {
			o.unseen(q, m)
		}
	}
	o.lastRestart = w.now
	if !w.coldStart {
		w.lastVolumes = nil
		for _, m := range ms {
			w.lastVolumes = append(w.lastVolumes, m.volume)
		}
	}
	w.coldStart = true
	o.counting(func(a *account, x *span) {
		if x.open(w.now) { // what was admitted before is bound by the faults of its time
			x.faults |= faultCrash
		}
		if !a.journaled {
			x.allowance += x.mayLose(w.now)
			return
		}
		r := &restart{}
		for m, n := range x.floors {
			if m.clean {
				x.floor = max(x.floor, n)
			}
		}
		known := func(m *member) bool { return m != nil && (!m.gone || m.clean) }
		if m := x.last; known(m) {
			r.owner, r.lostByOwner = m.volume, o.lacksAsOwner(a, x, m)
		}
		if m := x.successor; known(m) && m != x.last {
			r.successor, r.lostBySuccessor = m.volume, o.lacksAsSuccessor(a, x, m)
		}
		if x.assumed { // the others have assumed that hits were lost, and no journal contains that
			r.lostByOwner, r.lostBySuccessor = everything, everything
		}
		if x.restart != nil && !x.restart.decidedSince { // nothing was admitted since the last time
			r = x.restart
		}
		r.pending = true
		x.restart = r
	})
}

// volumeLost records that v lacks what it contained, also for a later restart before which nothing is admitted.
func (o *oracle) volumeLost(v *volume) {
	for _, a := range o.accountOrder {
		for _, x := range a.spans {
			r := x.restart
			if r != nil && r.owner == v {
				r.owner = nil
			}
			if r != nil && r.successor == v {
				r.successor = nil
			}
		}
	}
}

// restarted records that m trusts its ring. If it is the first one after all members have ended, it and the other
// members have loaded what can be loaded, or m has waited long enough for those that have not.
func (o *oracle) restarted(m *member) {
	w := o.w
	if !w.coldStart {
		return
	}
	w.coldStart = false
	loaded := map[*volume]bool{}
	waited := m.waitedFor(coldStartLimit)
	for _, m := range w.running() {
		if !m.volume.lost && (m.loadedVolume || m.table[m.slot].loading && !waited) {
			loaded[m.volume] = true
		}
	}
	for _, a := range o.accountOrder {
		for _, x := range a.spans { // a window that has ended may still weigh on the next one
			o.settle(a, x, loaded)
		}
	}
}

// allLoaded reports whether the volumes of all members that have ended are loaded, and none is lost.
func (w *world) allLoaded() bool {
	for _, v := range w.lastVolumes {
		if v.lost || !slices.ContainsFunc(w.running(), func(m *member) bool { return m.loadedVolume && m.volume == v }) {
			return false
		}
	}
	return true
}

// settle records what the journals may lack of x, if all members had ended and those of some volumes are loaded.
func (o *oracle) settle(a *account, x *span, loaded map[*volume]bool) {
	r, w := x.restart, o.w
	if r == nil || !r.pending {
		return
	}
	r.pending = false
	lost := everything
	if r.owner != nil && loaded[r.owner] {
		lost = min(lost, r.lostByOwner)
	}
	if r.successor != nil && loaded[r.successor] {
		lost = min(lost, r.lostBySuccessor)
	}
	most := x.mayLose(w.now)
	if lost >= most {
		lost = most
		w.stats.count("journal: windows lost")
	} else {
		w.stats.count("journal: windows kept")
	}
	if r.owner == nil || !loaded[r.owner] {
		x.floor = min(x.floor, x.replicated)
	}
	x.floor -= min(x.floor, lost)
	x.restartLoss += lost
	x.restarts++
	w.trace("%04x window %d: %d counted, at most %d lost, floor %d", a.key[0]>>48, x.index, x.counted, x.restartLoss, x.floor)
}

// checkJournal checks that an owner counts, after all members have ended and started again, what the journals contain,
// and nothing else.
func (o *oracle) checkJournal(a *account, x *span, q *request, v *decision) {
	if !a.journaled || x.restarts == 0 || a.rule.Algorithm != limit.FixedWindow || v.result.Authority != owner.Full ||
		!v.onCounter() || x.lostState+x.allowance > 0 || x.refunds || x.faults&^faultCrash != 0 {
		return
	}
	o.w.stats.count("journal: decisions after a restart")
	tolerance := x.restartLoss + x.losses*a.slack(x.limit)
	if need := x.counted - min(x.counted, tolerance); v.result.Before < need {
		o.w.fail("J1: request #%d on %04x: %s counts %d in window %d, %d were admitted, and at most %d may be lost", q.id,
			a.key[0]>>48, v.by.name(), v.result.Before, x.index, x.counted, tolerance)
	}
	if x.restarts == 1 && v.result.Before < x.floor {
		o.w.fail("J2: request #%d on %04x: %s counts %d in window %d, %d were counted before all members stopped", q.id,
			a.key[0]>>48, v.by.name(), v.result.Before, x.index, x.floor)
	}
	reserved := o.reservedAhead(a, x)
	most := x.charged + x.unknown + o.carried[carried{a, x.index}] + reserved
	if n := v.result.Before + q.req.Hits*chargedAlready(q, v); n > most && n > most+o.w.pendingHits(a.key) {
		o.w.fail("J3: request #%d on %04x: %s counts %d in window %d, of which %d were charged and %d reserved", q.id,
			a.key[0]>>48, v.by.name(), v.result.Before, x.index, most-reserved, reserved)
	}
}

// fromJournal reports whether charges of writer may be in a journal although it has sent them to no member: its boot has
// ended.
func (w *world) fromJournal(writer uint64) bool {
	if !w.o.Durable.On {
		return false
	}
	for _, m := range w.running() {
		if inst(m.slot, m.boot)|1 == writer|1 {
			return false
		}
	}
	return true
}

// reservedAhead returns how many hits of x journals may have reserved ahead. Each boot that has decided the key, and has
// not stopped in good order, may have left U of them: also the one before, if the owner has changed. So may those that
// have charged requests that were abandoned.
func (o *oracle) reservedAhead(a *account, x *span) (n uint64) {
	count := func(m *member) {
		if a.strict && m.gone && !m.clean {
			n += a.tolerance(x)
		}
	}
	for _, m := range x.deciders {
		count(m)
	}
	for _, m := range a.undecided {
		if !slices.Contains(x.deciders, m) {
			count(m)
		}
	}
	return n
}

// pendingHits returns the hits of requests for a key that are charged and wait for a confirmation, or may be.
func (w *world) pendingHits(k owner.Key) (n uint64) {
	for _, m := range w.running() {
		for q := range m.waiting {
			if q.req.Key == k && q.req.Op == owner.Take {
				n += q.req.Hits
			}
		}
	}
	return n
}

// chargedAlready returns 1 if x.charged includes the hits of q, which its decision v does not count as before.
func chargedAlready(q *request, v *decision) uint64 {
	if q.req.Op == owner.Take && !v.refusedUncharged(q) {
		return 1
	}
	return 0
}
