package loadtest

import (
	"bytes"
	"context"
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
	renew    bool               // guarded by mu; the server has ended the connection in good order, and there was no call for the next one
	dialing  bool               // guarded by mu; the next connection is on its way
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
	result   Calls              // guarded by mu
	ready    chan<- struct{}    // guarded by mu; receives when the server's settings have arrived
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
	c.net, c.draining, c.renew, c.literal, c.begun = socket, false, false, false, false
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
	c.round, c.result, c.waiting = r, Calls{}, queue{}
}

func (c *conn) exit() Calls {
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

// sendLocked encodes waiting calls, as many as the server's limits allow.
func (c *conn) sendLocked() {
	switch {
	case c.dialing:
		return
	case c.renew:
		c.renewLocked()
		return
	case c.net == nil:
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
	c.out = appendFrame(c.out, frameKind{http2.FrameHeaders, flags}, c.next, block...)
	if len(e.body) > 0 {
		c.out = appendFrame(c.out, frameKind{http2.FrameData, http2.FlagDataEndStream}, c.next, e.body...)
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
		c.net.Close() // the reader reports the error
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
