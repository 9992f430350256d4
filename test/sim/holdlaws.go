package sim

import (
	"slices"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner"
)

// admits reports whether q is one that is admitted or refused.
func (q *request) admits() bool { return q.req.Op == owner.Take || q.req.Op == owner.Reserve }

// counted reports whether the oracle has counted the hold of q before, as of another request for it.
func (q *request) counted() bool { return q.hold != nil && q.hold.admitted }

// newlyAdmitted reports whether v admits q, which was not counted before.
func (q *request) newlyAdmitted(v *decision) bool {
	return q.admits() && !v.result.Over && v.result.Authority != owner.Cached && !q.counted()
}

// repeated reports whether q may repeat a request that was admitted, perhaps from a share while the owner was late, and
// so is admitted even if it does not fit.
func (q *request) repeated() bool { return q.hold != nil && (q.hold.sent > 1 || q.hold.admitted) }

// margin is how much earlier than its TTL a hold may lapse by another member's clock.
func (o *oracle) margin() int64 {
	d := int64(500 * time.Millisecond)
	if o.w.o.Steps+o.w.o.Stills > 0 {
		d = int64(8 * time.Second)
	}
	return d
}

// claimsArrived records the marks of settled holds that a member has received.
func (o *oracle) claimsArrived(msg *protocol.Message) {
	if !o.w.o.Holds.On {
		return
	}
	for i := range msg.Counters {
		for j := range msg.Counters[i].Claims {
			if c := &msg.Counters[i].Claims[j]; c.State() != claim.Open {
				o.marked[c.ID] = true
			}
		}
	}
}

// checkMark checks that another member knows of a settlement that gives hits back before a client learns that it is
// confirmed. The owner may not know the hold, soon after the ring has changed; then it gives nothing back.
func (o *oracle) checkMark(x *span, s *settlement, v *decision) {
	h := s.h
	if !h.admitted || h.settled || h.unsure || len(h.outcomes) > 1 || s.used >= h.hits || x.faults|h.x.faults != 0 || v.result.Authority != owner.Full ||
		o.w.now-o.w.ringChangedAt < int64(3*time.Second) || v.by.view.Ring.Len() < 2 || o.clockFarOff(x) || !o.stillCounts(h, x.index, v.latest+int64(time.Second)) {
		return
	}
	if o.w.stats.count("hold: mark checked"); !o.marked[h.id] {
		o.w.fail("H6: %s confirms that hold %d of %04x is settled, and no other member knows it: %s", v.by.name(), h.id[1], h.a.key[0]>>48, x)
	}
}

// decidedHold records what a decision has charged without admitting it.
func (o *oracle) decidedHold(a *account, x *span, q *request, v *decision) {
	if q.settles != nil {
		o.checkMark(x, q.settles, v)
	}
	if h := q.hold; h != nil && q.req.Op == owner.Reserve && !v.result.Over {
		h.byShare = h.byShare || v.byShare()
		h.remains = max(h.remains, v.by.clock()+int64(h.ttl))
	}
	switch {
	case !o.w.o.Holds.On:
	case q.req.Op == owner.Take && v.result.Over:
		x.overCharged += q.req.Hits
	case q.req.Op == owner.Commit && (!q.about.admitted || q.about.unsure || q.about.sent > 1): // the owner may not know it
		x.overCharged += q.req.Hits
	case q.req.Op == owner.Commit && q.req.Hits > q.about.hits:
		x.overCharged += q.req.Hits - q.about.hits
	}
}

// holdAdmitted records that an owner or a member's share has admitted the hold, or the plain request, of q.
func (o *oracle) holdAdmitted(a *account, x *span, q *request, v *decision) {
	h := q.hold
	if h == nil {
		return
	}
	h.admitted, h.a, h.x, h.at, h.byOwner = true, a, x, v.latest, v.onCounter()
	if h.low, h.high = h.hits, h.hits; h.unsure && h.sent > 1 {
		h.low = 0 // perhaps it was charged by an earlier request, in an earlier window
	}
	a.holds = append(a.holds, h)
	if !h.reserves() {
		h.outcomes, h.settled, h.finished = []uint64{h.hits}, true, o.w.now
		return
	}
	if x.faults&^faultCrash != 0 {
		x.holdSlack += h.hits // it may be settled on both sides
	}
	for _, used := range h.outcomes { // a settlement that was sent before may come after the charge
		o.mayEnd(h, used)
	}
	made := o.w.now
	if h.sent > 1 { // perhaps it was made by an earlier request, whose answer was lost
		made = h.since
	}
	o.lapsesAt(h, max(o.w.now, made+int64(h.ttl)-o.margin()))
}

// lapsesAt records that h does not lapse before then.
func (o *oracle) lapsesAt(h *hold, then int64) {
	h.lapses = then
	o.w.after(time.Duration(then-o.w.now), nil, func() {
		if h.lapses != then || h.settled {
			return
		}
		used := h.hits
		if h.release {
			used = 0
		}
		h.finished = o.w.now
		o.w.stats.count("hold: may lapse")
		o.mayUse(h, used)
	})
}

// mayUse records that h may end with so many hits charged.
func (o *oracle) mayUse(h *hold, used uint64) {
	h.outcomes = append(h.outcomes, used)
	if h.admitted {
		o.mayEnd(h, used)
	}
}

// mayEnd records what h, which is charged, has then given back.
func (o *oracle) mayEnd(h *hold, used uint64) {
	h.high = max(h.high, used)
	h.low = min(h.low, used)
	if back := h.hits - min(h.hits, used); back > h.back {
		h.x.refunded += back - h.back
		h.a.credit += float64(back - h.back)
		h.back = back
	}
	if h.x.faults&^faultCrash != 0 {
		h.x.holdSlack += h.hits
	}
}

// settles records that a client settles a hold.
func (o *oracle) settles(s *settlement) { o.mayUse(s.h, s.used) }

// settled records that an owner has confirmed s.
func (o *oracle) settled(s *settlement) {
	if !s.h.settled {
		s.h.settled, s.h.finished, s.h.backed = true, o.w.now, len(s.h.outcomes) == 1 && s.used < s.h.hits
	}
}

// extended records that an owner has extended h.
func (o *oracle) extended(h *hold, v *decision) {
	o.w.stats.count("hold: extended")
	h.remains = max(h.remains, v.by.clock()+int64(h.ttl))
	if len(h.outcomes) > 0 || !h.admitted {
		return
	}
	if h.a.rule.Algorithm == limit.InFlight {
		h.at = max(h.at, v.earliest)
	}
	o.lapsesAt(h, v.by.w.now+int64(h.ttl)-o.margin()-int64(o.w.o.Deadline))
}

// crashedHolds records that what a member knew about holds that have ended recently may be lost: settlements that are not
// confirmed, and those that give nothing back, which no client waits for. Such holds are then released when they lapse.
func (o *oracle) crashedHolds() {
	for _, a := range o.accountOrder {
		for _, h := range a.holds {
			waited := h.settled && h.backed
			if h.reserves() && (len(h.outcomes) > 0 && !h.settled || !waited && o.w.now-h.finished < int64(2*time.Second)) {
				h.x.holdSlack += h.hits
			}
		}
	}
}

// stillCounts reports whether h counts in the window of v, by all clocks.
func (o *oracle) stillCounts(h *hold, index int64, now int64) bool {
	switch h.a.rule.Algorithm {
	case limit.FixedWindow:
		return h.x.index == index
	case limit.InFlight:
		return h.at > now-int64(h.a.rule.Window)+int64(2*time.Second)
	}
	return false
}

// checkHolds checks a decision on the counter of a key with holds: the count includes all open holds, and what settled
// ones have used. It is not called for decisions that were pending: their counts are older. A repeated request may have been
// charged in an earlier window.
func (o *oracle) checkHolds(a *account, x *span, q *request, v *decision) {
	alg := a.rule.Algorithm
	if !o.w.o.Holds.On || v.result.Authority != owner.Full || q.repeated() || !v.onCounter() || alg != limit.FixedWindow && alg != limit.InFlight {
		return
	}
	index, floor, open := a.index(v), uint64(0), uint64(0)
	for _, h := range a.holds {
		if h != q.hold && o.stillCounts(h, index, v.latest) {
			floor += h.low
			open++
		}
	}
	if x.faults&^faultCrash == 0 && v.earliest == v.latest && x.split == 0 && q.admits() && !o.clockFarOff(x) {
		slack := o.bound(a, x) - x.forgotten // holds that are forgotten are not in floor
		if y := a.before(x); y != nil && alg == limit.InFlight {
			slack += o.bound(a, y) - y.forgotten
		}
		if o.w.stats.count("hold: count checked"); v.result.Before+slack < floor {
			o.w.fail("H1: request #%d on %04x (%v): %s counts %d, but %d of %d hits and holds are in use, bound %d: %s", q.id,
				a.key[0]>>48, alg, v.by.name(), v.result.Before, floor, open, slack, x)
		}
	}
}

// checkSlots checks that no more requests are in flight at once than the limit.
func (o *oracle) checkSlots(a *account, x *span, q *request, v *decision) {
	if !o.w.o.Holds.On || a.rule.Algorithm != limit.InFlight {
		return
	}
	held, shared := uint64(0), uint64(0)
	for _, h := range a.holds {
		if h.at <= v.latest-int64(a.rule.Window)+int64(2*time.Second) {
			continue
		}
		if held += h.low; h.byShare { // without the owner, which did not answer in time
			shared += h.hits
		}
	}
	most := x.limit + shared + o.bound(a, x) - x.forgotten // holds that are forgotten are not in held
	if y := a.before(x); y != nil {
		most += o.bound(a, y) - y.forgotten
	}
	if held > most {
		o.w.fail("H2: request #%d on %04x: %d slots are in use, limit %d, bound %d: %s", q.id, a.key[0]>>48, held, x.limit,
			most-x.limit, x)
	}
}

// checkSettled checks the counts at the end, when all holds are settled or have lapsed: they are what was used, and no
// member knows an open hold.
func (o *oracle) checkSettled(probes []*request) {
	if !o.w.o.Holds.On || o.w.failure != "" {
		return
	}
	counts := map[owner.Key]uint64{}
	for _, q := range probes {
		if q.decision != nil {
			counts[q.req.Key] = q.decision.result.After
		}
	}
	for _, m := range o.w.running() {
		for _, a := range o.accountOrder {
			// A counter whose hits have all expired is not replicated any more, and the copies of its claims have no effect.
			brief := counts[a.key] == 0 || a.rule.Window < time.Hour || a.rule.Algorithm.Bucket()
			r := m.view.Ring
			i := r.Owner(a.owner)
			if i < 0 || r.At(i).ID != slotID(m.slot) && brief {
				continue
			}
			holds, hits := m.node.HeldHits(a.key)
			if most := a.openAtEnd(o.w.now, r.At(i).ID != slotID(m.slot)); holds > most {
				o.w.fail("H3: %s knows %d open holds of %d hits of %04x (%v, %v) at the end; its owner is %s, its successor %s", m.name(),
					holds, hits, a.key[0]>>48, a.rule.Algorithm, a.rule.Window, r.At(r.Owner(a.owner)).ID, r.At(max(0, r.Successor(a.owner))).ID)
				return
			}
		}
	}
	seen := map[owner.Key]bool{}
	for _, q := range probes {
		if q.decision == nil || seen[q.req.Key] || q.decision.result.Authority != owner.Full {
			continue
		}
		seen[q.req.Key] = true
		if a := o.accounts[q.req.Key]; a != nil {
			o.checkEnd(a, q.decision)
		}
	}
}

// openAtEnd returns how many holds of a may be open at the end of a world: those made by a member whose clock had been
// set far ahead, and, at a successor, those that members' shares have admitted. The successor may know such a claim as
// open when the owner does not: because the member that made it took the successor for the owner, or because the owner
// has charged the request, too, and has settled that charge. Nothing wrong follows if the successor takes over: the
// claim is of a charge of its own, that of the share, which stays charged or is given back when the claim lapses.
func (a *account) openAtEnd(now int64, copies bool) (n uint64) {
	for _, h := range a.holds {
		if h.remains > now || copies && h.byShare {
			n++
		}
	}
	return n
}

// checkEnd compares the count of a at the end with what was used.
func (o *oracle) checkEnd(a *account, v *decision) {
	index := a.index(v)
	i := slices.IndexFunc(a.spans, func(x *span) bool { return x.index == index })
	if i < 0 || a.rule.Algorithm != limit.FixedWindow || o.clockFarOff(a.spans[i]) {
		return
	}
	x, low, high := a.spans[i], uint64(0), uint64(0)
	for _, h := range a.holds {
		if h.x != x {
			continue
		}
		low += slices.Min(append(h.outcomes, h.high))
		high += slices.Max(append(h.outcomes, 0))
		if h.unsure || h.lost || h.sent > 1 {
			high += h.hits * uint64(h.sent)
		}
	}
	high += x.overCharged + x.unknown + o.carried[carried{a, index}]
	if x.faults == 0 && v.result.After+o.bound(a, x) < low {
		o.w.fail("H4: the count of window %d of %04x is %d at the end, but %d was used: %s", index, a.key[0]>>48, v.result.After, low, x)
	}
	if !o.w.o.onlyPlanned() || x.faults != 0 {
		return
	}
	o.w.stats.count("hold: end checked")
	if v.result.After == low && low == high {
		o.w.stats.count("hold: end exact")
	}
	if v.result.After > high {
		o.w.fail("H5: the count of window %d of %04x is %d at the end, but only %d to %d was used: %s", index, a.key[0]>>48,
			v.result.After, low, high, x)
	}
}
