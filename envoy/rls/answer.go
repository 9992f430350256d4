package rls

import (
	"time"

	"github.com/keyward/keyward/internal/policy"
)

// continuation is the state that a call needs once its requests are decided.
type continuation struct {
	service *Service
	view    *view // the rules that it was matched with
	caller  Caller
	waiter  interface{ Answered(*Call) }
}

// Decide decides c.Request and sets c.Response or c.Err.
func (s *Service) Decide(c *Call, from Caller) {
	if s.prepare(c, from) {
		s.decider.Decide(c.deadline(), c.isSet(), c.requests, c.results)
		c.markDecided()
	}
	s.finish(c)
}

// begin is Decide without blocking. It returns true if c is answered. Otherwise to.Answered(c) is called when it is,
// on any goroutine and perhaps before begin returns. Answered must not block. begin blocks if the Decider is not an
// AsyncDecider.
func (s *Service) begin(c *Call, from Caller, to interface{ Answered(*Call) }) bool {
	if s.async == nil {
		s.Decide(c, from)
		return true
	}
	if s.prepare(c, from) {
		c.continuation.waiter = to
		if !s.async.Begin(c.deadline(), c.isSet(), c.requests, c.results, (*pending)(c)) {
			return false // c now belongs to another goroutine
		}
		c.markDecided()
	}
	s.finish(c)
	return true
}

// isSet reports whether the requests of c are charged only if all of them fit. Those that make holds are: nothing would
// settle the holds of a call that is refused.
func (c *Call) isSet() bool {
	return c.continuation.service.stop || (c.reserves > 0 || c.set) && len(c.requests) > 1
}

// pending is a Call that waits for its results.
type pending Call

// Decided finishes the call.
func (p *pending) Decided() {
	c := (*Call)(p)
	to := c.continuation.waiter
	c.markDecided()
	c.continuation.service.finish(c)
	to.Answered(c)
}

// prepare matches the descriptors of c and builds the requests that must be decided. It returns false if there are
// none, or if the call is answered without them.
func (s *Service) prepare(c *Call, from Caller) bool {
	if from.ReceivedAt.IsZero() {
		from.ReceivedAt = time.Now()
	}
	v := s.current.Load()
	c.continuation = continuation{service: s, view: v, caller: from}
	c.Response.reset()
	c.Err, c.requests = nil, c.requests[:0]
	switch req := &c.Request; {
	case req.Excess != within:
		s.refuseExcess(c, v)
		return false
	case req.Domain == "":
		c.Err = errNoDomain
	case len(req.Descriptors) == 0:
		c.Err = errNoDescriptors
	case v == nil:
		c.Err = ErrNoRules
	default:
		s.match(c, v)
		if s.buildRequests(c, v); c.lacksHolds() {
			c.Err, c.requests = ErrNoHolds, c.requests[:0]
		}
	}
	if len(c.requests) == 0 {
		return false
	}
	if c.recording != nil {
		c.recording.DecideStart = time.Now()
	}
	return true
}

// markDecided records the time at which the Decider returned its results.
func (c *Call) markDecided() {
	if c.recording != nil {
		c.recording.DecideEnd = time.Now()
	}
}

// finish builds the response from the results, or sets the error, and counts the call.
func (s *Service) finish(c *Call) {
	from := &c.continuation.caller
	if c.Err == nil && c.Request.Excess == within {
		s.count(c, c.continuation.view, *from)
		if c.Err = s.buildResponse(c, c.continuation.view); c.Err == nil {
			s.report(c, from.ReceivedAt)
		}
	}
	if c.Err != nil {
		s.counts.serviceError.Add(1)
		c.Response.reset()
	}
	c.duration = time.Since(from.ReceivedAt)
	s.metrics.duration.Observe(c.duration)
}

// report passes an answered call to taps and denials.
func (s *Service) report(c *Call, now time.Time) {
	s.taps.show(c, now)
	if s.denials != nil && c.Response.Code == OverLimit {
		s.denials.observe(c, now)
	}
}

// liveOwnerTimeout is how long a call without a timeout waits for a live owner.
const liveOwnerTimeout = time.Second

// deadline returns the time by which the results must be known. It is a part of the caller's timeout: the rest is for
// the response to travel back, and for the degraded policy to decide. After its own timeout, Envoy lets the request
// through uncounted.
func (c *Call) deadline() policy.Deadline {
	from := &c.continuation.caller
	silent, alive := c.continuation.service.timeout, max(liveOwnerTimeout, c.continuation.service.timeout)
	if from.Timeout > 0 {
		silent, alive = from.Timeout/10*6, from.Timeout/10*9
	}
	return policy.Deadline{Silent: from.ReceivedAt.Add(silent), Alive: from.ReceivedAt.Add(alive)}
}

// refuseExcess answers a call that exceeds a limit with OVER_LIMIT. An error would admit it, and charging it would
// need a key.
func (s *Service) refuseExcess(c *Call, v *view) {
	s.metrics.oversize[c.Request.Excess].Inc()
	for range c.Request.Descriptors {
		c.Response.Statuses = append(c.Response.Statuses, descriptorStatus{Code: OverLimit, Reset: 1})
	}
	c.Response.Code = OverLimit
	if v != nil && v.switches.Shadow {
		c.Response.Code = OK
		s.counts.globalShadow.Add(1)
	}
	if s.additions.RetryAfter && c.Response.Code == OverLimit {
		c.Response.Headers = append(c.Response.Headers, responseHeader{headerRetryAfter, "1"})
	}
}
