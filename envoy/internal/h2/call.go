package h2

import (
	"errors"
	"net"
	"time"

	"google.golang.org/grpc/codes"
)

// Method answers one kind of call.
type Method interface {
	// Serve answers c by one call of Reply or Fail, or of Send any number of times and then End or Fail: now, or later on any
	// goroutine. It must not block, for all calls of its connection would wait; and c may not be touched after its answer.
	Serve(c *Call)
}

// Message is what can write itself: it appends its bytes and returns the longer slice.
type Message = interface{ Append([]byte) []byte }

// Call is one call, which is one stream of its connection. Until its answer, its methods may be called on any goroutine, but
// not by several at once, Done excepted.
//
// The loop alone writes what is above the line, and only before Serve; conn.mu guards what is below.
type Call struct {
	conn    *conn
	id      uint32
	method  Method
	began   time.Time
	timeout time.Duration
	headers []string
	kept    int    // bytes of headers
	message []byte // with its prefix of 5 bytes
	length  int64  // of all data, as content-length tells it; -1: it does not
	read    int64  // data so far, also what of a message is not kept
	credit  int64  // bytes that the client may send still; see receive.go
	whole   bool   // the client has sent all of it

	serving bool          // the method has it and has not answered
	over    bool          // nobody waits for its answer any more
	started bool          // its answer's headers are sent
	streams bool          // Send was called
	failed  bool          // its status is not OK
	window  int64         // bytes that the client takes of it still; may be negative
	rest    []byte        // data of its answer for which there is no window
	ends    bool          // nothing comes after rest but the end
	last    []byte        // the end's status; nil: OK
	waits   bool          // it is one of conn.queue
	charged int           // bytes of conn.held that are its own
	since   time.Time     // when it began to wait for a window, or when that last moved
	done    chan struct{} // made by Done
}

const (
	callSize   = 512     // what a call takes in addition to its headers, message and answer, in bytes
	streamSize = 8 << 10 // what a call takes that is answered by several messages: its method has a goroutine
)

// Message is the one message of the request, of which no more than Bounds.Keep is there. It is valid until the answer.
func (k *Call) Message() []byte { return k.message[prefix:] }

// Header is the value of Options.Headers[i], "" without. Of several it is the first. Of a value that is longer than
// Header.Max, it is the first Max+1 bytes.
func (k *Call) Header(i int) string { return k.headers[i] }

// Began is when the call's headers were read, to within the time that it takes to go through what was read at once.
func (k *Call) Began() time.Time { return k.began }

// RemoteAddr is where the call came from.
func (k *Call) RemoteAddr() net.Addr { return k.conn.raw.RemoteAddr() }

// Timeout is what is left of grpc-timeout at now, at least a nanosecond; 0 is none.
func (k *Call) Timeout(now time.Time) time.Duration {
	if k.timeout == 0 {
		return 0
	}
	return max(k.timeout-now.Sub(k.began), 1)
}

// Reply answers with one message and status OK.
func (k *Call) Reply(m Message) {
	c := k.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if !k.over {
		k.sendLocked(m)
		k.endLocked(nil)
	}
	k.answeredLocked()
}

// Fail answers with a status that is not OK; after Send it ends the stream with it.
func (k *Call) Fail(code codes.Code, message string) {
	c := k.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if !k.over {
		k.failLocked(code, message)
	}
	k.answeredLocked()
}

var (
	errOver    = errors.New("the call is over")
	errNotRead = errors.New("the client does not read")
)

// Send sends one of several messages. An error means that the call is over, or that its client does not read what it asked
// for; End or Fail is to be called all the same.
func (k *Call) Send(m Message) error {
	c := k.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if k.over {
		return errOver
	}
	if len(k.rest) > 0 && len(k.rest) >= c.server.o.Bounds.Output {
		return errNotRead
	}
	if !k.streams {
		k.streams = true
		if c.charge(k); c.held-c.noted > noteSize {
			c.poke() // the loop may be waiting for a client that sends nothing more
		}
	}
	k.sendLocked(m)
	c.wake()
	return nil
}

// End ends what Send began, with status OK.
func (k *Call) End() {
	c := k.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if !k.over {
		k.startLocked()
		k.endLocked(nil)
	}
	k.answeredLocked()
}

// Done is closed when the client has given the call up, or its connection is gone.
func (k *Call) Done() <-chan struct{} {
	k.conn.mu.Lock()
	defer k.conn.mu.Unlock()
	if k.done == nil {
		k.done = make(chan struct{})
		if k.over {
			close(k.done)
		}
	}
	return k.done
}

// answeredLocked notes that the method is done with the call.
func (k *Call) answeredLocked() {
	c := k.conn
	k.serving = false
	if k.over {
		c.abandoned--
		c.recycle(k)
		return
	}
	if len(k.rest) == 0 {
		c.finish(k)
	}
	c.wake()
}
