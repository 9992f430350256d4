package rls

import (
	"time"

	"github.com/keyward/keyward/owner"
)

// continuation is what a call needs to go on once its questions are decided.
type continuation struct {
	service *Service
	view    *view // the rules it was matched with
	caller  Caller
	waiter  interface{ Answered(*Call) }
}

// Decide answers c.Request in c.Response, or in c.Err.
func (s *Service) Decide(c *Call, from Caller) {
	if s.prepare(c, from) {
		s.decider.Decide(c.deadline(), s.stop, c.requests, c.results)
		c.markDecided()
	}
	s.finish(c)
}

// Begin is Decide without waiting: true when c is answered. Otherwise to.Answered(c) is called once it is, on any goroutine
// and perhaps before Begin returns; it must not block. A Decider that is not Later is waited for.
func (s *Service) Begin(c *Call, from Caller, to interface{ Answered(*Call) }) bool {
	if s.async == nil {
		s.Decide(c, from)
		return true
	}
	if s.prepare(c, from) {
		c.continuation.waiter = to
		if !s.async.Begin(c.deadline(), s.stop, c.requests, c.results, (*pending)(c)) {
			return false // c is another goroutine's from here on
		}
		c.markDecided()
	}
	s.finish(c)
	return true
}

// pending is a Call that waits for its answers.
type pending Call

// Decided goes on with the call.
func (p *pending) Decided() {
	c := (*Call)(p)
	to := c.continuation.waiter
	c.markDecided()
	c.continuation.service.finish(c)
	to.Answered(c)
}

// prepare matches c's descriptors and makes the questions of those that must be counted: false when there are none, or when
// the request is answered without.
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
		c.Err = errNoRules
	default:
		s.match(c, v)
		s.buildRequests(c, v)
	}
	if len(c.requests) == 0 {
		return false
	}
	if c.recording != nil {
		c.recording.DecideStart = time.Now()
	}
	return true
}

// markDecided notes that the Decider has answered.
func (c *Call) markDecided() {
	if c.recording != nil {
		c.recording.DecideEnd = time.Now()
	}
}

// finish makes the response of the answers, or the error that takes its place, and counts the call.
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

// report shows an answered call to those who listen.
func (s *Service) report(c *Call, now time.Time) {
	s.taps.show(c, now)
	if s.denials != nil && c.Response.Code == OverLimit {
		s.denials.observe(c, now)
	}
}

// liveOwnerTimeout is how long a caller without a timeout of its own waits for an owner that is alive.
const liveOwnerTimeout = time.Second

// deadline is when the answers must be found. That is a part of the caller's timeout: the rest is for the answer's way
// back, and for the degraded policy to answer. Past its own timeout Envoy lets the request through uncounted.
func (c *Call) deadline() owner.Deadline {
	from := &c.continuation.caller
	silent, alive := c.continuation.service.timeout, max(liveOwnerTimeout, c.continuation.service.timeout)
	if from.Timeout > 0 {
		silent, alive = from.Timeout/10*6, from.Timeout/10*9
	}
	return owner.Deadline{Silent: from.ReceivedAt.Add(silent), Alive: from.ReceivedAt.Add(alive)}
}

// refuseExcess answers a request beyond the bounds. It is no error, which would be an admission, and no charge, which
// would need a key.
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
}
