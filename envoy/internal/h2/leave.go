package h2

import (
	"math/rand/v2"
	"time"

	"golang.org/x/net/http2"
)

// drain is how far a connection is in ending without losing a call, RFC 9113, 6.8: the client is told first that it is to go,
// and from which stream on nothing is taken only when it must have read that, a round trip later.
type drain struct {
	requested     bool // by Shutdown
	stage         stage
	lastStream    uint32 // the last stream that is taken
	highestAtIdle uint32 // conn.highestStream when timerIdle was last looked at
}

type stage int

const (
	notDraining    stage = iota
	drainAnnounced       // the client was told
	draining             // no stream beyond last is taken
)

// drainPing is the ping by whose answer the client has read that it is to go.
var drainPing = [8]byte{'g', 'o', 'i', 'n', 'g'}

// drainTimeout is how long its answer is waited for.
const drainTimeout = 5 * time.Second

// startDrain tells the client to go.
func (c *conn) startDrain() {
	if c.drain.stage != notDraining {
		return
	}
	c.drain.stage = drainAnnounced
	c.out = appendGoAway(c.out, maxWindow, http2.ErrCodeNo, "")
	c.out = appendHead(c.out, len(drainPing), http2.FramePing, 0, 0)
	c.out = append(c.out, drainPing[:]...)
	c.timers.due[timerFinalGoAway] = c.now.Add(drainTimeout)
}

// pingAck takes in the answer to a ping.
func (c *conn) pingAck(data [8]byte) {
	if c.drain.stage == drainAnnounced && data == drainPing {
		c.sendFinalGoAway()
	}
}

// sendFinalGoAway tells the client which streams are taken still.
func (c *conn) sendFinalGoAway() {
	c.drain.stage, c.drain.lastStream = draining, c.highestStream
	c.timers.due[timerFinalGoAway] = never
	c.out = appendGoAway(c.out, c.highestStream, http2.ErrCodeNo, "")
}

// refuses says that a stream is not taken any more.
func (l *drain) refuses(id uint32) bool { return l.stage == draining && id > l.lastStream }

// done says that all is answered, and written.
func (l *drain) done(c *conn) bool {
	return l.stage == draining && len(c.streams) == 0 && len(c.out) == 0 && !c.writing
}

// requestDrain has the loop end the connection without losing a call. Not with mu held.
func (c *conn) requestDrain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drain.requested = true
	c.wakeLoop()
}

// jitter is up to a tenth of d, to either side, so that connections that began together do not end together.
func jitter(d time.Duration) time.Duration {
	return time.Duration((rand.Float64()*2 - 1) * float64(d) / 10)
}
