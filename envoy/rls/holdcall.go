package rls

import (
	"errors"
	"time"

	"github.com/keyward/keyward/envoy/internal/h2"
	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/stats"
	"github.com/keyward/keyward/owner"
)

// HoldRequest describes a call of an API for holds, for all of its descriptors. Such a call has the operation and
// the id as fields, where Envoy's has entries and metadata.
type HoldRequest struct {
	// Op is the operation. Reserve charges rules without holds as well, and the other operations that make or settle holds
	// do not concern them. Take, DryRun and Read ignore holds.
	Op owner.Op
	ID string // of the hold
	// TTL is the life of the hold, if that is shorter than the rule's; 0: the rule's.
	TTL time.Duration
	// Report makes a Commit charge rules without holds as well.
	Report bool
}

// ErrNoHolds is the error of a call that makes or settles holds, and whose descriptors match no rule with holds.
var ErrNoHolds = errors.New("no rule of these descriptors has holds: set reserve, or algorithm: in_flight")

// BeginHold decides c.Request as r requires, without blocking. It returns true if c is answered. Otherwise
// to.Answered(c) is called when it is, on any goroutine and perhaps before BeginHold returns. Answered must not block.
func (s *Service) BeginHold(c *Call, r HoldRequest, from Caller, to interface{ Answered(*Call) }) bool {
	c.setHoldRequest(r, &from)
	return s.begin(c, from, to)
}

// DecideHold decides c.Request as r requires, and blocks until it is decided.
func (s *Service) DecideHold(c *Call, r HoldRequest, from Caller) {
	c.setHoldRequest(r, &from)
	s.Decide(c, from)
}

func (c *Call) setHoldRequest(r HoldRequest, from *Caller) {
	c.Request.zeroRefunds()
	from.Hold.ID = r.ID
	c.api, c.isAPI = r, true
}

// TrackCaller records that k's connection is one of h.Caller, so that the requests in flight of a caller that dies are
// released. It is called from Serve, before the call is answered.
func (s *Service) TrackCaller(k *h2.Stream, h *HoldCaller) { h.conn = s.callers.track(k, h.Caller) }

// MadeHolds returns a function that releases the holds that c has made, for when its caller does not wait for the answer;
// nil if it has made none. It may be called after Release.
func (s *Service) MadeHolds(c *Call) (release func()) {
	if c.Err != nil {
		return nil
	}
	if m := s.madeHolds(c); m != nil {
		return m.release
	}
	return nil
}

// MethodStats returns the statistics of a gRPC method.
func (s *Service) MethodStats(name string) stats.MethodStats { return s.store.Method(name) }

// RequestLimits returns the sizes up to which a request is decided by its rules.
func (s *Service) RequestLimits() RequestLimits { return s.limits }

// DescriptorOutcome is the result of one descriptor of a call.
type DescriptorOutcome struct {
	Name     string // of the rule
	Counted  bool   // a limit applies; if not, only Name is set
	Over     bool   // the limit refuses the call
	InFlight bool   // the limit counts requests in flight
	Limit    uint32
	// Remaining is the rest of the limit; of a bucket, that of its burst.
	Remaining uint32
	Reset     time.Duration // until hits come back
	// Count is the usage of the limit, Held the part of it that open holds have reserved, and Holds their number. The last
	// two are only set by Read and DryRun.
	Count, Held uint64
	Holds       uint32
	Refused     bool          // Over, also by a rule in shadow mode. An Extend is refused if its hold is not open
	HasHold     bool          // the call is about a hold of the rule
	Reserved    uint64        // hits of the hold that the call has made; 0: none
	TTL         time.Duration // of that hold
}

// Outcome returns the result of descriptor i. It must not be called before c is answered, or if c.Err is set.
func (c *Call) Outcome(i int) DescriptorOutcome {
	if i >= len(c.slots) {
		return DescriptorOutcome{}
	}
	l := &c.slots[i]
	var o DescriptorOutcome
	if l.match.Rule != nil {
		o.Name = l.match.Rule.Name
	}
	if !l.counted() {
		return o
	}
	q, a := &c.requests[l.request], &c.results[l.request]
	st := c.status(l)
	o.Counted, o.Over, o.InFlight = true, st.Code == OverLimit, q.Rule.Algorithm == limit.InFlight
	o.Refused, o.HasHold = a.Over, q.Hold != nil
	o.Limit, o.Remaining, o.Reset = st.Limit, st.Remaining, a.Reset
	o.Count, o.Held, o.Holds = a.After, a.Held, a.Holds
	if q.Op == owner.Reserve && a.Path != owner.Fallback && (!a.Over || q.Hold.ChargeOver) && !c.refused() {
		o.Reserved, o.TTL = q.Hits, q.Hold.TTL
	}
	return o
}

// refused reports whether a limit refuses c.
func (c *Call) refused() bool {
	for i := range c.slots {
		if l := &c.slots[i]; l.counted() && c.results[l.request].Over && (l.match.Rule == nil || !l.match.Rule.Shadow) {
			return true
		}
	}
	return false
}

// apiMark returns the mark of a descriptor of an API's call.
func (c *Call) apiMark() holdMark {
	if c.api.Op < owner.Reserve {
		return holdMark{}
	}
	return holdMark{op: c.api.Op, marked: true}
}

// setAPI makes q, the request of descriptor i, what c.api requires. t are the settings of its rule, nil if it has no
// holds.
func (s *Service) setAPI(c *Call, i int, q *owner.Request, t *claim.HoldTerms, once bool) {
	switch op := c.api.Op; {
	case op < owner.Reserve:
		if q.Op = op; op == owner.Read {
			q.Hits = 0
		}
		return
	case t == nil:
		if op != owner.Reserve && !c.api.Report {
			q.Op, q.Hits = owner.Read, 0
		}
		return
	}
	if s.setHold(c, i, q, t, once); q.Hold == nil {
		return
	}
	c.holds++
	if c.api.TTL > 0 {
		q.Hold.TTL = min(q.Hold.TTL, c.api.TTL)
	}
}

// lacksHolds reports whether c makes or settles holds, and matches no rule that has them although it matches others.
func (c *Call) lacksHolds() bool {
	return c.isAPI && c.api.Op >= owner.Reserve && !c.api.Report && c.holds == 0 && len(c.requests) > 0
}
