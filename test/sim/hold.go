package sim

import (
	"math/rand/v2"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner"
)

// holdOptions are the parameters of worlds with holds.
type holdOptions struct {
	On      bool
	Part    float64 // fraction of the requests that reserve
	Release float64 // fraction of the rules whose holds are released when they lapse
	Retries float64 // fraction of the reserves that are sent twice
	Races   float64 // fraction of the holds that are settled twice, in different ways
	Strange float64 // fraction of the requests that settle a hold that was never reserved
	Extends float64 // fraction of the open holds that are extended
	Excess  bool    // some commits exceed what was reserved
}

// expandHolds returns the options of a seed with holds. In a third of the seeds all changes are planned, in a third
// members crash and nothing else fails, and in an eighth a zone fails.
func expandHolds(seed uint64) options {
	zone := seed%8 == 7
	o := expandBase(seed)
	if zone {
		o = expandZones(seed)
	}
	r := rand.New(rand.NewPCG(seed, 0x401d5))
	all := append([]limit.Algorithm{limit.InFlight}, expandAlgorithms...)
	switch r.IntN(4) {
	case 0:
		o.Algorithms = all[1:2]
	case 1:
		o.Algorithms = all[:1]
	default:
		o.Algorithms = all
	}
	o.Rules, o.Refunds, o.OneOwner, o.Alike = 0, false, false, false
	o.Keys = 2 + r.IntN(4)
	h := &o.Holds
	h.On, h.Part, h.Excess = true, 0.5+0.4*r.Float64(), r.IntN(2) == 0
	h.Release = []float64{0, 0, 0.5, 1}[r.IntN(4)]
	h.Retries = []float64{0, 0.2}[r.IntN(2)]
	h.Races = []float64{0, 0.15}[r.IntN(2)]
	h.Strange = []float64{0, 0.05}[r.IntN(2)]
	h.Extends = []float64{0, 0.3}[r.IntN(2)]
	switch {
	case zone:
	case seed%3 == 0:
		o.Crashes, o.Pauses, o.Cuts, o.OneWay, o.Partitions, o.Steps, o.Stills, o.Decay = 0, 0, 0, 0, 0, 0, 0, time.Minute
		o.Leaves, o.Joins = 1+r.IntN(3), 1+r.IntN(3)
	case seed%3 == 1:
		o.Pauses, o.Cuts, o.OneWay, o.Partitions, o.Steps, o.Stills, o.Decay = 0, 0, 0, 0, 0, 0, time.Minute
		o.Crashes = 1 + r.IntN(2)
	}
	return o
}

var expandAlgorithms = []limit.Algorithm{
	limit.FixedWindow, limit.SlidingWindow, limit.SlidingLog, limit.TokenBucket, limit.LeakyBucket,
}

// hold is one hold of a client, or a plain request, which is charged and never settled.
type hold struct {
	w       *world
	id      claim.Ident
	k       int // its key
	hits    uint64
	ttl     time.Duration
	release bool  // when it lapses
	since   int64 // when it was first requested, in true time
	waiting int   // requests that reserve it and have no answer
	sent    int   // requests that reserve it
	unsure  bool  // a request was abandoned or decided without the owner, and may be charged later or twice

	admitted     bool // an owner, or a member's share, has admitted it
	accepted     bool // the client uses it
	answeredOnce bool // a client has the answer that it is admitted
	x            *span
	a            *account
	at           int64  // of the charge, by the clock of the member that decided
	low          uint64 // hits that stand charged, at least
	back         uint64 // hits that may have been given back
	high         uint64
	outcomes     []uint64 // hits that may stay charged
	backed       bool     // its only settlement, which an owner has confirmed, gives hits back
	settled      bool     // an owner has confirmed a settlement
	finished     int64    // when, or when it has lapsed
	lapses       int64    // not before, in true time
	remains      int64    // a claim of it may stay open until then, in true time: the member that made it had a clock ahead
	byOwner      bool     // the owner has admitted it first
	byShare      bool     // a member's share has admitted it, perhaps a second time
	survives     bool     // another zone has it, since the owner's failed
	lost         bool     // a member has crashed with a settlement that it repeats
}

// settlement is a settlement that a member repeats until an owner has confirmed it.
type settlement struct {
	h    *hold
	m    *member // that took it
	op   owner.Op
	hits uint64
	used uint64 // hits that stay charged
}

// setHold makes some requests for key k reserves.
func (w *world) setHold(q *request, k int) {
	if !w.o.Holds.On || q.req.Op != owner.Take {
		return
	}
	q.hold = &hold{w: w, k: k, hits: q.req.Hits, since: w.now, waiting: 1, sent: 1}
	if w.chance(w.o.Holds.Strange) {
		w.settleUnknown(k)
	}
	if w.healed || !w.chance(w.o.Holds.Part) { // the last holds lapse before the end
		return
	}
	h := q.hold
	h.id = claim.Ident{q.id * 0x9E3779B97F4A7C15, q.id}
	h.ttl = time.Duration(1+w.rnd.IntN(5)) * time.Second
	h.release = float64(k*7%10) < 10*w.o.Holds.Release
	q.req.Op = owner.Reserve
	if w.chance(w.o.Holds.Retries) {
		w.after(w.randomBelow(900*time.Millisecond), nil, func() { h.again(q) })
		h.waiting++
	}
}

// named returns the hold of a request of h.
func (h *hold) named() *owner.Hold {
	n := &owner.Hold{ID: h.id, TTL: h.ttl, Max: 1000}
	if h.release {
		n.Flags |= claim.Releases
	}
	return n
}

// reserves reports whether h is a hold, and not a plain request.
func (h *hold) reserves() bool { return h.id != claim.Ident{} }

// again sends the same reserve again.
func (h *hold) again(first *request) {
	m := h.w.readyMember()
	if m == nil || h.accepted || h.w.healed {
		h.answered(nil, nil)
		return
	}
	h.w.stats.count("hold: reserved again")
	h.sent++
	q := h.w.holdRequest(h, m, owner.Reserve, h.hits)
	q.hold = h
	q.start()
}

// holdRequest returns a request of m about h.
func (w *world) holdRequest(h *hold, m *member, op owner.Op, hits uint64) *request {
	w.requests++
	q := &request{id: w.requests, from: m, sentAt: w.now, deadline: w.now + int64(w.o.Deadline)}
	r := &w.rules[0][h.k]
	q.req = owner.Request{Key: r.digest, RingPos: r.owner, Rule: r.limit, Strict: r.strict, Hits: hits, Op: op, Waiter: q, Hold: h.named()}
	q.about = h
	if w.o.Domains > 0 {
		q.req.Domain = uint64(h.k % w.o.Domains)
	}
	return q
}

// start sends q, by a client next to its member.
func (q *request) start() {
	w := q.from.w
	if w.verbose {
		w.trace("%s is asked #%d: op %d hits %d key %04x hold %d", q.from.name(), q.id, q.req.Op, q.req.Hits, q.req.Key[0]>>48, q.req.Hold.ID[1])
	}
	w.after(time.Duration(q.deadline-w.now), q.from, q.expire)
	w.after(0, q.from, q.decide)
}

// answered processes the answer to a request that reserves h. nil is none.
func (h *hold) answered(q *request, v *decision) {
	h.waiting--
	if v != nil {
		h.accepted = h.accepted || !v.result.Over
		h.unsure = h.unsure || !v.result.Authority.FromCounter()
	}
	if h.waiting > 0 || !h.reserves() {
		return
	}
	w := h.w
	switch {
	case h.accepted:
		w.stats.count("hold: reserved")
		h.use()
	case h.unsure: // it may be charged nevertheless
		w.after(w.randomBelow(time.Second), nil, func() { h.settle(owner.Release, 0) })
	}
}

// use schedules what happens to h: usually it is settled soon, but some are settled after they have lapsed, or never.
func (h *hold) use() {
	w := h.w
	life := w.randomBelow(2500 * time.Millisecond)
	switch w.rnd.IntN(10) {
	case 0:
		return // its client has died
	case 1:
		life = h.ttl - 500*time.Millisecond + w.randomBelow(2*time.Second)
	}
	if w.chance(w.o.Holds.Extends) {
		w.after(w.randomBelow(life), nil, h.extend)
	}
	w.after(life, nil, func() { h.settleSomehow() })
	if w.chance(w.o.Holds.Races) {
		w.after(life+w.randomBelow(300*time.Millisecond), nil, func() { h.settleSomehow() })
	}
}

func (h *hold) settleSomehow() {
	w := h.w
	switch n := w.rnd.IntN(10); {
	case n < 5:
		h.settle(owner.Commit, w.rnd.Uint64N(h.hits+1))
	case n < 6 && w.o.Holds.Excess:
		h.settle(owner.Commit, h.hits+1+w.rnd.Uint64N(5))
	case n < 9:
		h.settle(owner.Release, 0)
	default:
		h.settle(owner.Keep, 0)
	}
}

// settle makes a member take a settlement of h.
func (h *hold) settle(op owner.Op, hits uint64) {
	m := h.w.readyMember()
	if m == nil {
		h.w.after(200*time.Millisecond, nil, func() { h.settle(op, hits) })
		return
	}
	s := &settlement{h: h, m: m, op: op, hits: hits, used: min(hits, h.hits)}
	if op == owner.Keep {
		s.used = h.hits
	}
	h.w.oracle.settles(s)
	s.send()
}

func (s *settlement) send() {
	if s.m.gone {
		s.h.lost = true
		s.h.w.stats.count("hold: settlement lost with its member")
		return
	}
	q := s.h.w.holdRequest(s.h, s.m, s.op, s.hits)
	q.settles = s
	q.start()
}

// repeat sends s again, which no owner has confirmed.
func (s *settlement) repeat() {
	w := s.h.w
	w.stats.count("hold: settlement repeated")
	w.after(100*time.Millisecond+w.randomBelow(100*time.Millisecond), nil, s.send)
}

// settled processes an answer to s.
func (s *settlement) answered(v *decision) {
	if !v.result.Authority.FromCounter() {
		s.repeat()
		return
	}
	s.h.w.stats.count("hold: settled")
	s.h.w.oracle.settled(s)
}

// settleUnknown settles a hold of key k that was never reserved.
func (w *world) settleUnknown(k int) {
	w.requests++
	h := &hold{w: w, k: k, id: claim.Ident{w.requests, 0xdead}, ttl: time.Second}
	w.stats.count("hold: unknown")
	if w.rnd.IntN(2) == 0 {
		h.settle(owner.Release, 1+w.rnd.Uint64N(9))
	} else {
		h.settle(owner.Commit, 1+w.rnd.Uint64N(9))
	}
}

// extend makes h's life begin again.
func (h *hold) extend() {
	m := h.w.readyMember()
	if m == nil || len(h.outcomes) > 0 {
		return
	}
	q := h.w.holdRequest(h, m, owner.Extend, 0)
	q.start()
}

// answeredHold processes the answer to a request about a hold. It returns false if q is none.
func (q *request) answeredHold(v *decision) bool {
	switch {
	case q.settles != nil:
		q.from.w.sabotageSettle(v.by, q)
		q.settles.answered(v)
	case q.req.Op == owner.Extend:
		if full := v.result.Authority == owner.Full && v.onCounter(); full && !v.result.Over {
			q.from.w.oracle.extended(q.about, v)
		}
	default:
		return false
	}
	return true
}
