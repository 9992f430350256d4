package rls

import "time"

// Tracer records calls. Begin is called with each call and a function that looks up its headers by lower-case name.
// It returns nil if the call is not recorded, and otherwise a function to be called with the answered call, whose
// memory is reused afterwards.
type Tracer interface {
	// Headers returns the names of all headers that Begin may look up.
	Headers() []string
	Begin(header func(name string) string) (done func(c *Call, t CallTrace))
}

// CallTrace is the recorded data of a call, apart from its request and response.
type CallTrace struct {
	Begin                  time.Time
	DecideStart, DecideEnd time.Time        // when the Decider was called and returned; zero if nothing was counted
	Samples                []DecisionSample // one per descriptor
}

// recording is the record of a call; nil: not recorded.
type recording struct {
	CallTrace
	done func(*Call, CallTrace)
}

// startRecording starts recording c if the Tracer chooses it. Without a Tracer it costs one comparison.
func (s *Service) startRecording(c *Call, header func(string) string) {
	if s.tracer == nil {
		return
	}
	if done := s.tracer.Begin(header); done != nil {
		c.recording = &recording{CallTrace: CallTrace{Begin: time.Now()}, done: done}
	}
}

// endRecording ends the recording of c. It must be called before c is released.
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
