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
	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/ring"
)

const (
	dialTime   = time.Second // for TCP, and again for TLS and the handshake
	linger     = time.Second // a member that left the view may answer what it was asked before
	minBackoff = 50 * time.Millisecond
	maxBackoff = 2 * time.Second

	// A member that let so many groups in a row time out, and has not been heard for so long, is asked nothing until it
	// is heard again. It keeps a stopped member from costing every question its whole deadline until it is known silent.
	unresponsiveTimeouts = 16
	unresponsiveSilence  = 250 * time.Millisecond
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

	redial    chan struct{} // holds a token to dial without waiting
	wake      chan struct{} // holds a token when out is no longer empty
	changed   chan struct{} // holds a token when the link is up or down since it was last taken
	retired   atomic.Bool   // do not dial again
	connected atomic.Bool   // there is a live stream
	stop      context.CancelFunc

	lastRead      atomic.Int64 // when bytes last came, by the monotonic clock
	lastConfirmed atomic.Int64 // when the answer to a heartbeat last came, by the monotonic clock; 0: never
	waitingSince  atomic.Int64 // when the first question after that was sent, by the monotonic clock
	keepalive     keepalive
	timeouts      atomic.Int32  // groups that timed out since
	lastVersion   atomic.Uint32 // version that was spoken when it was last connected; 0: never

	mu             sync.Mutex
	live           bool               // guarded by mu
	since          time.Time          // guarded by mu: of live
	version        uint16             // guarded by mu: spoken on the live stream
	lastError      string             // guarded by mu: why there is no live stream
	loggedError    string             // guarded by mu: what of it has been logged
	out            []byte             // guarded by mu: frames to write
	queuedRequests int                // guarded by mu: questions in out
	sentGroups     sentGroups         // guarded by mu: groups that wait for an answer
	pace           int64              // guarded by mu: nanoseconds that one group more takes while there is a queue; averaged
	writers        writerTable        // guarded by mu: scratch
	heldHeartbeats [2]handoff.Message // guarded by mu: the last Ping and Pong that found no stream; they open the next
	spare          []byte             // guarded by mu: the buffer of the batch before
	writing        bool               // guarded by mu: a batch is being written, by whoever took it; it will look at out again
	outbound       *outbound          // guarded by mu: what is written to; nil: nothing
	acked          ackedBytes         // guarded by mu: of current
}

// queueBounds limit what waits for one member.
type queueBounds struct {
	bytes  int // encoded and not written
	groups int // without an answer
}

// send queues group g of c, whose mu is held. A result other than pending says why it did not: then no byte has left.
func (l *link) send(c *call, g int) forwardStatus {
	a := &c.groups[g]
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.live || l.unresponsive(a.sent) {
		return forwardUnreachable
	}
	size := frameHead + requestHeadSize + len(a.index)*(recordHead+requestSize+requestExtraSize)
	ahead, ttl := l.sentGroups.len(), c.giveUpAt-a.sent
	if len(l.out)+size > l.bounds.bytes || ahead >= l.bounds.groups || l.queueTooLong(ttl) {
		if l.isAlive(a.sent) {
			return forwardShed
		}
		return forwardQueueFull
	}
	if l.waitingSince.Load() <= l.lastSignOfLife() {
		l.waitingSince.Store(a.sent)
	}
	a.id = l.sentGroups.put(sentGroup{call: c, gen: c.gen, group: g, sent: a.sent, ahead: ahead})
	l.appendFrame(func(b []byte) []byte {
		return appendRequests(b, requestGroup{
			id: a.id, sent: a.sent, ttl: time.Duration(ttl), stop: c.stopStatus != nil, count: len(a.index),
		}, c.qs, a.index)
	})
	l.queuedRequests += len(a.index)
	return forwardPending
}

// appendFrame appends a frame to what the writer will write next. It is called with mu held.
func (l *link) appendFrame(encode func([]byte) []byte) {
	l.wakeWriter()
	l.out = encode(l.out)
}

func (l *link) unresponsive(now int64) bool {
	return l.timeouts.Load() >= unresponsiveTimeouts && now-l.lastRead.Load() > int64(unresponsiveSilence)
}

// forgetGroup forgets a group whose caller has waited long enough.
func (l *link) forgetGroup(id uint64) {
	l.timeouts.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sentGroups.take(id)
}

// run keeps the link up until ctx ends.
func (l *link) run(ctx context.Context) {
	backoff := minBackoff
	for ctx.Err() == nil && !l.retired.Load() {
		conn, version, err := l.dial(ctx, l, forRequests)
		if err == nil {
			backoff = minBackoff
			err = l.runStreams(ctx, conn, version)
		}
		if ctx.Err() != nil {
			return
		}
		l.logFailure(err)
		t := time.NewTimer(backoff/2 + rand.N(backoff))
		select {
		case <-t.C:
			backoff = min(2*backoff, maxBackoff)
		case <-l.redial:
			backoff = minBackoff
		case <-ctx.Done():
		}
		t.Stop()
	}
}

// logFailure logs why the stream is down when that is news.
func (l *link) logFailure(err error) {
	kind := stableError(err)
	l.mu.Lock()
	news := l.loggedError != kind
	l.lastError, l.loggedError = err.Error(), kind
	l.mu.Unlock()
	if news {
		wake(l.changed)
		l.log.Warn("member cannot be asked", "member", l.to, "address", l.addr.HostPort, "error", err)
	}
}

// stableError is err without what differs at every attempt, such as the port it was made from.
func stableError(err error) string {
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		return op.Op + ": " + op.Err.Error()
	}
	if errors.Is(err, errSilent) {
		return errSilent.Error()
	}
	return err.Error()
}

func (l *link) established(version uint16) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.live, l.since, l.version, l.lastError, l.loggedError = true, time.Now(), version, "", ""
	l.connected.Store(true)
	l.lastVersion.Store(uint32(version))
	l.out, l.queuedRequests = l.out[:0], 0
	l.m.connected.Inc()
	wake(l.changed)
	for i, m := range l.heldHeartbeats {
		if version >= handoffVersion && m.Kind != 0 && l.clock.now()-m.Sent < int64(keepaliveEvery) {
			l.encodeMsg(&m)
		}
		l.heldHeartbeats[i] = handoff.Message{}
	}
}

// disconnected takes the link down and completes what was out, so that nobody waits for a stream that is gone.
func (l *link) disconnected() {
	l.mu.Lock()
	l.live, l.since = false, time.Now()
	l.connected.Store(false)
	lost := l.sentGroups.drain()
	l.mu.Unlock()
	l.m.connected.Dec()
	wake(l.changed)
	for _, t := range lost {
		t.call.failGroup(t.gen, t.group, forwardBroken)
	}
}

func (l *link) ping() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queuedRequests == 0 { // otherwise what waits will be answered as well
		l.appendFrame(func(b []byte) []byte { return appendPing(b, framePing, uint64(l.clock.mono())) })
	}
}

func appendPing(b []byte, typ byte, token uint64) []byte {
	w, at := beginFrame(b, typ)
	w = w.U64(token)
	w.EndLen32(at)
	return w
}

// readReplies completes groups as their answers come.
func (l *link) readReplies(conn net.Conn) error {
	in := frames{src: conn}
	for {
		if err := in.fill(); err != nil {
			return fmt.Errorf("read: %w", err)
		}
		now := l.clock.mono()
		l.lastRead.Store(now)
		l.timeouts.Store(0)
		for {
			typ, payload, whole, err := in.next()
			if err != nil {
				return err
			}
			if !whole {
				break
			}
			if typ != frameReply {
				continue // a pong was heard above; other types are of later versions
			}
			if err := l.completeGroup(now, payload); err != nil {
				return fmt.Errorf("answer: %w", err)
			}
		}
	}
}

func (l *link) completeGroup(now int64, payload []byte) error {
	records := wire.NewReader(payload)
	h, err := parseReplyHead(&records)
	if err != nil {
		return err
	}
	l.mu.Lock()
	t, known := l.sentGroups.take(h.id)
	if known {
		l.recordPace(now-t.sent, t.ahead)
	}
	l.mu.Unlock()
	if !known {
		return nil // its caller has given up
	}
	return t.call.handleReply(t, now, h, records)
}

// redialNow ends the wait before the next attempt: a new view may have made the member reachable.
func (l *link) redialNow() {
	wake(l.redial)
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
		Member: l.to, Addr: l.addr, Live: l.live, Since: l.since, Version: l.version, Error: l.lastError, Pending: l.sentGroups.len(),
	}
}
