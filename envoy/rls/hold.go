package rls

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"net"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner"
)

// Entries at the end of a descriptor that say what becomes of a hold. They are cut off before the descriptor is matched,
// so that it has the counter of the request that made the hold.
const (
	// HoldEntry is the operation: commit, release, keep or extend. Without it, a request makes a hold.
	HoldEntry = "keyward.hold"
	// HoldIDEntry is the id of the hold, for callers that cannot send it as metadata. It comes before HoldEntry.
	HoldIDEntry = "keyward.id"
)

// Names of the metadata of calls with holds.
const (
	// HoldIDHeader identifies the request whose hold a call makes or settles. Envoy generates it; an id that clients can
	// choose would let them settle the holds of others.
	HoldIDHeader = "x-keyward-id"
	// CallerHeader names the Envoy. Without it, the address of the caller does.
	CallerHeader = "x-keyward-caller"
)

// repeatTTL is how long a request of a rule with once is remembered.
const repeatTTL = 2 * time.Second

// holdMark holds what the last entries of a descriptor say about a hold.
type holdMark struct {
	op     owner.Op
	id     string
	marked bool // a HoldEntry is present
}

var holdOps = map[string]owner.Op{
	"reserve": owner.Reserve, "commit": owner.Commit, "release": owner.Release, "keep": owner.Keep, "extend": owner.Extend,
}

// cutHold returns entries without those that say what becomes of a hold. An unknown operation is Keep, which has the
// least effect.
func cutHold(entries []config.Entry) ([]config.Entry, holdMark) {
	var m holdMark
	for n := len(entries); n > 0 && len(entries[n-1].Key) > 8; n-- {
		switch e := &entries[n-1]; e.Key {
		case HoldEntry:
			m.marked, m.op = true, owner.Keep
			if op, known := holdOps[e.Value]; known {
				m.op = op
			}
		case HoldIDEntry:
			m.id = e.Value
		default:
			return entries[:n], m
		}
		entries = entries[:n-1]
	}
	return entries, m
}

// HoldCaller identifies who makes and settles holds, by the connection and the metadata of a call.
type HoldCaller struct {
	ID       string   // HoldIDHeader
	Caller   string   // CallerHeader
	Address  net.Addr // of the connection; nil: unknown
	Identity string   // from the client's certificate; "": none

	conn *callerConn // nil: not tracked
}

// number returns the number of the caller in holds.
func (h *HoldCaller) number(c *callers) uint64 {
	if n := h.conn.number(); n != 0 {
		return n
	}
	return c.number(h.Caller, h.Address)
}

// claimID returns the ID of the hold that the caller calls id, of a counter. Who knows neither the key, nor the client
// certificate, nor the id can settle nothing.
func claimID(key owner.Key, identity, id string) claim.Ident {
	var space [256]byte
	b := binary.LittleEndian.AppendUint64(append(space[:0], "keyward hold"...), key[0])
	b = binary.LittleEndian.AppendUint64(b, key[1])
	b = binary.AppendUvarint(b, uint64(len(identity)))
	b = append(append(b, identity...), id...)
	sum := sha256.Sum256(b)
	return claim.Ident{binary.LittleEndian.Uint64(sum[:]), binary.LittleEndian.Uint64(sum[8:])}
}

// randomID returns an ID that no caller knows.
func randomID() (id claim.Ident) {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return claim.Ident{binary.LittleEndian.Uint64(b[:]), binary.LittleEndian.Uint64(b[8:])}
}

// setHold makes q, the request of descriptor i, one about a hold. t are the settings of its rule, nil if the rule only
// recognizes repeated requests or belongs to sets.
func (s *Service) setHold(c *Call, i int, q *owner.Request, t *claim.HoldTerms, once bool) {
	l, from, d := &c.slots[i], &c.continuation.caller.Hold, &c.Request.Descriptors[i]
	id := l.mark.id
	if id == "" {
		id = from.ID
	}
	switch {
	case t == nil && l.mark.marked && l.mark.op != owner.Reserve:
		q.Op, q.Hits = owner.Read, 0 // the rule has no holds to settle
		return
	case q.Op == owner.Refund, t == nil && (!once || id == "" || l.mark.marked):
		return
	case t == nil:
		q.Hold = &owner.Hold{ID: claimID(q.Key, from.Identity, id), TTL: repeatTTL, Flags: claim.Once}
		return
	case t.Settle == claim.SettleAddend && !l.mark.marked && !d.HasAddend:
		return
	}
	h := &owner.Hold{Caller: from.number(&s.callers)}
	setTerms(h, t, q, l)
	setHoldOp(q, h, d, &c.Request, t, &l.mark)
	anonymous := h.Oldest || t.Settle == claim.SettleAddend && !l.mark.marked
	switch {
	case anonymous:
		h.ID = randomID()
	case id != "":
		h.ID = claimID(q.Key, from.Identity, id)
	case q.Op == owner.Reserve:
		s.metrics.holdsWithoutID.Inc()
		h.ID = randomID()
	default:
		s.metrics.holdsWithoutID.Inc()
		q.Op, q.Hits, h = owner.Read, 0, nil // it names no hold
	}
	if q.Hold = h; q.Op != owner.Reserve {
		return
	}
	c.reserves++
	if h.Flags&claim.InFlight != 0 {
		from.conn.hold()
	}
}

// setTerms sets what the rule of l determines.
func setTerms(h *owner.Hold, t *claim.HoldTerms, q *owner.Request, l *slot) {
	h.TTL, h.Max, h.Flags = t.TTL, t.Max, 0
	if t.Lapse == claim.LapseRelease {
		h.Flags |= claim.Releases
	}
	if q.Rule.Algorithm == limit.InFlight {
		h.Flags |= claim.InFlight
	}
	h.ChargeOver = l.match.Rule != nil && l.match.Rule.Shadow
}

// setHoldOp sets the operation and the hits of q.
func setHoldOp(q *owner.Request, h *owner.Hold, d *Descriptor, r *RateLimitRequest, t *claim.HoldTerms, m *holdMark) {
	switch {
	case m.marked && m.op == owner.Reserve:
		q.Op, q.Hits = owner.Reserve, reservedHits(q, d, r, t)
	case m.marked && q.Rule.Algorithm == limit.InFlight && m.op.Settles(): // a slot has no cost: whatever settles it ends it
		q.Op, q.Hits = owner.Release, 0
	case m.marked:
		if q.Op = m.op; q.Op != owner.Commit {
			q.Hits = 0
		}
	case t.Settle == claim.SettleAddend && d.HasAddend && d.Addend > 0:
		q.Op, h.Oldest = owner.Commit, true
	default:
		q.Op, q.Hits = owner.Reserve, reservedHits(q, d, r, t)
	}
}

// reservedHits returns the hits that q reserves: its own, or else those of the rule. A request in flight takes one slot
// whatever the hits of the call.
func reservedHits(q *owner.Request, d *Descriptor, r *RateLimitRequest, t *claim.HoldTerms) uint64 {
	switch {
	case d.HasAddend && d.Addend > 0:
		return d.Addend
	case !d.HasAddend && r.HitsAddend > 0 && q.Rule.Algorithm != limit.InFlight:
		return uint64(r.HitsAddend)
	}
	return t.Reserve
}

// madeHolds returns the holds that c has made, or nil if there are none.
func (s *Service) madeHolds(c *Call) *madeHolds {
	if c.reserves == 0 {
		return nil
	}
	m := &madeHolds{service: s, requests: make([]owner.Request, 0, c.reserves)}
	for i := range c.requests {
		if q := &c.requests[i]; q.Op == owner.Reserve && !c.results[i].Over {
			m.requests = append(m.requests, *q)
		}
	}
	if len(m.requests) == 0 {
		return nil
	}
	return m
}

// madeHolds are the holds of one call.
type madeHolds struct {
	service  *Service
	requests []owner.Request
	results  []owner.Result
}

// release releases m, because the caller did not wait for the answer: it settles nothing. The Decider repeats what no
// owner confirms.
func (m *madeHolds) release() {
	s := m.service
	s.metrics.holdsAbandoned.Add(float64(len(m.requests)))
	for i := range m.requests {
		q := &m.requests[i]
		q.Op, q.Hits, q.Waiter = owner.Release, 0, nil
	}
	m.results = make([]owner.Result, len(m.requests))
	now := time.Now()
	deadline := policy.Deadline{Silent: now.Add(s.timeout), Alive: now.Add(liveOwnerTimeout)}
	if s.async == nil {
		s.decider.Decide(deadline, false, m.requests, m.results)
		return
	}
	s.async.Begin(deadline, false, m.requests, m.results, m)
}

// Decided does nothing: no caller waits.
func (*madeHolds) Decided() {}
