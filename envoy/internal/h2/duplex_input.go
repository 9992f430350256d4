package h2

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
)

// openDuplex begins a duplex call. ends reports whether the client sends no message.
func (c *conn) openDuplex(k *Stream, h *duplexHandler, ends bool) error {
	d := &Duplex{stream: k, most: h.maxMessage}
	k.duplex, k.serving, k.streams, k.gzip, k.complete = d, true, true, false, ends
	c.charge(k)
	c.startPings(c.now)
	c.turns.Leave()
	c.call(func() { d.receiver = h.open(d) })
	if c.drain.stage != notDraining {
		c.drainDuplex(k)
	}
	if ends {
		return c.endDuplexInput(k)
	}
	if c.broken != nil {
		return c.broken
	}
	return c.spendControl(1)
}

// duplexData processes data of a duplex call, possibly its last. Messages are received at once, so that only the
// incomplete one at the end is kept.
func (c *conn) duplexData(k *Stream, p []byte, ends bool) error {
	k.received += int64(len(p))
	k.complete = ends
	if k.length >= 0 && k.received > k.length { // RFC 9113, 8.1.1
		return http2.StreamError{StreamID: k.id, Code: http2.ErrCodeProtocol}
	}
	small := len(p) < smallData && !ends
	for len(p) > 0 && k.serving {
		var message []byte
		if message, p = c.nextMessage(k, p); message == nil {
			break
		}
		if err := c.receive(k, message); err != nil {
			return err
		}
	}
	if ends {
		return c.endDuplexInput(k)
	}
	if !k.serving { // what the client has sent before it learns of the end
		return c.spendControl(1)
	}
	if k.recvWindow < streamWindow/2 {
		c.out = appendWindow(c.out, k.id, streamWindow-k.recvWindow)
		k.recvWindow = streamWindow
	}
	c.charge(k)
	if small {
		return c.spendControl(1)
	}
	return nil
}

// nextMessage returns the next message in p, with its prefix and in place if it is complete there, and the data that
// follows it. It returns nil if the message is incomplete, and keeps p, or invalid, and fails the call.
func (c *conn) nextMessage(k *Stream, p []byte) (message, rest []byte) {
	if len(k.message) == 0 {
		k.receivedAt = c.now
		if n, ok := c.messageLength(k, p); !ok {
			return nil, nil
		} else if len(p) >= prefix && len(p) >= n {
			return p[:n], p[n:]
		}
	}
	if missing := prefix - len(k.message); missing > 0 {
		n := min(missing, len(p))
		k.message, p = append(k.message, p[:n]...), p[n:]
	}
	n, ok := c.messageLength(k, k.message)
	if !ok || len(k.message) < prefix {
		return nil, nil
	}
	part := min(n-len(k.message), len(p))
	k.message, p = append(k.message, p[:part]...), p[part:]
	if len(k.message) == n {
		return k.message, p
	}
	// Do not grow to an announced length before half of it has arrived.
	if cap(k.message) < n && len(k.message) >= n/2 {
		k.message = slices.Grow(k.message, n-len(k.message))
	}
	return nil, nil
}

// messageLength returns the length of the message that begins with b, with its prefix. It fails the call and returns
// false if the message is invalid. The length is meaningless if b is shorter than the prefix.
func (c *conn) messageLength(k *Stream, b []byte) (int, bool) {
	if len(b) < prefix {
		return 0, true
	}
	n := int64(binary.BigEndian.Uint32(b[1:]))
	switch {
	case b[0] == 1:
		c.failDuplex(k, codes.Unimplemented, "grpc: compressed messages are not accepted here")
		return 0, false
	case b[0] != 0:
		c.failDuplex(k, codes.Internal, fmt.Sprintf("grpc: received unexpected payload format %d", b[0]))
		return 0, false
	case n > int64(k.duplex.most):
		c.server.refuse(TooLarge)
		c.failDuplex(k, codes.ResourceExhausted,
			fmt.Sprintf("grpc: received message larger than max (%d vs. %d)", n, k.duplex.most))
		return 0, false
	}
	return prefix + int(n), true
}

// receive passes a message to the receiver. A message is credited like a call, except that tiny ones are control
// frames.
func (c *conn) receive(k *Stream, message []byte) error {
	c.callsReceived, c.cheapBytes = c.callsReceived+1, c.cheapBytes+len(message)*3/8
	c.turns.Leave()
	c.call(func() { k.duplex.receiver.Receive(message[prefix:]) })
	if k.message = reusable(k.message); c.broken != nil {
		return c.broken
	}
	if len(message) < smallData {
		return c.spendControl(1)
	}
	c.controls.refillForCall()
	return nil
}

// endDuplexInput processes the end of the client's messages.
func (c *conn) endDuplexInput(k *Stream) error {
	k.complete = true
	switch {
	case k.length >= 0 && k.length != k.received: // RFC 9113, 8.1.1
		return http2.StreamError{StreamID: k.id, Code: http2.ErrCodeProtocol}
	case !k.serving:
		return c.spendControl(1)
	case len(k.message) > 0:
		c.failDuplex(k, codes.Internal, "unexpected EOF")
		return c.spendControl(1)
	}
	c.charge(k)
	c.call(k.duplex.receiver.ClientDone)
	if c.broken != nil {
		return c.broken
	}
	return c.spendControl(1)
}

// failDuplex ends a duplex call whose client has made a mistake.
func (c *conn) failDuplex(k *Stream, code codes.Code, message string) {
	if !k.serving {
		return
	}
	k.failLocked(code, message)
	k.message = nil
	k.duplex.forgetPings()
	k.answeredLocked()
	c.call(k.duplex.receiver.Gone)
}

// abandonDuplex ends a duplex call that its client has given up. The loop has removed it.
func (c *conn) abandonDuplex(k *Stream) {
	k.message = nil
	if !k.serving {
		return
	}
	k.serving = false
	k.duplex.forgetPings()
	c.call(k.duplex.receiver.Gone)
}

// drainDuplexes announces the end of the connection to its duplex calls.
func (c *conn) drainDuplexes() {
	var all []*Stream
	for _, k := range c.streams {
		if k.duplex != nil {
			all = append(all, k)
		}
	}
	for _, k := range all {
		c.drainDuplex(k)
	}
}

func (c *conn) drainDuplex(k *Stream) {
	if k.serving && !k.duplex.drained {
		k.duplex.drained = true
		c.call(k.duplex.receiver.Draining)
	}
}

// waitsSince returns since when a duplex call waits for its client: to read, if sending, or else to complete a message.
// It returns false if the call does not wait.
func (d *Duplex) waitsSince() (since time.Time, sending, waits bool) {
	k := d.stream
	sending, receiving := len(k.unsent) > 0, len(k.message) > 0
	if receiving && (!sending || k.receivedAt.Before(k.waitingSince)) {
		return k.receivedAt, false, true
	}
	return k.waitingSince, sending, sending
}
