package h2

import (
	"encoding/binary"
	"fmt"
	"slices"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
)

// data processes DATA. Every window is reopened when half of it is used: Limits.Unfinished limits clients, not the
// windows.
func (c *conn) data(h http2.FrameHeader, p []byte) error {
	id, size := h.StreamID, int64(len(p))
	if id == 0 {
		return connError{http2.ErrCodeProtocol, "DATA on stream 0"}
	}
	if c.recvWindow -= size; c.recvWindow < 0 {
		return connError{http2.ErrCodeFlowControl, "more DATA than the connection window allows"}
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
		return connError{http2.ErrCodeProtocol, "DATA on an idle stream"}
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

// messageData processes a part of a message, possibly its last.
func (c *conn) messageData(k *Stream, p []byte, ends bool) error {
	if k.duplex != nil {
		return c.duplexData(k, p, ends)
	}
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

// smallData is the number of bytes below which a part of a message counts as a control frame.
const smallData = 16

// unpad removes the padding of a payload: RFC 9113, 6.1.
func unpad(p []byte) ([]byte, error) {
	if len(p) == 0 {
		return nil, connError{http2.ErrCodeFrameSize, "padded frame without a padding length"}
	}
	n := int(p[0])
	if p = p[1:]; n > len(p) {
		return nil, connError{http2.ErrCodeProtocol, "padding longer than its frame"}
	}
	return p[:len(p)-n], nil
}

// appendMessage appends data to the message of a call. If the message is invalid, appendMessage fails the call in the
// words of grpc-go and returns false.
func (c *conn) appendMessage(k *Stream, p []byte) bool {
	keep := prefix + c.server.o.Limits.KeepMessage
	if k.gzip {
		keep = prefix + keptCompressed(c.server.o.Limits.KeepMessage)
	}
	// Do not grow to an announced length before half of it has arrived.
	k.message = append(k.message, p[:min(len(p), keep-len(k.message))]...)
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

// finishRequest serves a call whose request is complete.
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
	case k.message[0] == 1 && !k.gzip:
		c.fail(k, codes.Internal, "grpc: compressed flag set with identity or empty encoding")
		return c.spendControl(1)
	case k.message[0] == 1:
		if ok, err := c.inflate(k); !ok {
			return err
		}
	case k.message[0] != 0:
		c.fail(k, codes.Internal, fmt.Sprintf("grpc: received unexpected payload format %d", k.message[0]))
		return c.spendControl(1)
	}
	if k.gzip { // a message without the flag may be longer than is kept of others
		k.message = k.message[:min(len(k.message), prefix+c.server.o.Limits.KeepMessage)]
	}
	c.controls.refillForCall()
	// Small parts cost some processing, too.
	c.callsReceived, c.cheapBytes = c.callsReceived+1, c.cheapBytes+int(k.received)*3/8
	c.turns.Leave()
	k.serving = true
	c.mu.Unlock()
	k.handler.Serve(k)
	c.mu.Lock()
	return c.broken
}

// fail answers a call that no handler has, or a duplex call.
func (c *conn) fail(k *Stream, code codes.Code, message string) {
	if k.duplex != nil {
		c.failDuplex(k, code, message)
		return
	}
	k.failLocked(code, message)
	c.finish(k)
}

// finish removes an answered call. If the client is still sending, it is asked to stop: RFC 9113, 8.1.
func (c *conn) finish(k *Stream) {
	if !k.complete {
		c.out = appendReset(c.out, k.id, http2.ErrCodeNo)
		c.closed.add(k.id)
	}
	c.release(k)
	delete(c.streams, k.id)
	if !k.failed {
		c.markAnswered()
	}
	c.recycle(k)
}

// markAnswered reports the first call that succeeds.
func (c *conn) markAnswered() {
	if c.answeredAny {
		return
	}
	c.answeredAny = true
	if f := c.server.o.Served; f != nil {
		f(c.raw)
	}
}

// abandonCall removes a call that its client has given up.
func (c *conn) abandonCall(k *Stream) {
	c.dequeue(k)
	if !k.serving || !k.inflated { // a small compressed message may be large in memory
		c.release(k)
	}
	delete(c.streams, k.id)
	k.abandoned = true
	if k.done != nil {
		close(k.done)
	}
	if k.duplex != nil {
		c.abandonDuplex(k)
		return
	}
	if k.serving {
		c.abandoned++
	} else {
		c.recycle(k)
	}
}

// newCall returns a Stream, reused if possible.
func (c *conn) newCall(id uint32) *Stream {
	k, ok := c.server.calls.Get().(*Stream)
	if !ok {
		k = &Stream{headers: make([]string, len(c.server.o.Headers))}
	}
	k.conn, k.id, k.receivedAt = c, id, c.now
	k.recvWindow, k.sendWindow = streamWindow, c.initialWindow
	return k
}

// keepMessageSize is the largest message buffer in bytes that is kept for the next call.
const keepMessageSize = 4 << 10

func (c *conn) recycle(k *Stream) {
	if k.duplex != nil { // other goroutines may still use it
		return
	}
	headers, message := k.headers, reusable(k.message)
	clear(headers)
	*k = Stream{headers: headers, message: message}
	c.server.calls.Put(k)
}

// reusable returns the buffer b without content, or nil if it is too large to be kept.
func reusable(b []byte) []byte {
	if cap(b) > keepMessageSize {
		return nil
	}
	return b[:0]
}
