package rls

import "time"

// Tracer is told of calls. Begin says that one has come, with a look at its headers, by lower-case name; done is nil when the call
// is not to be recorded, else it is shown the answered call, whose memory is used again afterwards.
type Tracer interface {
	// Headers are the names of all headers that Begin may look at.
	Headers() []string
	Begin(header func(name string) string) (done func(c *Call, t CallTrace))
}

// CallTrace is what is recorded of an answered call beside its request and response.
type CallTrace struct {
	Begin                  time.Time
	DecideStart, DecideEnd time.Time        // the Decider was asked, and had answered; zero when nothing had to be counted
	Samples                []DecisionSample // one for each descriptor
}

// recording is a call that is being recorded; nil records nothing.
type recording struct {
	CallTrace
	done func(*Call, CallTrace)
}

// startRecording begins to record c when tracing is on and chooses it. Off, it costs one comparison.
func (s *Service) startRecording(c *Call, header func(string) string) {
	if s.tracer == nil {
		return
	}
	if done := s.tracer.Begin(header); done != nil {
		c.recording = &recording{CallTrace: CallTrace{Begin: time.Now()}, done: done}
	}
}

// endRecording ends the recording of c, before it is released.
func (s *Service) endRecording(c *Call) {
	t := c.recording
	if t == nil {
		return
	}
	c.recording = nil
	if c.Err == nil && c.Request.Excess == within {
		for i := range c.slots {
			t.Samples = append(t.Samples, c.sample(i, t.Begin))
		}
	}
	t.done(c, t.CallTrace)
}
