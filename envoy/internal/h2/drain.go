package h2

import (
	"math/rand/v2"
	"time"

	"golang.org/x/net/http2"
)

// drain is the state of closing a connection without losing a call: RFC 9113, 6.8. The first GOAWAY announces the
// end. The final one names the last accepted stream. It follows one round trip later, when the client must have read
// the first.
type drain struct {
	requested     bool // by Shutdown
	stage         stage
	lastStream    uint32 // the last stream that is accepted
	highestAtIdle uint32 // conn.highestStream when timerIdle last ran
}

type stage int

const (
	notDraining    stage = iota
	drainAnnounced       // the first GOAWAY was sent
	draining             // no stream after lastStream is accepted
)

// drainPing is sent after the first GOAWAY. Its acknowledgement shows that the client has read the GOAWAY.
var drainPing = [8]byte{'g', 'o', 'i', 'n', 'g'}

// drainTimeout is how long to wait for that acknowledgement.
const drainTimeout = 5 * time.Second

// startDrain sends the first GOAWAY.
func (c *conn) startDrain() {
	if c.drain.stage != notDraining {
		return
	}
	c.drain.stage = drainAnnounced
	c.out = appendGoAway(c.out, maxWindow, http2.ErrCodeNo, "")
	c.out = appendHead(c.out, len(drainPing), frameKind{http2.FramePing, 0}, 0)
	c.out = append(c.out, drainPing[:]...)
	c.timers.due[timerFinalGoAway] = c.now.Add(drainTimeout)
	c.drainDuplexes()
}

// pingAck processes the acknowledgement of a ping.
func (c *conn) pingAck(data [8]byte) {
	if c.drain.stage == drainAnnounced && data == drainPing {
		c.sendFinalGoAway()
	}
}

// sendFinalGoAway sends the last stream that is accepted.
func (c *conn) sendFinalGoAway() {
	c.drain.stage, c.drain.lastStream = draining, c.highestStream
	c.timers.due[timerFinalGoAway] = never
	c.out = appendGoAway(c.out, c.highestStream, http2.ErrCodeNo, "")
}

// refuses reports whether the stream is no longer accepted.
func (l *drain) refuses(id uint32) bool { return l.stage == draining && id > l.lastStream }

// done reports whether all calls are answered and written.
func (l *drain) done(c *conn) bool {
	return l.stage == draining && len(c.streams) == 0 && len(c.out) == 0 && !c.writing
}

// requestDrain makes the loop drain the connection. Called without mu.
func (c *conn) requestDrain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drain.requested = true
	c.wakeLoop()
}

// jitter returns a random duration within 10 % of d, so that connections that began together do not end together.
func jitter(d time.Duration) time.Duration {
	return time.Duration((rand.Float64()*2 - 1) * float64(d) / 10)
}
