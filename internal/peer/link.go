package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

const (
	dialTime   = time.Second // for TCP, and again for TLS and the handshake
	linger     = time.Second // a member that left the view may answer what it was asked before
	minBackoff = 50 * time.Millisecond
	maxBackoff = 2 * time.Second

	// A member that let so many groups in a row time out, and has not been heard for so long, is asked nothing until it
	// is heard again. It keeps a stopped member from costing every question its whole deadline until it is known silent.
	doubtAfter = 16
	doubtQuiet = 250 * time.Millisecond
)

var errSilent = errors.New("silent")

// link is this member's stream to one other: it is dialled ahead of time and again whenever it breaks.
type link struct {
	to     ring.ID
	addr   Addr
	dial   func(context.Context, *link, purpose) (net.Conn, uint16, error)
	clock  *clock
	m      *metrics
	log    *slog.Logger
	bounds queueBounds
	maxAge time.Duration // of a connection

	kick      chan struct{} // holds a token to dial without waiting
	wake      chan struct{} // holds a token when out is no longer empty
	changed   chan struct{} // holds a token when the link is up or down since it was last taken
	retired   atomic.Bool   // do not dial again
	connected atomic.Bool   // there is a live stream
	stop      context.CancelFunc

	heard    atomic.Int64 // when bytes last came, by the monotonic clock
	proved   atomic.Int64 // when the answer to a heartbeat last came, by the monotonic clock; 0: never
	asked    atomic.Int64 // when the first question after that was sent, by the monotonic clock
	pulse    pulse
	timeouts atomic.Int32  // groups that timed out since
	spoke    atomic.Uint32 // version that was spoken when it was last connected; 0: never

	mu       sync.Mutex
	live     bool               // guarded by mu
	since    time.Time          // guarded by mu: of live
	version  uint16             // guarded by mu: spoken on the live stream
	down     string             // guarded by mu: why there is no live stream
	downKind string             // guarded by mu: what of it has been logged
	out      []byte             // guarded by mu: frames to write
	queued   int                // guarded by mu: questions in out
	tickets  tickets            // guarded by mu: groups that wait for an answer
	pace     int64              // guarded by mu: nanoseconds that one group more takes while there is a queue; averaged
	writers  writerTable        // guarded by mu: scratch
	held     [2]handoff.Message // guarded by mu: the last Ping and Pong that found no stream; they open the next
	spare    []byte             // guarded by mu: the buffer of the batch before
	writing  bool               // guarded by mu: a batch is being written, by whoever took it; it will look at out again
	current  *current           // guarded by mu: what is written to; nil: nothing
	flow     flow               // guarded by mu: of current
}

// queueBounds limit what waits for one member.
type queueBounds struct {
	bytes  int // encoded and not written
	groups int // without an answer
}

// send queues group g of c, whose mu is held. A result other than pending says why it did not: then no byte has left.
func (l *link) send(c *call, g int) result {
	a := &c.groups[g]
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.live || l.doubtful(a.sent) {
		return unreachable
	}
	size := frameHead + askHead + len(a.index)*(recordHead+questionSize+questionMore)
	ahead, ttl := l.tickets.len(), c.last-a.sent
	if len(l.out)+size > l.bounds.bytes || ahead >= l.bounds.groups || l.tooMany(ttl) {
		if l.lives(a.sent) {
			return shed
		}
		return queueFull
	}
	if l.asked.Load() <= l.sign() {
		l.asked.Store(a.sent)
	}
	a.ticket = l.tickets.put(ticket{call: c, gen: c.gen, group: g, sent: a.sent, ahead: ahead})
	l.push(func(b []byte) []byte {
		return appendAsk(b, group{
			id: a.ticket, sent: a.sent, ttl: time.Duration(ttl), stop: c.outcome != nil, count: len(a.index),
		}, c.qs, a.index)
	})
	l.queued += len(a.index)
	return pending
}

// push appends a frame to what the writer will write next. It is called with mu held.
func (l *link) push(encode func([]byte) []byte) {
	l.rouse()
	l.out = encode(l.out)
}

func appendAsk(b []byte, g group, qs []owner.Request, index []uint16) []byte {
	b, at := beginFrame(b, frameAsk)
	b = appendAskHead(b, g)
	for _, i := range index {
		b = appendQuestion(b, &qs[i])
	}
	endFrame(b, at)
	return b
}

func (l *link) doubtful(now int64) bool {
	return l.timeouts.Load() >= doubtAfter && now-l.heard.Load() > int64(doubtQuiet)
}

// withdraw forgets a group whose caller has waited long enough.
func (l *link) withdraw(id uint64) {
	l.timeouts.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tickets.take(id)
}

// run keeps the link up until ctx ends.
func (l *link) run(ctx context.Context) {
	backoff := minBackoff
	for ctx.Err() == nil && !l.retired.Load() {
		conn, version, err := l.dial(ctx, l, forQuestions)
		if err == nil {
			backoff = minBackoff
			err = l.stream(ctx, conn, version)
		}
		if ctx.Err() != nil {
			return
		}
		l.report(err)
		t := time.NewTimer(backoff/2 + rand.N(backoff))
		select {
		case <-t.C:
			backoff = min(2*backoff, maxBackoff)
		case <-l.kick:
			backoff = minBackoff
		case <-ctx.Done():
		}
		t.Stop()
	}
}

// report logs why the stream is down when that is news.
func (l *link) report(err error) {
	kind := kindOf(err)
	l.mu.Lock()
	news := l.downKind != kind
	l.down, l.downKind = err.Error(), kind
	l.mu.Unlock()
	if news {
		wake(l.changed)
		l.log.Warn("member cannot be asked", "member", l.to, "address", l.addr.HostPort, "error", err)
	}
}

// kindOf is err without what differs at every attempt, such as the port it was made from.
func kindOf(err error) string {
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		return op.Op + ": " + op.Err.Error()
	}
	if errors.Is(err, errSilent) {
		return errSilent.Error()
	}
	return err.Error()
}

func (l *link) up(version uint16) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.live, l.since, l.version, l.down, l.downKind = true, time.Now(), version, "", ""
	l.connected.Store(true)
	l.spoke.Store(uint32(version))
	l.out, l.queued = l.out[:0], 0
	l.m.connected.Inc()
	wake(l.changed)
	for i, m := range l.held {
		if version >= handoffVersion && m.Kind != 0 && l.clock.now()-m.Sent < int64(beat) {
			l.encode(&m)
		}
		l.held[i] = handoff.Message{}
	}
}

// fall takes the link down and completes what was out, so that nobody waits for a stream that is gone.
func (l *link) fall() {
	l.mu.Lock()
	l.live, l.since = false, time.Now()
	l.connected.Store(false)
	lost := l.tickets.drain()
	l.mu.Unlock()
	l.m.connected.Dec()
	wake(l.changed)
	for _, t := range lost {
		t.call.fail(t.gen, t.group, broken)
	}
}

func (l *link) ping() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queued == 0 { // otherwise what waits will be answered as well
		l.push(func(b []byte) []byte { return appendPing(b, framePing, uint64(l.clock.mono())) })
	}
}

func appendPing(b []byte, typ byte, token uint64) []byte {
	b, at := beginFrame(b, typ)
	b = le.AppendUint64(b, token)
	endFrame(b, at)
	return b
}

// read completes groups as their answers come.
func (l *link) read(conn net.Conn) error {
	in := frames{src: conn}
	for {
		if err := in.fill(); err != nil {
			return fmt.Errorf("read: %w", err)
		}
		now := l.clock.mono()
		l.heard.Store(now)
		l.timeouts.Store(0)
		for {
			typ, payload, whole, err := in.next()
			if err != nil {
				return err
			}
			if !whole {
				break
			}
			if typ != frameAnswer {
				continue // a pong was heard above; other types are of later versions
			}
			if err := l.complete(now, payload); err != nil {
				return fmt.Errorf("answer: %w", err)
			}
		}
	}
}

func (l *link) complete(now int64, payload []byte) error {
	id, outcome, count, records, err := parseAnswerHead(payload)
	if err != nil {
		return err
	}
	l.mu.Lock()
	t, known := l.tickets.take(id)
	if known {
		l.paced(now-t.sent, t.ahead)
	}
	l.mu.Unlock()
	if !known {
		return nil // its caller has given up
	}
	return t.call.answer(t.gen, t.group, now, outcome, count, records)
}

// hurry ends the wait before the next attempt: a new view may have made the member reachable.
func (l *link) hurry() {
	wake(l.kick)
}

// retire ends the link after linger.
func (l *link) retire() {
	l.retired.Store(true)
	time.AfterFunc(linger, l.stop)
}

func (l *link) state() Link {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Link{
		Member: l.to, Addr: l.addr, Live: l.live, Since: l.since, Version: l.version, Error: l.down, Pending: l.tickets.len(),
	}
}
