package rls

import (
	"time"

	"github.com/keyward/keyward/owner"
)

// asked is what a call needs to go on once its questions are decided.
type asked struct {
	service *Service
	view    *view // the rules it was matched with
	from    Caller
	to      interface{ Answered(*Call) }
}

// Decide answers c.Request in c.Response, or in c.Err.
func (s *Service) Decide(c *Call, from Caller) {
	if s.prepare(c, from) {
		s.decider.Decide(c.deadline(), s.stop, c.questions, c.answers)
		c.found()
	}
	s.answer(c)
}

// Begin is Decide without waiting: true when c is answered. Otherwise to.Answered(c) is called once it is, on any goroutine
// and perhaps before Begin returns; it must not block. A Decider that is not Later is waited for.
func (s *Service) Begin(c *Call, from Caller, to interface{ Answered(*Call) }) bool {
	if s.later == nil {
		s.Decide(c, from)
		return true
	}
	if s.prepare(c, from) {
		c.asked.to = to
		if !s.later.Begin(c.deadline(), s.stop, c.questions, c.answers, (*pending)(c)) {
			return false // c is another goroutine's from here on
		}
		c.found()
	}
	s.answer(c)
	return true
}

// pending is a Call that waits for its answers.
type pending Call

// Decided goes on with the call.
func (p *pending) Decided() {
	c := (*Call)(p)
	to := c.asked.to
	c.found()
	c.asked.service.answer(c)
	to.Answered(c)
}

// prepare matches c's descriptors and makes the questions of those that must be counted: false when there are none, or when
// the request is answered without.
func (s *Service) prepare(c *Call, from Caller) bool {
	if from.Came.IsZero() {
		from.Came = time.Now()
	}
	v := s.current.Load()
	c.asked = asked{service: s, view: v, from: from}
	c.Response.reset()
	c.Err, c.questions = nil, c.questions[:0]
	switch req := &c.Request; {
	case req.Excess != Within:
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
		s.ask(c, v)
	}
	if len(c.questions) == 0 {
		return false
	}
	if c.trace != nil {
		c.trace.Decided = time.Now()
	}
	return true
}

// found notes that the Decider has answered.
func (c *Call) found() {
	if c.trace != nil {
		c.trace.Found = time.Now()
	}
}

// answer makes the response of the answers, or the error that takes its place, and counts the call.
func (s *Service) answer(c *Call) {
	from := &c.asked.from
	if c.Err == nil && c.Request.Excess == Within {
		s.count(c, c.asked.view, *from)
		if c.Err = s.respond(c, c.asked.view); c.Err == nil {
			s.tell(c, from.Came)
		}
	}
	if c.Err != nil {
		s.counts.serviceError.Add(1)
		c.Response.reset()
	}
	c.took = time.Since(from.Came)
	s.metrics.duration.Observe(c.took)
}

// tell shows an answered call to those who listen.
func (s *Service) tell(c *Call, now time.Time) {
	s.taps.show(c, now)
	if s.denials != nil && c.Response.Code == OverLimit {
		s.denials.see(c, now)
	}
}

// patience is how long a caller without a timeout of its own waits for an owner that is alive.
const patience = time.Second

// deadline is when the answers must be found. That is a part of the caller's timeout: the rest is for the answer's way
// back, and for the degraded policy to answer. Past its own timeout Envoy lets the request through uncounted.
func (c *Call) deadline() owner.Deadline {
	from := &c.asked.from
	silent, alive := c.asked.service.timeout, max(patience, c.asked.service.timeout)
	if from.Timeout > 0 {
		silent, alive = from.Timeout/10*6, from.Timeout/10*9
	}
	return owner.Deadline{Silent: from.Came.Add(silent), Alive: from.Came.Add(alive)}
}

// refuseExcess answers a request beyond the bounds. It is no error, which would be an admission, and no charge, which
// would need a key.
func (s *Service) refuseExcess(c *Call, v *view) {
	s.metrics.oversize[c.Request.Excess].Inc()
	for range c.Request.Descriptors {
		c.Response.Statuses = append(c.Response.Statuses, Status{Code: OverLimit, Reset: 1})
	}
	c.Response.Code = OverLimit
	if v != nil && v.switches.Shadow {
		c.Response.Code = OK
		s.counts.globalShadow.Add(1)
	}
}
