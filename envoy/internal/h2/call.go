package h2

import (
	"errors"
	"net"
	"time"

	"google.golang.org/grpc/codes"
)

// Handler serves one gRPC method.
type Handler interface {
	// Serve answers c with one call of Reply or Fail, or with any number of calls of Send followed by End or Fail. It
	// may do so now or later, on any goroutine. Serve must not block, because it would delay all calls of the
	// connection. c must not be used after it is answered.
	Serve(c *Stream)
}

// Appender appends its encoding to a slice and returns the extended slice.
type Appender = interface{ Append([]byte) []byte }

// Stream is one call, on one stream of its connection. Until the call is answered, any goroutine may call its
// methods, but only one at a time, except for Done.
//
// The connection's goroutine writes the fields above the blank line, before Serve only. conn.mu guards the fields
// below it.
type Stream struct {
	conn        *conn
	id          uint32
	handler     Handler
	receivedAt  time.Time
	timeout     time.Duration
	headers     []string
	headerBytes int    // bytes of headers
	message     []byte // with its prefix of 5 bytes
	length      int64  // bytes of all data by content-length; -1: unknown
	received    int64  // bytes of data so far, including those that are not kept
	recvWindow  int64  // bytes that the client may still send; see receive.go
	complete    bool   // the client has sent everything
	gzip        bool   // the message may be compressed
	inflated    bool   // the message was compressed, and is charged until the call is answered
	inflating   int    // bytes that are used to decompress it

	serving      bool          // the handler has the call and has not answered it
	abandoned    bool          // the client gave up the call, or its connection is gone
	started      bool          // the headers of the response are sent
	streams      bool          // Send was called
	failed       bool          // the status is not OK
	sendWindow   int64         // bytes of data that the client accepts on this stream; may be negative
	unsent       []byte        // data of the response that waits for a window
	ending       bool          // only the end of the response follows unsent
	trailers     []byte        // encoded status of the end; nil: OK
	queued       bool          // the stream is in conn.queue
	charged      int           // its share of conn.callBytes
	waitingSince time.Time     // when it began to wait for a window, or when one last moved
	done         chan struct{} // created by Done
	duplex       *Duplex       // of a duplex call; else nil. The connection's goroutine writes it before the call begins
}

const (
	callSize   = 512     // bytes of a call in addition to its headers, message and response
	streamSize = 8 << 10 // bytes of a call with several responses, whose handler has a goroutine
)

// Message returns the decompressed message of the request, up to Limits.KeepMessage bytes. It is valid until the call
// is answered.
func (k *Stream) Message() []byte { return k.message[prefix:] }

// Header returns the value of Options.Headers[i], or "" if the request does not have it. It returns the first of
// several values, and the first Max+1 bytes of a value that is longer than KeptHeader.Max.
func (k *Stream) Header(i int) string { return k.headers[i] }

// Now returns the time at which the data that completed the call was read. Only Serve may call it.
func (k *Stream) Now() time.Time { return k.conn.now }

// RemoteAddr returns the address of the client.
func (k *Stream) RemoteAddr() net.Addr { return k.conn.raw.RemoteAddr() }

// Timeout returns what is left of grpc-timeout at now, but at least 1 ns. It returns 0 if the call has no timeout.
func (k *Stream) Timeout(now time.Time) time.Duration {
	if k.timeout == 0 {
		return 0
	}
	return max(k.timeout-now.Sub(k.receivedAt), 1)
}

// Identity returns the name in the certificate of the client: its first URI or DNS name, or else its common name; ""
// without a certificate.
func (k *Stream) Identity() string { return k.conn.identity }

// Reply answers the call with one message and status OK.
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

// Fail answers the call with a status that is not OK. After Send it ends the stream with that status.
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

// Send sends one of several messages. It returns an error if the call is over or its client does not read. End or
// Fail must be called in either case.
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

// End ends the stream that Send began, with status OK.
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

// Done returns a channel that is closed when the client gives up the call or its connection is gone.
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

// answeredLocked records that the handler is done with the call.
func (k *Stream) answeredLocked() {
	c := k.conn
	k.serving = false
	if k.inflated && k.charged > chargeStep && !c.busy {
		c.wakeLoop() // the loop may be waiting for a client that sends nothing more
	}
	if k.abandoned {
		c.release(k)
		c.abandoned--
		c.recycle(k)
		return
	}
	if len(k.unsent) == 0 {
		c.finish(k)
	}
	c.wakeWriter()
}
