package h2

import (
	"time"

	"google.golang.org/grpc/codes"
)

// Method answers one kind of call.
type Method interface {
	// Serve answers c by one call of Reply or Fail, or of Send any number of times and then End or Fail: now, or later on any
	// goroutine. It must not block, for all calls of its connection would wait; and c may not be touched after its answer.
	Serve(c *Call)
}

// Message is what can write itself.
type Message = interface{ Append([]byte) []byte }

// Call is one call. All methods may be called on any goroutine until the answer, but not by several at once.
type Call struct {
	began   time.Time
	message []byte
	headers []string
	timeout time.Duration
}

// Message is the one message of the request. It is valid until the answer.
func (k *Call) Message() []byte { return k.message }

// Header is the value of Options.Headers[i], "" without. Of several it is the first.
func (k *Call) Header(i int) string { return k.headers[i] }

// Began is when the call's headers were read.
func (k *Call) Began() time.Time { return k.began }

// Timeout is what is left of grpc-timeout, at least a nanosecond; 0 is none.
func (k *Call) Timeout() time.Duration {
	if k.timeout == 0 {
		return 0
	}
	return max(k.timeout-time.Since(k.began), 1)
}

// Reply answers with one message and status OK.
func (k *Call) Reply(m Message) {}

// Fail answers with a status that is not OK; after Send it ends the stream with it.
func (k *Call) Fail(code codes.Code, message string) {}

// Send sends one of several messages. An error means that the call is over; End or Fail is to be called all the same.
func (k *Call) Send(m Message) error { return nil }

// End ends what Send began, with status OK.
func (k *Call) End() {}

// Done is closed when the client has given the call up, or its connection is gone.
func (k *Call) Done() <-chan struct{} { return nil }
