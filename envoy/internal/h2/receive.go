package h2

import (
	"encoding/binary"
	"fmt"
	"slices"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
)

// data takes in DATA. All windows are opened again as soon as half is used: what limits a client is not the window but what it
// may leave unfinished.
func (c *conn) data(h http2.FrameHeader, p []byte) error {
	id, size := h.StreamID, int64(len(p))
	if id == 0 {
		return connError{http2.ErrCodeProtocol, "DATA of stream 0"}
	}
	if c.recvWindow -= size; c.recvWindow < 0 {
		return connError{http2.ErrCodeFlowControl, "more DATA than the connection's window"}
	}
	if c.recvWindow < connWindow/2 {
		c.out = appendWindow(c.out, 0, connWindow-c.recvWindow)
		c.recvWindow = connWindow
	}
	if h.Flags.Has(http2.FlagDataPadded) {
		var err error
		if p, err = unpad(p); err != nil {
			return err
		}
	}
	k := c.streams[id]
	switch {
	case k == nil && c.idle(id):
		return connError{http2.ErrCodeProtocol, "DATA of an idle stream"}
	case k == nil && (c.closed.has(id) || c.drain.refuses(id)):
		return c.spendControl(1)
	case k == nil || k.complete:
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeStreamClosed}
	}
	if k.recvWindow -= size; k.recvWindow < 0 {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeFlowControl}
	}
	c.cheapBytes += len(p) * 3 / 4 // data is copied, and little else
	return c.messageData(k, p, h.Flags.Has(http2.FlagDataEndStream))
}

// messageData takes in a part of a message, maybe its end.
func (c *conn) messageData(k *Stream, p []byte, ends bool) error {
	k.received += int64(len(p))
	k.complete = ends
	switch {
	case k.length >= 0 && k.received > k.length: // RFC 9113, 8.1.1
		return http2.StreamError{StreamID: k.id, Code: http2.ErrCodeProtocol}
	case !c.appendMessage(k, p):
		return c.spendControl(1)
	case ends:
		return c.finishRequest(k)
	}
	if k.recvWindow < streamWindow/2 {
		c.out = appendWindow(c.out, k.id, streamWindow-k.recvWindow)
		k.recvWindow = streamWindow
	}
	c.charge(k)
	if len(p) < smallData {
		return c.spendControl(1)
	}
	return nil
}

// smallData is how short a part of a message is noise, in bytes.
const smallData = 16

// unpad takes the padding off a payload, RFC 9113, 6.1.
func unpad(p []byte) ([]byte, error) {
	if len(p) == 0 {
		return nil, connError{http2.ErrCodeFrameSize, "a padded frame without the length of its padding"}
	}
	n := int(p[0])
	if p = p[1:]; n > len(p) {
		return nil, connError{http2.ErrCodeProtocol, "a padding longer than its frame"}
	}
	return p[:len(p)-n], nil
}

// appendMessage puts a part to its message. False is a message that cannot be and has been answered; the wording is grpc-go's.
func (c *conn) appendMessage(k *Stream, p []byte) bool {
	keep := prefix + c.server.o.Limits.KeepMessage
	k.message = append(k.message, p[:min(len(p), keep-len(k.message))]...) // what was announced is believed only when half of it is there
	if len(k.message) < prefix {
		return true
	}
	n := int64(binary.BigEndian.Uint32(k.message[1:]))
	if most := c.server.o.Limits.Message; n > int64(most) {
		c.server.refuse(TooLarge)
		c.fail(k, codes.ResourceExhausted, fmt.Sprintf("grpc: received message larger than max (%d vs. %d)", n, most))
		return false
	}
	if k.received > prefix+n {
		c.fail(k, codes.Internal, "cardinality violation: received multiple request messages for non-client-streaming RPC")
		return false
	}
	if whole := min(prefix+int(n), keep); cap(k.message) < whole && len(k.message) >= whole/2 {
		k.message = slices.Grow(k.message, whole-len(k.message))
	}
	return true
}

// finishRequest serves a call of which all has come.
func (c *conn) finishRequest(k *Stream) error {
	k.complete = true
	c.charge(k)
	if k.length >= 0 && k.length != k.received { // RFC 9113, 8.1.1
		return http2.StreamError{StreamID: k.id, Code: http2.ErrCodeProtocol}
	}
	switch n := k.received; {
	case n == 0:
		c.fail(k, codes.Internal, "cardinality violation: received no request message from non-client-streaming RPC")
		return c.spendControl(1)
	case n < prefix || n-prefix < int64(binary.BigEndian.Uint32(k.message[1:])):
		c.fail(k, codes.Internal, "unexpected EOF")
		return c.spendControl(1)
	case k.message[0] == 1:
		c.fail(k, codes.Internal, "grpc: compressed flag set with identity or empty encoding")
		return c.spendControl(1)
	case k.message[0] != 0:
		c.fail(k, codes.Internal, fmt.Sprintf("grpc: received unexpected payload format %d", k.message[0]))
		return c.spendControl(1)
	}
	c.controls.refillForCall()
	c.callsReceived, c.cheapBytes = c.callsReceived+1, c.cheapBytes+int(k.received)*3/8 // reading it in small parts cost something, too
	c.turns.Leave()
	k.serving = true
	c.mu.Unlock()
	k.handler.Serve(k)
	c.mu.Lock()
	return c.broken
}

// fail answers a call that no method has.
func (c *conn) fail(k *Stream, code codes.Code, message string) {
	k.failLocked(code, message)
	c.finish(k)
}

// finish forgets a call that is answered. A client that still sends is told not to: RFC 9113, 8.1.
func (c *conn) finish(k *Stream) {
	if !k.complete {
		c.out = appendReset(c.out, k.id, http2.ErrCodeNo)
		c.closed.add(k.id)
	}
	c.release(k)
	delete(c.streams, k.id)
	if !c.answeredAny && !k.failed {
		c.answeredAny = true
		if f := c.server.o.Served; f != nil {
			f(c.raw)
		}
	}
	c.recycle(k)
}

// abandonCall forgets a call for whose answer nobody waits.
func (c *conn) abandonCall(k *Stream) {
	c.dequeue(k)
	c.release(k)
	delete(c.streams, k.id)
	k.abandoned = true
	if k.done != nil {
		close(k.done)
	}
	if k.serving {
		c.abandoned++
	} else {
		c.recycle(k)
	}
}

// newCall takes a call from those that were answered.
func (c *conn) newCall(id uint32) *Stream {
	k, ok := c.server.calls.Get().(*Stream)
	if !ok {
		k = &Stream{headers: make([]string, len(c.server.o.Headers))}
	}
	k.conn, k.id, k.receivedAt = c, id, c.now
	k.recvWindow, k.sendWindow = streamWindow, c.initialWindow
	return k
}

// keepMessageSize is how large a message's memory is kept for the next, in bytes.
const keepMessageSize = 4 << 10

func (c *conn) recycle(k *Stream) {
	headers, message := k.headers, k.message[:0]
	clear(headers)
	if cap(message) > keepMessageSize {
		message = nil
	}
	*k = Stream{headers: headers, message: message}
	c.server.calls.Put(k)
}
