package sim

import (
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// request is a request in progress.
type request struct {
	id        uint64
	req       owner.Request
	from      *member
	sentAt    int64 // by the client
	startedAt int64 // when a node began to decide it
	deadline  int64
	hops      int
	done      bool
	decision  *decision
	pending   bool  // from's own node will decide it later
	forged    int64 // window of a forged decision from an escrow; 0: none

	// In worlds with holds.
	hold    *hold       // that the request reserves, or of which it is one that nothing settles
	about   *hold       // that the request names
	settles *settlement // nil: it settles none

	quota func(*decision) // called with the decision of a request about the limit that Envoys spend; nil: it is about another
}

// decision is the result of a node for a request.
type decision struct {
	result   owner.Result
	by       *member
	earliest int64 // the first and last reading of by's clock at which it may have been decided
	latest   int64

	missesMembers bool // in a probe: whether by had lost too many members when it decided

	fromLease bool  // decided from a lease
	window    int64 // of the lease
	fromCopy  bool  // decided on a copy of the counter that may be out of date
}

// onCounter reports whether v was decided on the counter itself.
func (v *decision) onCounter() bool {
	return v.result.Authority.FromCounter() && !v.fromLease && !v.fromCopy
}

// byShare reports whether v was decided without the owner, by the deciding member's share of the limit or of what is
// left of it.
func (v *decision) byShare() bool {
	return v.result.Authority == owner.Share || v.result.Authority == owner.Closed
}

// sendRequest sends a request to a random member, or to the owner on a ring that may be out of date.
func (w *world) sendRequest() {
	k := w.pickKey()
	m := w.readyMember()
	if w.chance(w.o.Direct) && m != nil {
		if d := w.ownerByOldRing(w.rules[len(w.rules)-1][k].owner); d != nil {
			m = d // if there is none, any other
		}
	}
	if w.chance(w.o.Durable.Knocks) {
		if k := w.anyMember(); k != nil && !k.closing {
			m = k // it may be loading
		}
	}
	if m == nil && w.o.Durable.On {
		w.after(200*time.Millisecond+w.randomBelow(time.Second), nil, w.sendRequest)
		return
	}
	if m == nil {
		w.after(100*time.Millisecond, nil, w.sendRequest) // no member is ready
		return
	}
	w.sendTo(k, m)
}

// sendTo sends m a request for key k.
func (w *world) sendTo(k int, m *member) {
	w.requests++
	timeout := w.o.Deadline - w.randomBelow(w.o.Deadline/2)
	q := &request{id: w.requests, from: m, sentAt: w.now, deadline: w.now + int64(timeout)}
	q.req = owner.Request{Hits: 1}
	if w.o.Addends && w.rnd.IntN(2) == 0 {
		q.req.Hits = 1 + w.rnd.Uint64N(20)
	}
	switch {
	case w.o.Refunds && w.rnd.IntN(12) == 0:
		q.req.Op = owner.Refund
	case w.rnd.IntN(30) == 0:
		q.req.Op = owner.DryRun
	}
	w.setHold(q, k)
	w.after(w.randomBelow(time.Millisecond), m, func() {
		r := &w.rules[m.version][k]
		q.req.Key, q.req.RingPos, q.req.Rule, q.req.Strict, q.req.Waiter = r.digest, r.owner, r.limit, r.strict, q
		if r.closed {
			q.req.Degraded = policy.FailClosed
		}
		q.req.Partition, q.req.Volatile = r.partition, r.memory
		if r.by == policy.Static {
			q.req.Mechanism = r.by
		}
		w.setTenant(&q.req, k, r)
		w.setFederation(&q.req, k)
		if q.hold != nil && q.hold.reserves() {
			q.req.Hold, q.about = q.hold.named(), q.hold
		}
		if w.o.Domains > 0 {
			q.req.Domain = uint64(k % w.o.Domains)
		}
		if w.o.Leases.On {
			q.req.Mechanism, q.req.LeaseTerms, q.req.HotFactor = r.by, &r.knobs, 1
			w.oracle.requestSent(q)
		}
		if w.verbose {
			w.trace("%s is asked #%d: op %d hits %d key %04x", m.name(), q.id, q.req.Op, q.req.Hits, q.req.Key[0]>>48)
		}
		w.after(time.Duration(q.deadline-w.now), m, q.expire)
		q.decide()
	})
}

// readyMember returns a random member that is ready, or nil.
func (w *world) readyMember() *member {
	var ready []*member
	for _, m := range w.running() {
		if m.ready() {
			ready = append(ready, m)
		}
	}
	if len(ready) == 0 {
		return nil
	}
	return ready[w.rnd.IntN(len(ready))]
}

// ready reports whether m is on the ring, or was and still answers.
func (m *member) ready() bool { return m.joined && m.table[m.slot].state != joining && !m.closing }

func (w *world) pickKey() int {
	sum := 0
	for _, k := range w.keys {
		sum += k.weight
	}
	n := w.rnd.IntN(sum)
	for i, k := range w.keys {
		if n -= k.weight; n < 0 {
			return i
		}
	}
	return 0
}

// ownerByOldRing returns the owner of hash h on an old ring, or nil if it is not ready.
func (w *world) ownerByOldRing(h uint64) *member {
	server := w.readyMember()
	if server == nil {
		return nil
	}
	then := w.now - int64(w.randomBelow(w.o.Stale))
	var r *ring.Ring
	for i := len(server.pastRings) - 1; i >= 0; i-- {
		if r = server.pastRings[i].ring; server.pastRings[i].at <= then {
			break
		}
	}
	if r == nil || r.Len() == 0 {
		return nil
	}
	if m := w.slots[slotOf(r.At(r.Owner(h)).ID)].now; m != nil && m.ready() {
		return m
	}
	return nil
}

// decide passes the request to the node of the member that received it.
func (q *request) decide() {
	q.startedAt = q.from.clock()
	q.from.beforeFederated(q)
	q.handleResult(q.from.node.Decide(q.startedAt, &q.req))
}

// handleResult processes a result of the node of the member that received the request.
func (q *request) handleResult(a owner.Result) {
	m := q.from
	switch a.Kind {
	case owner.Pending:
		m.w.stats.count("answer: Wait")
		q.pending = true
		m.waiting[q] = q.startedAt
	case owner.Forward:
		m.w.stats.count("answer: Ask")
		q.forward(a.Member)
	default:
		m.w.sabotageFederated(m, q, &a)
		v := decision{result: a, by: m, earliest: q.startedAt, latest: m.clock()}
		m.w.sabotageRefusal(m, &q.req, &a)
		m.w.sabotageFair(m, &q.req, &a)
		m.w.oracle.classifyPath(q, &v)
		m.w.oracle.decided(q, &v)
		q.finish(&v)
	}
}

// resolved delivers the result of a request that was pending.
func (m *member) resolved(q *request, a owner.Result) {
	startedAt, ok := m.waiting[q]
	delete(m.waiting, q)
	if !ok {
		return
	}
	m.w.stats.count("answer: Resolved")
	if q.from == m {
		q.pending = false
		q.handleResult(a)
		return
	}
	q.reply(m, a, startedAt)
}

// forward sends the request to another member. One that is not the owner may name a better one, twice.
func (q *request) forward(to ring.ID) {
	m, w := q.from, q.from.w
	if q.done {
		return
	}
	if to == "" || q.hops >= 3 {
		q.degrade()
		return
	}
	q.hops++
	if w.verbose {
		w.trace("%s -> %s  question #%d", m.name(), to, q.id)
	}
	if to == w.slots[m.slot].id {
		q.decide()
		return
	}
	if !w.healed && w.chance(w.o.Loss) {
		return
	}
	w.deliver(m, slotOf(to), w.delay(), func(there *member) { there.serve(q) })
}

// serve passes another member's request to this member's node.
func (m *member) serve(q *request) {
	qs, as := [1]owner.Request{q.req}, [1]owner.Result{}
	qs[0].LeaseTerms = nil // not sent between members
	took := m.clock()
	m.beforeFederated(q)
	m.node.Serve(took, false, qs[:], as[:])
	a := as[0]
	if a.Kind != owner.Pending {
		q.reply(m, a, took)
		return
	}
	m.w.stats.count("answer: Wait")
	m.waiting[q] = took
	m.w.after(time.Duration(max(0, q.deadline-m.w.now)), m, func() {
		if _, still := m.waiting[q]; still {
			m.node.Cancel(q.req.Key, q)
			m.w.oracle.unseen(q, m)
			delete(m.waiting, q)
			m.w.stats.count("answer: Canceled")
		}
	})
}

// reply sends m's result back to the member that received the request.
func (q *request) reply(m *member, a owner.Result, took int64) {
	if a.Kind == owner.Decided {
		m.w.sabotageFederated(m, q, &a)
	}
	v := decision{result: a, by: m, earliest: took, latest: m.clock()}
	if a.Kind == owner.Decided {
		m.w.sabotageRefusal(m, &q.req, &a)
		m.w.sabotageFair(m, &q.req, &a)
		m.w.oracle.decided(q, &v)
	}
	if m.w.verbose {
		m.w.trace("%s -> %s  answer #%d key %04x: kind %d member %s %v->%v over %v by %d", m.name(), q.from.name(),
			q.id, q.req.Key[0]>>48, a.Kind, a.Member, a.Before, a.After, a.Over, a.Authority)
	}
	m.w.deliver(m, q.from.slot, m.w.delay(), func(there *member) {
		if there != q.from || q.done {
			return
		}
		if a.Kind == owner.Decided {
			there.node.Observe(there.clock(), &q.req, &v.result)
			q.finish(&v)
			return
		}
		m.w.stats.count("answer: not the owner")
		q.forward(a.Member)
	})
}

// expire ends the request at its deadline.
func (q *request) expire() {
	if q.done {
		return
	}
	if q.pending {
		delete(q.from.waiting, q)
		q.from.node.Cancel(q.req.Key, q)
		q.from.w.oracle.unseen(q, q.from)
		q.from.w.stats.count("answer: Canceled")
	}
	q.degrade()
}

// degrade decides the request by the rule's degraded policy.
func (q *request) degrade() {
	if q.req.Op > owner.Reserve {
		q.done = true
		if q.quota != nil {
			q.quota(&decision{result: owner.Result{Authority: owner.Shed, Decision: limit.Decision{Over: true}}, by: q.from})
		}
		if q.settles != nil {
			q.settles.repeat()
		}
		return
	}
	if q.hold != nil {
		q.hold.unsure = true
	}
	q.startedAt = q.from.clock()
	a := q.from.node.Degrade(q.startedAt, &q.req)
	q.from.w.sabotageFederated(q.from, q, &a)
	v := decision{result: a, by: q.from, earliest: q.startedAt, latest: q.startedAt}
	q.from.w.oracle.decided(q, &v)
	q.finish(&v)
}

// finish sends the decision to the client.
func (q *request) finish(v *decision) {
	if q.done {
		return
	}
	q.done, q.decision = true, v
	w := q.from.w
	w.stats.authority(v.result.Authority)
	w.mixHash(q.id, uint64(v.by.slot), uint64(v.result.Authority), v.result.Before, v.result.After)
	if w.verbose {
		w.trace("%s answers #%d key %04x: by %s authority %d, %d->%d over %v", q.from.name(), q.id, q.req.Key[0]>>48,
			v.by.name(), v.result.Authority, v.result.Before, v.result.After, v.result.Over)
	}
	if q.quota != nil {
		q.quota(v)
		return
	}
	if q.answeredHold(v) {
		return
	}
	w.oracle.answered(q, v)
	if q.hold != nil {
		q.hold.answered(q, v)
	}
}
