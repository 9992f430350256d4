package h2

import (
	"errors"
	"net"
	"time"

	"google.golang.org/grpc/codes"
)

// Handler answers one kind of call.
type Handler interface {
	// Serve answers c by one call of Reply or Fail, or of Send any number of times and then End or Fail: now, or later on any
	// goroutine. It must not block, for all calls of its connection would wait; and c may not be touched after its answer.
	Serve(c *Stream)
}

// Appender is what can write itself: it appends its bytes and returns the longer slice.
type Appender = interface{ Append([]byte) []byte }

// Stream is one call, which is one stream of its connection. Until its answer, its methods may be called on any goroutine, but
// not by several at once, Done excepted.
//
// The loop alone writes what is above the line, and only before Serve; conn.mu guards what is below.
type Stream struct {
	conn        *conn
	id          uint32
	handler     Handler
	receivedAt  time.Time
	timeout     time.Duration
	headers     []string
	headerBytes int    // bytes of headers
	message     []byte // with its prefix of 5 bytes
	length      int64  // of all data, as content-length tells it; -1: it does not
	received    int64  // data so far, also what of a message is not kept
	recvWindow  int64  // bytes that the client may send still; see receive.go
	complete    bool   // the client has sent all of it

	serving      bool          // the method has it and has not answered
	abandoned    bool          // nobody waits for its answer any more
	started      bool          // its answer's headers are sent
	streams      bool          // Send was called
	failed       bool          // its status is not OK
	sendWindow   int64         // bytes that the client takes of it still; may be negative
	unsent       []byte        // data of its answer for which there is no window
	ending       bool          // nothing comes after rest but the end
	trailers     []byte        // the end's status; nil: OK
	queued       bool          // it is one of conn.queue
	charged      int           // bytes of conn.callBytes that are its own
	waitingSince time.Time     // when it began to wait for a window, or when that last moved
	done         chan struct{} // made by Done
}

const (
	callSize   = 512     // what a call takes in addition to its headers, message and answer, in bytes
	streamSize = 8 << 10 // what a call takes that is answered by several messages: its method has a goroutine
)

// Message is the one message of the request, of which no more than Bounds.KeepMessage is there. It is valid until the answer.
func (k *Stream) Message() []byte { return k.message[prefix:] }

// Header is the value of Options.Headers[i], "" without. Of several it is the first. Of a value that is longer than
// Header.Max, it is the first Max+1 bytes.
func (k *Stream) Header(i int) string { return k.headers[i] }

// Now returns the time at which the data that completed the call was read. It may only be called by Serve.
func (k *Stream) Now() time.Time { return k.conn.now }

// RemoteAddr is where the call came from.
func (k *Stream) RemoteAddr() net.Addr { return k.conn.raw.RemoteAddr() }

// Timeout is what is left of grpc-timeout at now, at least a nanosecond; 0 is none.
func (k *Stream) Timeout(now time.Time) time.Duration {
	if k.timeout == 0 {
		return 0
	}
	return max(k.timeout-now.Sub(k.receivedAt), 1)
}

// Reply answers with one message and status OK.
func (k *Stream) Reply(m Appender) {
	c := k.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if !k.abandoned {
		k.sendLocked(m)
		k.endLocked(nil)
	}
	k.answeredLocked()
}

// Fail answers with a status that is not OK; after Send it ends the stream with it.
func (k *Stream) Fail(code codes.Code, message string) {
	c := k.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if !k.abandoned {
		k.failLocked(code, message)
	}
	k.answeredLocked()
}

var (
	errAbandoned        = errors.New("the call is over")
	errClientNotReading = errors.New("the client does not read")
)

// Send sends one of several messages. An error means that the call is over, or that its client does not read what it asked
// for; End or Fail is to be called all the same.
func (k *Stream) Send(m Appender) error {
	c := k.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if k.abandoned {
		return errAbandoned
	}
	if len(k.unsent) > 0 && len(k.unsent) >= c.server.o.Limits.Output {
		return errClientNotReading
	}
	if !k.streams {
		k.streams = true
		if c.charge(k); c.callBytes-c.chargedBytes > chargeStep {
			c.wakeLoop() // the loop may be waiting for a client that sends nothing more
		}
	}
	k.sendLocked(m)
	c.wakeWriter()
	return nil
}

// End ends what Send began, with status OK.
func (k *Stream) End() {
	c := k.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if !k.abandoned {
		k.startLocked()
		k.endLocked(nil)
	}
	k.answeredLocked()
}

// Done is closed when the client has given the call up, or its connection is gone.
func (k *Stream) Done() <-chan struct{} {
	k.conn.mu.Lock()
	defer k.conn.mu.Unlock()
	if k.done == nil {
		k.done = make(chan struct{})
		if k.abandoned {
			close(k.done)
		}
	}
	return k.done
}

// answeredLocked notes that the method is done with the call.
func (k *Stream) answeredLocked() {
	c := k.conn
	k.serving = false
	if k.abandoned {
		c.abandoned--
		c.recycle(k)
		return
	}
	if len(k.unsent) == 0 {
		c.finish(k)
	}
	c.wakeWriter()
}
