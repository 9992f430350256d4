package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	dialTimeout = 5 * time.Second
	mostStreams = 1000 // open on a connection, even where the server would have more: what they hold must fit a socket's buffers
)

// round is one run, of all connections.
type round struct {
	begin, end time.Time
	paced      bool          // answers begin no calls
	wander     bool          // the next call goes to the next connection
	calls      atomic.Int64  // open, and one for the run while it begins calls
	open       chan struct{} // closed when there are no calls
	last       time.Time     // when it was; set before open is closed
}

// leave ends one call.
func (r *round) leave() {
	if r.calls.Add(-1) == 0 {
		r.last = time.Now()
		close(r.open)
	}
}

// over is when the last answer came.
func (r *round) over() time.Time { return r.last }

// conn is one connection, and its successors when the server has ended it.
type conn struct {
	load   *Load
	target int

	mu       sync.Mutex
	net      net.Conn           // guarded by mu; nil: none
	draining bool               // guarded by mu; the server wants no more calls here
	literal  bool               // guarded by mu; the server has a table of its own size: use none
	begun    bool               // guarded by mu; a call has been sent
	next     uint32             // guarded by mu; stream
	window   int64              // guarded by mu; bytes that the server lets us send
	most     int                // guarded by mu; streams that it lets us open
	streams  map[uint32]*stream // guarded by mu
	free     []*stream          // guarded by mu
	waiting  queue              // guarded by mu; beginnings of calls that cannot be sent yet
	out      []byte             // guarded by mu; not written yet
	random   *rand.Rand         // guarded by mu
	round    *round             // guarded by mu; nil: between runs
	result   Result             // guarded by mu
	ready    chan<- struct{}    // guarded by mu; told of the server's settings
	pass     int                // guarded by mu; calls that the next connection is to make
	headers  []byte             // reader's: of a block that goes on in CONTINUATION frames
	ending   bool               // reader's: that block ends its stream
	blocks   *blockReader       // reader's
	unacked  uint32             // reader's: bytes received since the last WINDOW_UPDATE
	encoder  *hpack.Encoder     // guarded by mu; of literal
	encoded  bytes.Buffer       // guarded by mu; of encoder
}

// queue is times in the order they came. It may grow long: a server that cannot keep up leaves nearly all calls here.
type queue struct {
	times []time.Time
	first int
}

func (q *queue) len() int         { return len(q.times) - q.first }
func (q *queue) push(t time.Time) { q.times = append(q.times, t) }

func (q *queue) pop() time.Time {
	t := q.times[q.first]
	if q.first++; 2*q.first >= len(q.times) { // each time is moved once at most, on average
		q.times, q.first = append(q.times[:0], q.times[q.first:]...), 0
	}
	return t
}

// stream is one open call.
type stream struct {
	begin time.Time
	reply Reply
}

func (c *conn) usable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.net != nil && !c.draining
}

// dial connects and waits for the server's settings.
func (c *conn) dial(ctx context.Context) error {
	fail := func(err error) error { return fmt.Errorf("connect to %s: %w", c.load.Targets[c.target].Addr, err) }
	socket, err := dialNet(ctx, c.load.Targets[c.target])
	if err != nil {
		return fail(err)
	}
	if _, err := socket.Write(appendPreface(nil)); err != nil {
		socket.Close()
		return fail(err)
	}
	ready := make(chan struct{}, 1)
	c.mu.Lock()
	c.net, c.draining, c.literal, c.begun = socket, false, false, false
	c.next, c.window, c.most = 1, 65535, mostStreams
	c.streams, c.out, c.ready = map[uint32]*stream{}, c.out[:0], ready
	c.mu.Unlock()
	ended := make(chan error, 1)
	go func() { ended <- c.read(socket) }()
	select {
	case <-ready:
		return nil
	case err := <-ended:
		return fail(fmt.Errorf("it does not speak HTTP/2 here: %w", err))
	case <-ctx.Done():
		socket.Close()
		return fail(errors.New("no HTTP/2 settings came"))
	}
}

func (c *conn) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.net != nil {
		c.net.Close()
	}
}

// enter begins a run, exit ends it.
func (c *conn) enter(r *round) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.round, c.result, c.waiting = r, Result{}, queue{}
}

func (c *conn) exit() Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.round = nil
	return c.result
}

// ask makes a call that began then, as soon as the server lets us; with flush it is on its way when ask returns.
func (c *conn) ask(begin time.Time, flush bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting.push(begin)
	c.sendLocked()
	if flush {
		c.flushLocked()
	}
}

func (c *conn) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flushLocked()
}

// sendLocked encodes the calls that wait, as far as the server takes them.
func (c *conn) sendLocked() {
	if c.net == nil {
		c.failLocked(errors.New("the connection has ended"))
		return
	}
	for c.waiting.len() > 0 && !c.draining && len(c.streams) < c.most {
		e := c.load.pick(c.target, c.random)
		if c.window < int64(len(e.body)) {
			return
		}
		s := &stream{}
		if n := len(c.free); n > 0 {
			s, c.free = c.free[n-1], c.free[:n-1]
		}
		s.begin, s.reply = c.waiting.pop(), Reply{Body: s.reply.Body[:0]}
		c.streams[c.next] = s
		c.appendLocked(e)
		c.window -= int64(len(e.body))
		c.begun, c.next = true, c.next+2
		c.draining = c.next > math.MaxInt32
	}
}

func (c *conn) appendLocked(e *encoded) {
	block := e.block
	switch {
	case c.literal:
		block = c.literalLocked(e)
	case !c.begun:
		block = e.first
	}
	flags := http2.FlagHeadersEndHeaders
	if len(e.body) == 0 {
		flags |= http2.FlagHeadersEndStream
	}
	c.out = appendFrame(c.out, http2.FrameHeaders, flags, c.next, block...)
	if len(e.body) > 0 {
		c.out = appendFrame(c.out, http2.FrameData, http2.FlagDataEndStream, c.next, e.body...)
	}
}

// literalLocked is a header block for a server that keeps no table, or a smaller one than is usual.
func (c *conn) literalLocked(e *encoded) []byte {
	c.encoded.Reset()
	if c.encoder == nil || !c.begun {
		c.encoder = hpack.NewEncoder(&c.encoded)
		c.encoder.SetMaxDynamicTableSize(0)
	}
	for _, f := range e.fields {
		f.Sensitive = true
		_ = c.encoder.WriteField(f) // to a buffer
	}
	return c.encoded.Bytes()
}

func (c *conn) flushLocked() {
	if len(c.out) == 0 || c.net == nil {
		return
	}
	if _, err := c.net.Write(c.out); err != nil {
		c.net.Close() // the reader tells
	}
	c.out = c.out[:0]
}

// failLocked ends all calls of a connection that has ended.
func (c *conn) failLocked(err error) {
	lost := len(c.streams) + c.waiting.len()
	clear(c.streams)
	c.waiting = queue{}
	if c.round == nil || lost == 0 {
		return
	}
	c.result.Errors += lost
	c.result.Err = err
	for range lost {
		c.round.leave()
	}
}

// read handles what the server sends until the connection ends.
func (c *conn) read(socket net.Conn) error {
	in := bufio.NewReaderSize(socket, 64<<10)
	c.blocks, c.headers, c.unacked = newBlockReader(), nil, 0
	for {
		f, err := readFrame(in)
		c.mu.Lock()
		if err == nil {
			err = c.handleLocked(&f)
		}
		if err == nil && c.draining && len(c.streams) == 0 {
			err = errDrained
		}
		if err != nil {
			c.endLocked(socket, err)
			return err
		}
		pass := 0
		if in.Buffered() < frameHeader {
			c.flushLocked()
			pass, c.pass = c.pass, 0
		}
		c.mu.Unlock()
		for range pass {
			c.load.after(c).ask(time.Now(), true)
		}
	}
}

var errDrained = errors.New("the server has ended the connection")

// endLocked unlocks mu. A server that wants its connections renewed gets a new one; the calls that wait go there.
func (c *conn) endLocked(socket net.Conn, err error) {
	socket.Close()
	c.net = nil
	again := errors.Is(err, errDrained) && c.round != nil && c.waiting.len() > 0
	if !again {
		c.failLocked(err)
	}
	c.mu.Unlock()
	if !again {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
		defer cancel()
		err := c.dial(ctx)
		c.mu.Lock()
		defer c.mu.Unlock()
		if err != nil {
			c.failLocked(err)
			return
		}
		c.sendLocked()
		c.flushLocked()
	}()
}

// after is the connection that a wandering call goes to from c: the first ones are one to each target.
func (l *Load) after(c *conn) *conn {
	return l.conns[(c.target+1)%min(len(l.Targets), len(l.conns))]
}

func (c *conn) handleLocked(f *frame) error {
	switch f.kind {
	case http2.FrameHeaders, http2.FrameContinuation:
		return c.headersLocked(f)
	case http2.FrameData:
		return c.dataLocked(f)
	case http2.FrameRSTStream:
		if s := c.streams[f.stream]; s != nil {
			c.doneLocked(f.stream, s, fmt.Errorf("the server has reset the stream, code %d", number(f.payload)))
		}
	case http2.FrameSettings:
		return c.settingsLocked(f)
	case http2.FramePing:
		if !f.flags.Has(http2.FlagPingAck) {
			c.out = appendFrame(c.out, http2.FramePing, http2.FlagPingAck, 0, f.payload...)
		}
	case http2.FrameWindowUpdate:
		if f.stream == 0 {
			c.window += int64(number(f.payload))
			c.sendLocked()
		}
	case http2.FrameGoAway:
		c.draining = true
	}
	return nil
}

// number is the number at the beginning of a payload; 0 of one that is too short.
func number(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b) & (1<<31 - 1)
}

func (c *conn) settingsLocked(f *frame) error {
	if f.flags.Has(http2.FlagSettingsAck) {
		return nil
	}
	for b := f.payload; len(b) >= 6; b = b[6:] {
		value := binary.BigEndian.Uint32(b[2:])
		switch http2.SettingID(binary.BigEndian.Uint16(b)) {
		case http2.SettingHeaderTableSize:
			if value < tableSize && c.begun && !c.literal {
				return errors.New("the server makes its header table smaller in the middle of calls")
			}
			c.literal = value < tableSize
		case http2.SettingMaxConcurrentStreams:
			c.most = int(min(value, mostStreams))
		}
	}
	c.out = appendFrame(c.out, http2.FrameSettings, http2.FlagSettingsAck, 0)
	if c.ready != nil {
		c.ready <- struct{}{}
		c.ready = nil
	}
	return nil
}

func (c *conn) headersLocked(f *frame) error {
	block := f.payload
	if f.kind == http2.FrameHeaders {
		var err error
		if block, err = f.body(); err != nil {
			return err
		}
		c.ending = f.flags.Has(http2.FlagHeadersEndStream)
	}
	if len(c.headers) > 0 || !f.flags.Has(http2.FlagHeadersEndHeaders) {
		c.headers = append(c.headers, block...)
		block = c.headers
	}
	if !f.flags.Has(http2.FlagHeadersEndHeaders) {
		return nil
	}
	c.headers = c.headers[:0]
	s := c.streams[f.stream]
	reply := &Reply{}
	if s != nil {
		reply = &s.reply
	}
	if err := c.blocks.read(block, reply); err != nil {
		return err
	}
	if s != nil && c.ending {
		c.doneLocked(f.stream, s, nil)
	}
	return nil
}

func (c *conn) dataLocked(f *frame) error {
	b, err := f.body()
	if err != nil {
		return err
	}
	if c.unacked += uint32(len(f.payload)); c.unacked > bigWindow/2 {
		c.out = appendWindowUpdate(c.out, c.unacked)
		c.unacked = 0
	}
	s := c.streams[f.stream]
	if s == nil {
		return nil
	}
	s.reply.Body = append(s.reply.Body, b...)
	if f.flags.Has(http2.FlagDataEndStream) {
		c.doneLocked(f.stream, s, nil)
	}
	return nil
}

// doneLocked ends a call and, as long as calls are to be in flight, begins the next one.
func (c *conn) doneLocked(id uint32, s *stream, err error) {
	delete(c.streams, id)
	c.free = append(c.free, s)
	r := c.round
	if r == nil {
		return
	}
	now, over := time.Now(), false
	if err == nil {
		over, err = c.answer(&s.reply)
	}
	switch {
	case err != nil:
		c.result.Errors++
		c.result.Err = err
	case over:
		c.result.Over++
	default:
		c.result.OK++
	}
	if err == nil {
		c.result.Latency.Add(now.Sub(s.begin))
	}
	switch {
	case r.paced || now.After(r.end):
		r.leave()
	case r.wander:
		c.pass++
	default:
		c.waiting.push(now)
	}
	c.sendLocked()
}

func (c *conn) answer(r *Reply) (bool, error) {
	s := &c.load.Service
	if s.Framed && r.Code == "0" {
		if len(r.Body) < 5 || r.Body[0] != 0 || int(binary.BigEndian.Uint32(r.Body[1:])) != len(r.Body)-5 {
			return false, errors.New("the answer is not one gRPC message")
		}
		whole := r.Body
		r.Body = whole[5:]
		defer func() { r.Body = whole }() // its memory is used again
	}
	return s.Read(r)
}
