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

	"github.com/keyward/keyward/internal/counterwire"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/ring"
)

const (
	dialTime   = time.Second // timeout for TCP, and again for TLS and the handshake
	linger     = time.Second // how long a member that is no longer in the view may still reply
	minBackoff = 50 * time.Millisecond
	maxBackoff = 2 * time.Second

	// A member gets no requests after this many consecutive timeouts and this time without a byte from it, until it
	// sends one. Otherwise a stopped member would delay every request by the whole deadline until it counts as silent.
	unresponsiveTimeouts = 16
	unresponsiveSilence  = 250 * time.Millisecond
)

var errSilent = errors.New("silent")

// link is this member's stream to another member. It is dialed ahead of time, and again whenever it breaks.
type link struct {
	to      ring.ID
	address string // of the member's peer port
	bootID  uint64 // of the member
	dial    func(context.Context, *link, purpose) (net.Conn, uint16, error)
	clock   *clock
	m       *metrics
	log     *slog.Logger
	bounds  queueBounds
	maxAge  time.Duration // of a connection

	detection membership.Detection // of this member

	redial    chan struct{} // has a token to dial without delay
	wake      chan struct{} // has a token when out is no longer empty
	changed   chan struct{} // gets a token when the link connects or disconnects
	retired   atomic.Bool   // do not dial again
	connected atomic.Bool   // there is a live stream
	stop      context.CancelFunc

	// These times show whether the member's process runs and this connection works, within a fraction of a second and
	// by the monotonic clock. They confirm no ownership: the times that do are those of handoff.Machine.
	lastRead           atomic.Int64 // when bytes last arrived over this connection
	lastHeartbeatReply atomic.Int64 // when a fast reply to a heartbeat last arrived; 0: never
	waitingSince       atomic.Int64 // when the first request after the last sign of life was sent
	keepalive          keepalive
	timeouts           atomic.Int32  // groups that timed out since lastRead
	lastVersion        atomic.Uint32 // protocol version of the last stream; 0: none yet

	mu             sync.Mutex
	live           bool                // guarded by mu
	since          time.Time           // guarded by mu: when live last changed
	version        uint16              // guarded by mu: protocol version of the live stream
	lastError      string              // guarded by mu: why there is no live stream
	loggedError    string              // guarded by mu: the last error, as logged
	out            []byte              // guarded by mu: frames to write
	queuedRequests int                 // guarded by mu: requests in out
	sentGroups     sentGroups          // guarded by mu: groups without a reply
	doubts         map[uint64]*doubt   // guarded by mu: groups that were given up, by ID
	doubted        int                 // guarded by mu: requests in doubts
	pace           int64               // guarded by mu: average nanoseconds for one more group in a queue
	writers        counterwire.Writers // guarded by mu: scratch
	heldHeartbeats [2]protocol.Message // guarded by mu: the last Ping and Pong without a stream, for the next
	spare          []byte              // guarded by mu: the buffer of the previous batch
	writing        bool                // guarded by mu: a goroutine writes a batch and will look at out again
	outbound       *outbound           // guarded by mu: the connection to write to; nil: none
	acked          ackedBytes          // guarded by mu: of outbound
}

// queueBounds limit the memory for one member.
type queueBounds struct {
	bytes  int // encoded and not written
	groups int // without a reply
}

// send queues group n of c, whose mu is held. If the status is not forwardPending, no byte of the group has been sent.
func (l *link) send(c *call, n int) forwardStatus {
	g := &c.groups[n]
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.live || l.unresponsive(g.sent) {
		return forwardUnreachable
	}
	if l.version < membership.ProtocolHolds && hasHold(c.reqs, g.index) {
		return forwardRefused
	}
	size := frameHead + requestHeadSize + len(g.index)*(recordHead+requestSize+requestExtraSize+tenantSize+federationSize)
	for _, i := range g.index {
		size += storeRecordSize(&c.reqs[i]) + holdRecordSize(&c.reqs[i])
	}
	ahead, ttl := l.sentGroups.len(), c.giveUpAt-g.sent
	if len(l.out)+size > l.bounds.bytes || ahead >= l.bounds.groups || l.queueTooLong(ttl) {
		if l.isAlive(g.sent) {
			return forwardShed
		}
		return forwardQueueFull
	}
	if l.waitingSince.Load() <= l.lastSignOfLife() {
		l.waitingSince.Store(g.sent)
	}
	g.id = l.sentGroups.put(sentGroup{call: c, gen: c.gen, group: n, sent: g.sent, ahead: ahead})
	l.appendFrame(func(b []byte) []byte {
		return appendRequests(b, requestGroup{
			id: g.id, sent: g.sent, ttl: time.Duration(ttl), stop: c.stopStatus != nil, count: len(g.index),
		}, c.reqs, g.index)
	})
	l.queuedRequests += len(g.index)
	return forwardPending
}

// appendFrame appends a frame to the next batch. It is called with mu held.
func (l *link) appendFrame(encode func([]byte) []byte) {
	l.wakeWriter()
	l.out = encode(l.out)
}

// unresponsive reports whether the member gets no requests for now.
func (l *link) unresponsive(now int64) bool {
	return l.timeouts.Load() >= unresponsiveTimeouts && now-l.lastRead.Load() > int64(unresponsiveSilence)
}

// forgetGroup drops a group whose caller gives up, and keeps d, unless it is nil, for a late reply. It returns false if
// the group's reply has been read or its stream has ended, which is about to complete the group.
func (l *link) forgetGroup(id uint64, d *doubt) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.sentGroups.take(id); !known {
		return false
	}
	l.timeouts.Add(1)
	if d != nil {
		l.addDoubt(id, d)
	}
	return true
}

// run keeps the link connected until ctx ends.
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

// logFailure logs why there is no stream, unless the last failure had the same cause.
func (l *link) logFailure(err error) {
	kind := stableError(err)
	l.mu.Lock()
	changed := l.loggedError != kind
	l.lastError, l.loggedError = err.Error(), kind
	l.mu.Unlock()
	if changed {
		wake(l.changed)
		l.log.Warn("peer unreachable", "peer", l.to, "address", l.address, "error", err)
	}
}

// stableError returns err without what differs at every attempt, such as the local port.
func stableError(err error) string {
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		return op.Op + ": " + op.Err.Error()
	}
	if errors.Is(err, errSilent) {
		return errSilent.Error()
	}
	return err.Error()
}

// established records a new stream, and sends it the held heartbeats if they are young enough.
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
		if version >= handoffVersion && m.Kind != 0 && l.clock.now()-m.Sent < int64(l.keepaliveEvery()) {
			l.encodeMsg(&m)
		}
		l.heldHeartbeats[i] = protocol.Message{}
	}
}

// disconnected records the end of a stream and fails the groups without a reply.
func (l *link) disconnected() {
	l.mu.Lock()
	l.live, l.since = false, time.Now()
	l.connected.Store(false)
	lost := l.sentGroups.drain()
	l.doubts, l.doubted = nil, 0
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
	if l.queuedRequests == 0 { // a queued request gets a reply as well
		l.appendFrame(func(b []byte) []byte { return appendPing(b, framePing, uint64(l.clock.mono())) })
	}
}

func appendPing(b []byte, typ byte, token uint64) []byte {
	w, at := beginFrame(b, typ)
	w = w.U64(token)
	w.EndLen32(at)
	return w
}

// readReplies completes groups as their replies arrive.
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
			typ, payload, complete, err := in.next()
			if err != nil {
				return err
			}
			if !complete {
				break
			}
			if typ != frameReply {
				continue // a pong has updated lastRead above; unknown types are of later versions
			}
			if err := l.completeGroup(now, payload); err != nil {
				return fmt.Errorf("reply: %w", err)
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
	var late *doubt
	if known {
		l.recordPace(now-t.sent, t.ahead)
	} else {
		late = l.takeDoubt(h.id)
	}
	l.mu.Unlock()
	switch {
	case late != nil:
		return late.settle(h, &records)
	case !known:
		return nil // the caller has given up
	}
	return t.call.handleReply(&t, now, h, &records)
}

// redialNow ends the delay before the next attempt: the member may have become reachable with a new view.
func (l *link) redialNow() { wake(l.redial) }

// retire ends the link after linger.
func (l *link) retire() {
	l.retired.Store(true)
	time.AfterFunc(linger, l.stop)
}

func (l *link) state() Link {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Link{
		Member: l.to, Live: l.live, Since: l.since, Version: l.version, Error: l.lastError,
		Pending: l.sentGroups.len(),
	}
}
