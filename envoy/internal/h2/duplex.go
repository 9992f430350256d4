package h2

import (
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
)

// DuplexReceiver receives the events of a Duplex. All its methods run on the connection's goroutine, one at a time, and
// must not block, because they would delay all calls of the connection.
type DuplexReceiver interface {
	// Receive is called with each message of the client, in order. The message is valid until Receive returns.
	Receive(message []byte)
	// ClientDone is called once, after the last message, when the client has announced that it sends no more.
	ClientDone()
	// PingAnswered is called when the client has answered the ping with this serial: it has read everything that was
	// sent before the ping.
	PingAnswered(serial uint64)
	// Draining is called at most once, when the connection is to be closed without losing a call: the handler ends the
	// call soon, so that the client opens it again elsewhere.
	Draining()
	// Gone is called once if the call ends otherwise than by End or Fail: the client has given it up or broken the
	// protocol, or its connection has ended. No other method is called afterwards, nor after End or Fail.
	Gone()
}

// Duplex is a call whose client and server both send any number of messages, at any time. Any goroutine may call its
// methods, also several at a time and after the end of the call, except where their comments say otherwise.
type Duplex struct {
	stream   *Stream // has the state of the call; it is never reused
	receiver DuplexReceiver
	most     int // bytes of a message

	// conn.mu guards the fields below.
	drained bool          // Draining was called
	pings   int           // pings that are not answered, including those of blocked
	blocked []blockedPing // pings behind data that waits for a window, in order
}

// blockedPing is a ping that must not be sent before some bytes of Stream.unsent.
type blockedPing struct {
	behind int // bytes of unsent that are sent before it
	serial uint64
}

// sentPing is a ping that waits for its answer.
type sentPing struct {
	number uint64 // its content
	duplex *Duplex
	serial uint64
}

// Limits of one Duplex.
const (
	maxDuplexPings  = 256     // unanswered pings
	maxDuplexUnsent = 1 << 20 // bytes that wait for the client's windows
)

// NewDuplexHandler returns the Handler of a method whose clients send any number of messages of at most maxMessage
// bytes, uncompressed. open is called on the connection's goroutine when a call begins, and must not block. It returns
// the call's receiver. The result is not used if open has called End or Fail.
//
// A call may stay open without a message for any time: its connection is pinged instead. A message that has begun must
// be complete within Limits.MessageTimeout.
func NewDuplexHandler(maxMessage int, open func(*Duplex) DuplexReceiver) Handler {
	return &duplexHandler{maxMessage, open}
}

type duplexHandler struct {
	maxMessage int
	open       func(*Duplex) DuplexReceiver
}

// Serve implements Handler. It is not called.
func (*duplexHandler) Serve(*Stream) { panic("h2: a duplex call was served as a unary one") }

// Header returns the value of Options.Headers[i], as Stream.Header does.
func (d *Duplex) Header(i int) string { return d.stream.headers[i] }

// RemoteAddr returns the address of the client.
func (d *Duplex) RemoteAddr() net.Addr { return d.stream.RemoteAddr() }

// Identity returns the name in the certificate of the client, as Stream.Identity does.
func (d *Duplex) Identity() string { return d.stream.Identity() }

// Now returns the time at which the data being processed was read. Only the receiver and open may call it.
func (d *Duplex) Now() time.Time { return d.stream.conn.now }

// Send sends a message. It returns an error if the call is over or the client does not read. The call goes on after
// the latter.
func (d *Duplex) Send(m Appender) error {
	k, c := d.stream, d.stream.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !k.serving:
		return errAbandoned
	case len(k.unsent) >= maxDuplexUnsent:
		return errClientNotReading
	}
	k.sendLocked(m)
	c.markAnswered()
	c.wakeWriter()
	return nil
}

var errTooManyPings = errors.New("the client answers no pings")

// Ping sends a ping behind everything that was sent before. The receiver's PingAnswered is called with the serial when
// the client has answered it. Ping returns an error if the call is over or too many pings are not answered.
func (d *Duplex) Ping(serial uint64) error {
	k, c := d.stream, d.stream.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !k.serving:
		return errAbandoned
	case d.pings >= maxDuplexPings:
		return errTooManyPings
	}
	d.pings++
	if len(k.unsent) > 0 {
		d.blocked = append(d.blocked, blockedPing{len(k.unsent), serial})
		return nil
	}
	c.appendPing(d, serial)
	c.wakeWriter()
	return nil
}

// End ends the call with status OK. It has no effect after the end of the call.
func (d *Duplex) End() { d.finish(func(k *Stream) { k.startLocked(); k.endLocked(nil) }) }

// Fail ends the call with a status that is not OK. It has no effect after the end of the call.
func (d *Duplex) Fail(code codes.Code, message string) {
	d.finish(func(k *Stream) { k.failLocked(code, message) })
}

func (d *Duplex) finish(end func(*Stream)) {
	c := d.stream.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if d.stream.serving {
		end(d.stream)
		d.forgetPings()
		d.stream.answeredLocked()
	}
}

// forgetPings drops the pings whose answers do not matter any more. conn.mu is held.
func (d *Duplex) forgetPings() {
	c := d.stream.conn
	if d.pings > len(d.blocked) {
		c.pings = slices.DeleteFunc(c.pings, func(p sentPing) bool { return p.duplex == d })
	}
	d.pings, d.blocked = 0, nil
}

// moved sends the pings for which the next n bytes of unsent data were the last to wait for. conn.mu is held.
func (d *Duplex) moved(n int) {
	for i := range d.blocked {
		d.blocked[i].behind -= n
	}
	for len(d.blocked) > 0 && d.blocked[0].behind <= 0 {
		d.stream.conn.appendPing(d, d.blocked[0].serial)
		d.blocked = d.blocked[1:]
	}
}

// pingMark is the first byte of the content of pings of Duplex. The others are their number.
const pingMark = 'd' << 56

// appendPing writes a ping that waits for its answer.
func (c *conn) appendPing(d *Duplex, serial uint64) {
	c.nextPing++
	number := pingMark | c.nextPing&(1<<56-1)
	c.pings = append(c.pings, sentPing{number, d, serial})
	c.out = appendHead(c.out, 8, frameKind{http2.FramePing, 0}, 0)
	c.out = binary.BigEndian.AppendUint64(c.out, number)
}

// duplexPingAck processes the answer to a ping of a Duplex. It returns false if it answers none that waits.
func (c *conn) duplexPingAck(data [8]byte) bool {
	number := binary.BigEndian.Uint64(data[:])
	at := slices.IndexFunc(c.pings, func(p sentPing) bool { return p.number == number })
	if at < 0 {
		return false
	}
	p := c.pings[at]
	c.pings = slices.Delete(c.pings, at, at+1)
	p.duplex.pings--
	c.call(func() { p.duplex.receiver.PingAnswered(p.serial) })
	return true
}

// call calls a receiver, for the loop. It releases the lock meanwhile.
func (c *conn) call(f func()) {
	c.mu.Unlock()
	defer c.mu.Lock()
	f()
}
