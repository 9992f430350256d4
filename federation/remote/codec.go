package remote

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/wire"
)

// PROTOCOL.md specifies the layout of everything that is encoded here, and the golden files in testdata pin it.

const (
	magic   = "KEYWARDF"
	version = 1

	maxFrame    = 1 << 20 // bytes of a frame's type and payload
	maxHello    = 2 << 10 // of a frame of the handshake
	maxRequests = 1024    // of one call
	maxName     = 4 << 10 // bytes of Request.Name; longer ones are not sent
	maxText     = 1 << 10 // bytes of an error
	maxRegion   = 255     // bytes of the name of a region

	frameLength = 4
	requestSize = 113 // of a request's record without note and name
	grantSize   = 66  // of a grant's record without others
	lineSize    = 27  // of a line without region and note
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
		w = appendRequest(w, &c.requests[i])
	}
	w.EndLen32(0)
	return w
}

// microseconds returns d, at least 1 and at most what the field can have.
func microseconds(d time.Duration) uint32 {
	return uint32(min(max(d.Microseconds(), 1), math.MaxUint32))
}

// appendRequest appends a record. The request is valid.
func appendRequest(w wire.Writer, r *federation.PoolRequest) wire.Writer {
	name := r.Name
	if len(name) > maxName {
		name = "" // only coordinators that need it refuse the request then
	}
	w = w.U16(uint16(requestSize + len(r.Note) + len(name)))
	w = w.U64(r.Key[0]).U64(r.Key[1])
	w = w.I64(int64(r.Rule.Window)).U32(r.Rule.Limit).U32(r.Rule.Burst).U8(byte(r.Rule.Algorithm))
	w = w.U64(r.Pool).U32(r.Epoch).U64(r.Boot).U64(r.Seq)
	w = w.I64(r.Window).U64(r.Have).U64(r.Left).U64(r.Tokens).I64(r.Past.Window).U64(r.Past.Have)
	w = append(w.U16(uint16(len(r.Note))), r.Note...)
	return w.U16(uint16(len(name))).String(name)
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
		if err := readRequest(&record, &c.requests[i]); err != nil {
			return c, fmt.Errorf("request %d of a call: %w", i+1, err)
		}
	}
	return c, r.Err()
}

func readRequest(r *wire.Reader, q *federation.PoolRequest) error {
	q.Key = federation.Key{r.U64(), r.U64()}
	q.Rule.Window, q.Rule.Limit, q.Rule.Burst = time.Duration(r.I64()), r.U32(), r.U32()
	q.Rule.Algorithm = limit.Algorithm(r.U8())
	q.Pool, q.Epoch, q.Boot, q.Seq = r.U64(), r.U32(), r.U64(), r.U64()
	q.Window, q.Have, q.Left, q.Tokens = r.I64(), r.U64(), r.U64(), r.U64()
	q.Past = federation.Past{Window: r.I64(), Have: r.U64()}
	q.Note = readNote(r)
	n := int(r.U16())
	if n > maxName {
		r.Fail()
	}
	q.Name = r.String(n)
	return r.Err()
}

// readNote reads a note. A note longer than federation.MaxNote is an error.
func readNote(r *wire.Reader) []byte {
	n := int(r.U16())
	if n > federation.MaxNote {
		r.Fail()
	}
	if n == 0 {
		return nil
	}
	return bytes.Clone(r.Bytes(n))
}

// replyFrames returns the frames of the reply to a call: several if the grants are large.
func replyFrames(id uint64, gs []federation.PoolGrant) (frames [][]byte) {
	for {
		w := beginFrame(frameReply, len(gs)*(grantSize+4*lineSize)).U64(id).U8(statusLast).U16(0)
		n := 0
		for n < len(gs) && len(w) < fullFrame {
			w = appendGrant(w, &gs[n])
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

func appendGrant(w wire.Writer, g *federation.PoolGrant) wire.Writer {
	at := len(w)
	w = w.U32(0).U64(g.Key[0]).U64(g.Key[1]).U64(g.Seq).I64(g.Window)
	w = w.U64(g.Total).U64(g.Used).U64(g.Usable).I64(int64(g.Left)).U16(uint16(len(g.Others)))
	for i := range g.Others {
		l := &g.Others[i]
		w = w.U8(byte(len(l.Region))).String(l.Region).U64(l.Granted).U64(l.Left).I64(int64(l.Age))
		w = append(w.U16(uint16(len(l.Note))), l.Note...)
	}
	w.EndLen32(at)
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
		if err := readGrant(&record, &p.grants[i]); err != nil {
			return p, fmt.Errorf("grant %d of a reply: %w", i+1, err)
		}
	}
	return p, r.Err()
}

func readGrant(r *wire.Reader, g *federation.PoolGrant) error {
	g.Key, g.Seq, g.Window = federation.Key{r.U64(), r.U64()}, r.U64(), r.I64()
	g.Total, g.Used, g.Usable, g.Left = r.U64(), r.U64(), r.U64(), time.Duration(r.I64())
	n := int(r.U16())
	if n*lineSize > r.Len() {
		r.Fail()
	}
	if r.Err() != nil || n == 0 {
		return r.Err()
	}
	g.Others = make([]federation.RegionLine, n)
	for i := range g.Others {
		l := &g.Others[i]
		l.Region = r.String(int(r.U8()))
		l.Granted, l.Left, l.Age, l.Note = r.U64(), r.U64(), time.Duration(r.I64()), readNote(r)
	}
	return r.Err()
}
