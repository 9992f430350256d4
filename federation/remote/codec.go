package remote

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/poolwire"
	"github.com/keyward/keyward/internal/wire"
)

// PROTOCOL.md specifies the layout of everything that is encoded here, and the golden files in testdata pin it.

const (
	magic   = "KEYWARDF"
	version = 1

	maxFrame    = 1 << 20 // bytes of a frame's type and payload
	maxHello    = 2 << 10 // of a frame of the handshake
	maxRequests = 1024    // of one call
	maxName     = poolwire.MaxName
	maxText     = 1 << 10 // bytes of an error
	maxRegion   = poolwire.MaxRegion

	frameLength = 4
	requestSize = poolwire.RequestSize
	grantSize   = poolwire.GrantSize
	lineSize    = poolwire.LineSize
	// fullFrame is where a frame of records ends: the largest record still fits behind it.
	fullFrame = maxFrame - 8 - 256*(lineSize+maxRegion+federation.MaxNote) - grantSize
)

// Frame types.
const (
	frameCall    = 1
	frameReply   = 2
	framePing    = 3
	framePong    = 4
	frameGoAway  = 5
	frameHello   = 16
	frameWelcome = 17
)

// op is a method of federation.Coordinator.
type op byte

const (
	opLease     op = 1
	opReconcile op = 2
	opHealthy   op = 3
)

// Statuses of a reply.
const (
	statusLast  = 0 // with the last grants of the call
	statusMore  = 1 // more grants of the call follow in another frame
	statusError = 2
)

// call is a call of a method.
type call struct {
	id       uint64        // unique among the calls in flight of a connection
	timeout  time.Duration // from when the caller waits for the reply
	op       op
	requests []federation.PoolRequest
}

// reply is the result of a call, or a part of it.
type reply struct {
	id     uint64
	status byte
	text   string // with statusError
	grants []federation.PoolGrant
}

// hello is a client's first message.
type hello struct {
	min, max uint16 // supported versions
	epoch    uint32
	region   string
}

// welcome is the reply to a hello.
type welcome struct {
	version uint16 // chosen; 0 if refused
	reason  string // why it was refused
}

// beginFrame begins a frame of about size bytes. After the payload, w.EndLen32(0) completes it.
func beginFrame(typ byte, size int) wire.Writer { return make(wire.Writer, 0, 64+size).U32(0).U8(typ) }

// simpleFrame returns a frame without payload.
func simpleFrame(typ byte) []byte {
	w := beginFrame(typ, 0)
	w.EndLen32(0)
	return w
}

// goAwayFrame returns a frame that asks the client to use another connection.
func goAwayFrame(reason string) []byte {
	w := appendText(beginFrame(frameGoAway, len(reason)), reason)
	w.EndLen32(0)
	return w
}

// parseGoAway reads a payload.
func parseGoAway(b []byte) (reason string, err error) {
	r := wire.NewReader(b)
	reason = readText(&r)
	return reason, r.Err()
}

// appendText appends a text for people, which it shortens to maxText.
func appendText(w wire.Writer, s string) wire.Writer {
	s = strings.ToValidUTF8(s[:min(len(s), maxText)], "")
	return w.U16(uint16(len(s))).String(s)
}

// readText reads a text. A text longer than maxText is an error.
func readText(r *wire.Reader) string {
	n := int(r.U16())
	if n > maxText {
		r.Fail()
		return ""
	}
	return r.String(n)
}

// helloFrame returns the frame, after the magic.
func helloFrame(h hello) []byte {
	w := beginFrame(frameHello, len(h.region)).U16(h.min).U16(h.max).U32(h.epoch).U8(byte(len(h.region))).String(h.region)
	w.EndLen32(0)
	return append([]byte(magic), w...)
}

// parseHello reads a payload. Fields that a later version appends are skipped.
func parseHello(b []byte) (h hello, err error) {
	r := wire.NewReader(b)
	h.min, h.max, h.epoch = r.U16(), r.U16(), r.U32()
	h.region = r.String(int(r.U8()))
	return h, r.Err()
}

// welcomeFrame returns the frame, after the magic.
func welcomeFrame(m welcome) []byte {
	w := appendText(beginFrame(frameWelcome, len(m.reason)).U16(m.version), m.reason)
	w.EndLen32(0)
	return append([]byte(magic), w...)
}

// parseWelcome reads a payload. Fields that a later version appends are skipped.
func parseWelcome(b []byte) (m welcome, err error) {
	r := wire.NewReader(b)
	m.version, m.reason = r.U16(), readText(&r)
	return m, r.Err()
}

// fitting returns how many of the requests one call can have.
func fitting(rs []federation.PoolRequest) (n int) {
	size := 0
	for n < min(len(rs), maxRequests) && size < fullFrame {
		size += requestSize + 2 + len(rs[n].Note) + min(len(rs[n].Name), maxName)
		n++
	}
	return n
}

// callFrame returns the frame of a call, whose requests fit into it.
func callFrame(c *call) []byte {
	w := beginFrame(frameCall, len(c.requests)*(requestSize+32))
	w = w.U64(c.id).U32(microseconds(c.timeout)).U8(byte(c.op)).U16(uint16(len(c.requests)))
	for i := range c.requests {
		w = poolwire.AppendRequest(w, &c.requests[i])
	}
	w.EndLen32(0)
	return w
}

// microseconds returns d, at least 1 and at most what the field can have.
func microseconds(d time.Duration) uint32 {
	return uint32(min(max(d.Microseconds(), 1), math.MaxUint32))
}

// parseCall reads a payload. The result does not share its memory. Fields that a later version appends to a record are
// skipped.
func parseCall(b []byte) (c call, err error) {
	r := wire.NewReader(b)
	c.id, c.timeout, c.op = r.U64(), time.Duration(r.U32())*time.Microsecond, op(r.U8())
	n := int(r.U16())
	switch {
	case r.Err() != nil:
		return c, fmt.Errorf("call: %w", r.Err())
	case c.op < opLease || c.op > opHealthy:
		return c, fmt.Errorf("call of an unknown method %d", c.op)
	case n > maxRequests || n*(2+requestSize) > r.Len():
		return c, fmt.Errorf("call: %d requests do not fit into %d bytes", n, r.Len())
	case n > 0:
		c.requests = make([]federation.PoolRequest, n)
	}
	for i := range c.requests {
		record := r.Record(int(r.U16()))
		if err := poolwire.ReadRequest(&record, &c.requests[i]); err != nil {
			return c, fmt.Errorf("request %d of a call: %w", i+1, err)
		}
	}
	return c, r.Err()
}

// replyFrames returns the frames of the reply to a call: several if the grants are large.
func replyFrames(id uint64, gs []federation.PoolGrant) (frames [][]byte) {
	for {
		w := beginFrame(frameReply, len(gs)*(grantSize+4*lineSize)).U64(id).U8(statusLast).U16(0)
		n := 0
		for n < len(gs) && len(w) < fullFrame {
			w = poolwire.AppendGrant(w, &gs[n])
			n++
		}
		status, count := frameLength+9, frameLength+10
		w[count], w[count+1] = byte(n), byte(n>>8)
		if gs = gs[n:]; len(gs) > 0 {
			w[status] = statusMore
		}
		w.EndLen32(0)
		if frames = append(frames, w); len(gs) == 0 {
			return frames
		}
	}
}

// errorFrame returns the reply to a call that failed.
func errorFrame(id uint64, err error) []byte {
	w := appendText(beginFrame(frameReply, maxText).U64(id).U8(statusError), err.Error())
	w.EndLen32(0)
	return w
}

// parseReply reads a payload. The result does not share its memory. Fields that a later version appends to a record are
// skipped.
func parseReply(b []byte) (p reply, err error) {
	r := wire.NewReader(b)
	p.id, p.status = r.U64(), r.U8()
	if p.status == statusError {
		p.text = readText(&r)
		return p, r.Err()
	}
	n := int(r.U16())
	switch {
	case r.Err() != nil:
		return p, fmt.Errorf("reply: %w", r.Err())
	case p.status > statusError:
		return p, fmt.Errorf("reply with an unknown status %d", p.status)
	case n*(4+grantSize) > r.Len():
		return p, fmt.Errorf("reply: %d grants do not fit into %d bytes", n, r.Len())
	case n > 0:
		p.grants = make([]federation.PoolGrant, n)
	}
	for i := range p.grants {
		record := r.Record(int(r.U32()))
		if err := poolwire.ReadGrant(&record, &p.grants[i]); err != nil {
			return p, fmt.Errorf("grant %d of a reply: %w", i+1, err)
		}
	}
	return p, r.Err()
}
