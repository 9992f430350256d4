package h2

import (
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
)

// output is the data to be written to a connection, and the client's windows. conn.mu guards it.
type output struct {
	out           []byte // frames to be written
	spare         []byte // the buffer of the last write
	busy          bool   // the loop is processing a batch and will write
	writing       bool   // a goroutine writes without the lock, and checks out again afterwards
	inFlight      int    // capacity of the buffer being written, in bytes
	wrote         sync.Cond
	broken        error         // why nothing can be written any more
	lateWake      chan struct{} // wakes the goroutine that writes late responses; nil: not started
	table         table
	sendWindow    int64     // bytes of data that the client accepts, on all streams
	initialWindow int64     // the same for a new stream
	maxFrame      int64     // the largest payload that the client accepts
	queue         []*Stream // streams that wait only for the connection's window
	unsentBytes   int       // bytes of responses that wait for windows
}

// startLocked sends the headers of the response.
func (k *Stream) startLocked() {
	if !k.started {
		k.started = true
		k.conn.appendHeaders(k.id)
	}
}

const prefix = 5 // bytes before a message: a compression flag and its length

// sendLocked sends the part of a message that the windows allow.
func (k *Stream) sendLocked(m Appender) {
	k.startLocked()
	c := k.conn
	at := len(c.out) + frameHead
	c.out = append(c.out, zeros[:frameHead+prefix]...)
	c.out = m.Append(c.out)
	n := len(c.out) - at
	binary.BigEndian.PutUint32(c.out[at+1:], uint32(n-prefix))
	if len(k.unsent) == 0 && int64(n) <= min(k.sendWindow, c.sendWindow, c.maxFrame) {
		putHead(c.out[at-frameHead:], n, frameKind{http2.FrameData, 0}, k.id)
		k.sendWindow -= int64(n)
		c.sendWindow -= int64(n)
		c.checkUnread()
		return
	}
	k.unsent = append(k.unsent, c.out[at:]...)
	c.out = c.out[:at-frameHead]
	c.unsentBytes += n
	k.waitingSince = time.Now()
	c.sendUnsent(k)
	if c.unsentBytes > c.server.o.Limits.Output {
		c.abort(http2.ErrCodeEnhanceYourCalm, "the answers that wait for windows are too many")
	}
}

// checkUnread checks the output of a client that reads slowly. Late responses do not wait for it.
func (c *conn) checkUnread() {
	switch {
	case !c.writing || c.busy || len(c.out) < flushSize:
	case len(c.out) > c.server.o.Limits.Output:
		c.abort(http2.ErrCodeEnhanceYourCalm, "the answers that are not read are too many")
	default:
		c.wakeLoop() // the loop charges the bytes
	}
}

var zeros [frameHead + prefix]byte

// endLocked ends the response, now or after its unsent data: with status OK if status is nil, else with the encoded
// fields of status.
func (k *Stream) endLocked(status []byte) {
	k.trailers, k.ending, k.failed = status, true, status != nil
	if len(k.unsent) == 0 {
		k.writeEnd()
	}
}

// writeEnd writes the end of the response.
func (k *Stream) writeEnd() {
	if k.trailers == nil {
		k.conn.appendOK(k.id)
	} else {
		k.conn.appendTrailers(k.id, k.trailers)
	}
}

// failLocked ends the response with a status.
func (k *Stream) failLocked(code codes.Code, message string) {
	if k.started {
		k.endLocked(appendStatus(nil, code, message))
		return
	}
	k.failed = true
	k.conn.appendFailure(k.id, &rejection{http: 200, code: code, message: message})
}

// sendUnsent sends the part of a response's unsent data that the windows allow.
func (c *conn) sendUnsent(k *Stream) {
	for len(k.unsent) > 0 {
		n := int(min(int64(len(k.unsent)), k.sendWindow, c.sendWindow, c.maxFrame))
		if n <= 0 {
			break
		}
		c.out = appendHead(c.out, n, frameKind{http2.FrameData, 0}, k.id)
		c.out = append(c.out, k.unsent[:n]...)
		k.unsent = k.unsent[n:]
		k.sendWindow -= int64(n)
		c.sendWindow -= int64(n)
		c.unsentBytes -= n
		k.waitingSince = c.now
		if k.duplex != nil {
			k.duplex.moved(n)
		}
	}
	switch {
	case len(k.unsent) > 0:
		c.charge(k)
		if k.sendWindow > 0 && !k.queued {
			k.queued = true
			c.queue = append(c.queue, k)
		}
		return
	case k.ending:
		k.writeEnd()
	}
	k.unsent = nil
	c.charge(k)
	if k.ending && !k.serving {
		c.finish(k)
	}
}

// sendQueued sends data that waits for the connection's window.
func (c *conn) sendQueued() {
	for len(c.queue) > 0 && c.sendWindow > 0 {
		k := c.queue[0]
		c.queue[0] = nil
		c.queue = c.queue[1:]
		k.queued = false
		c.sendUnsent(k)
	}
	if len(c.queue) == 0 {
		c.queue = nil
	}
}

// dequeue drops the unsent data of a response.
func (c *conn) dequeue(k *Stream) {
	c.unsentBytes -= len(k.unsent)
	k.unsent = nil
	if k.queued {
		k.queued = false
		c.queue = slices.DeleteFunc(c.queue, func(other *Stream) bool { return other == k })
	}
}

// flush writes the output, for the loop. It releases the lock meanwhile. If another goroutine is writing, flush waits
// only when the output is too long: a client that does not read is not read from.
func (c *conn) flush() error {
	for c.writing && len(c.out) >= flushSize && c.broken == nil {
		c.wrote.Wait()
	}
	if !c.writing && len(c.out) > 0 {
		c.writing = true
		c.write()
	}
	return c.broken
}

// write writes until the output is empty. It releases the lock meanwhile. The caller has set writing.
func (c *conn) write() {
	for len(c.out) > 0 && c.broken == nil {
		b := c.out
		c.out, c.spare, c.inFlight = c.spare[:0], nil, cap(b)
		c.setWriteDeadline()
		nc := c.nc
		c.mu.Unlock()
		_, err := nc.Write(b)
		c.mu.Lock()
		if cap(b) <= smallInput || len(b) > cap(b)/4 && c.account.HasSpare(0) { // do not keep the buffer of a burst
			c.spare = b[:0]
		}
		c.inFlight = 0
		if err != nil && c.broken == nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				c.server.refuse(Cut)
			}
			c.broken = err
			c.wakeLoop()
		}
	}
	c.writing = false
	c.wrote.Broadcast()
	if c.drain.done(c) {
		c.wakeLoop()
	}
}

// wakeWriter makes the second goroutine write late responses.
func (c *conn) wakeWriter() {
	if c.busy || c.writing || len(c.out) == 0 || c.broken != nil {
		return
	}
	c.writing = true
	if c.lateWake == nil {
		c.lateWake = make(chan struct{}, 1)
		go c.writeLate(c.lateWake)
	}
	c.lateWake <- struct{}{} // does not block: writing was not set
}

// writeLate writes late responses. Called without mu.
func (c *conn) writeLate(wake chan struct{}) {
	for range wake {
		c.mu.Lock()
		c.write()
		c.mu.Unlock()
	}
}

// setFirst processes SETTINGS_INITIAL_WINDOW_SIZE. It also applies to open streams, whose windows may become
// negative: RFC 9113, 6.9.2.
func (c *conn) setFirst(n int64) error {
	more := n - c.initialWindow
	c.initialWindow = n
	for _, k := range c.streams {
		if k.sendWindow += more; k.sendWindow > maxWindow {
			return connError{http2.ErrCodeFlowControl, "stream window too large"}
		}
		if more > 0 && len(k.unsent) > 0 {
			c.sendUnsent(k)
		}
	}
	return nil
}

// windowUpdate processes WINDOW_UPDATE.
func (c *conn) windowUpdate(h http2.FrameHeader, p []byte) error {
	if len(p) != 4 {
		return connError{http2.ErrCodeFrameSize, "WINDOW_UPDATE of a length other than 4"}
	}
	more := int64(binary.BigEndian.Uint32(p) & maxWindow)
	if h.StreamID == 0 {
		if c.sendWindow += more; more == 0 {
			return connError{http2.ErrCodeProtocol, "WINDOW_UPDATE of 0"}
		} else if c.sendWindow > maxWindow {
			return connError{http2.ErrCodeFlowControl, "connection window too large"}
		}
		c.sendQueued()
		return c.spendControl(1)
	}
	k := c.streams[h.StreamID]
	switch {
	case k == nil && c.idle(h.StreamID):
		return connError{http2.ErrCodeProtocol, "WINDOW_UPDATE on an idle stream"}
	case more == 0 && (k != nil || !c.closed.has(h.StreamID)):
		return http2.StreamError{StreamID: h.StreamID, Code: http2.ErrCodeProtocol}
	case k == nil:
		return c.spendControl(1) // the stream has ended
	}
	if k.sendWindow += more; k.sendWindow > maxWindow {
		return http2.StreamError{StreamID: h.StreamID, Code: http2.ErrCodeFlowControl}
	}
	if len(k.unsent) > 0 {
		c.sendUnsent(k)
	}
	return c.spendControl(1)
}
