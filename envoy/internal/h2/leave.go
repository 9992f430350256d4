package h2

import (
	"math/rand/v2"
	"time"

	"golang.org/x/net/http2"
)

// leave is how far a connection is in ending without losing a call, RFC 9113, 6.8: the client is told first that it is to go,
// and from which stream on nothing is taken only when it must have read that, a round trip later.
type leave struct {
	asked bool // by Shutdown
	stage stage
	last  uint32 // the last stream that is taken
	top   uint32 // conn.top when dueIdle was last looked at
}

type stage int

const (
	staying stage = iota
	going         // the client was told
	leaving       // no stream beyond last is taken
)

// leavePing is the ping by whose answer the client has read that it is to go.
var leavePing = [8]byte{'g', 'o', 'i', 'n', 'g'}

// leaveTime is how long its answer is waited for.
const leaveTime = 5 * time.Second

// goAway tells the client to go.
func (c *conn) goAway() {
	if c.leave.stage != staying {
		return
	}
	c.leave.stage = going
	c.out = appendGoAway(c.out, mostWindow, http2.ErrCodeNo, "")
	c.out = appendHead(c.out, len(leavePing), http2.FramePing, 0, 0)
	c.out = append(c.out, leavePing[:]...)
	c.clock.due[dueLeave] = c.now.Add(leaveTime)
}

// pong takes in the answer to a ping.
func (c *conn) pong(data [8]byte) {
	if c.leave.stage == going && data == leavePing {
		c.lastStream()
	}
}

// lastStream tells the client which streams are taken still.
func (c *conn) lastStream() {
	c.leave.stage, c.leave.last = leaving, c.top
	c.clock.due[dueLeave] = never
	c.out = appendGoAway(c.out, c.top, http2.ErrCodeNo, "")
}

// beyond says that a stream is not taken any more.
func (l *leave) beyond(id uint32) bool { return l.stage == leaving && id > l.last }

// done says that all is answered, and written.
func (l *leave) done(c *conn) bool {
	return l.stage == leaving && len(c.streams) == 0 && len(c.out) == 0 && !c.writing
}

// ask has the loop end the connection without losing a call. Not with mu held.
func (c *conn) ask() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leave.asked = true
	c.poke()
}

// jitter is up to a tenth of d, to either side, so that connections that began together do not end together.
func jitter(d time.Duration) time.Duration {
	return time.Duration((rand.Float64()*2 - 1) * float64(d) / 10)
}
