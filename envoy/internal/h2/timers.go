package h2

import (
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
)

// timers are the times at which the loop must wake. The connection's read deadline is at most the first of them. It
// is only moved forward, and reset after it has passed, so that a call does not cost a timer.
type timers struct {
	due           [timerCount]time.Time
	readDeadline  time.Time // of the connection
	wakePending   bool      // the loop should wake at once
	writeDeadline time.Time // of the connection
	shortWrites   bool      // writes get a short deadline
	readsAtShrink int       // input.reads when timerShrink was set
}

const (
	timerSettings    = iota // the client's settings must have arrived
	timerCalls              // calls that wait for their client are checked
	timerAge                // the connection is drained because of its age
	timerFinalGoAway        // the final GOAWAY is sent
	timerCut                // the connection is closed
	timerIdle               // a call must have arrived
	timerStall              // the frame or header block that has begun must be complete
	timerPing               // a ping is sent, or was not answered
	timerShrink             // memory is released if nothing was read
	timerCount
)

// never is later than any time.
var never = time.Unix(1<<40, 0)

func (k *timers) start(c *conn) {
	for i := range k.due {
		k.due[i] = never
	}
	o := &c.server.o
	k.due[timerSettings] = c.now.Add(o.Limits.HandshakeTimeout)
	if o.MaxAge > 0 {
		k.due[timerAge] = c.now.Add(o.MaxAge + jitter(o.MaxAge))
	}
	if o.Limits.IdleTimeout > 0 {
		k.due[timerIdle] = c.now.Add(o.Limits.IdleTimeout)
	}
	k.readDeadline = k.due[timerSettings] // set by startHandshake
}

// scheduleTimers makes the loop wake for the first timer.
func (c *conn) scheduleTimers() {
	k := &c.timers
	if c.callBytes > 0 && k.due[timerCalls] == never {
		k.due[timerCalls] = c.now.Add(c.server.o.Limits.MessageTimeout)
	}
	switch begun := c.in.w > c.in.r || c.headers.id != 0; {
	case !begun:
		k.due[timerStall] = never
	case c.progressed || k.due[timerStall] == never:
		k.due[timerStall] = time.Now().Add(c.server.o.Limits.StallTimeout) // c.now may be old: the loop had to write
	}
	if c.hasSpareMemory() && k.due[timerShrink] == never {
		k.due[timerShrink], k.readsAtShrink = c.now.Add(shrinkAfter), c.in.reads
	}
	if first := k.first(); !k.wakePending && first.Before(k.readDeadline) {
		c.setReadDeadline(first)
	}
}

func (k *timers) first() time.Time {
	first := never
	for _, t := range k.due {
		if t.Before(first) {
			first = t
		}
	}
	return first
}

func (c *conn) setReadDeadline(t time.Time) {
	c.timers.readDeadline = t
	if t == never {
		t = time.Time{}
	}
	_ = c.raw.SetReadDeadline(t)
}

// wakeLoop makes the loop check the connection at once.
func (c *conn) wakeLoop() {
	if !c.timers.wakePending {
		c.timers.wakePending = true
		_ = c.raw.SetReadDeadline(past)
	}
}

var past = time.Unix(1, 0)

// runDueTimers runs the timers that are due, and whatever wakeLoop was called for.
func (c *conn) runDueTimers() error {
	k := &c.timers
	k.wakePending = false
	if c.broken != nil {
		return c.broken
	}
	for what, t := range k.due {
		if t.After(c.now) {
			continue
		}
		k.due[what] = never
		if err := c.runTimer(what); err != nil {
			return err
		}
	}
	if !k.wakePending { // a receiver or another goroutine may have called wakeLoop meanwhile
		c.setReadDeadline(k.first())
	}
	return c.broken
}

func (c *conn) runTimer(what int) error {
	o := &c.server.o
	switch what {
	case timerSettings:
		c.server.refuse(Cut)
		return errCut
	case timerCalls:
		c.expireCalls()
	case timerAge:
		c.startDrain()
		if o.MaxAgeGrace > 0 {
			c.timers.due[timerCut] = c.now.Add(o.MaxAgeGrace)
		}
	case timerFinalGoAway:
		c.sendFinalGoAway()
	case timerCut:
		return errCut
	case timerIdle:
		if c.highestStream == c.drain.highestAtIdle && len(c.streams) == 0 {
			c.startDrain()
		} else {
			c.timers.due[timerIdle] = c.now.Add(o.Limits.IdleTimeout)
		}
		c.drain.highestAtIdle = c.highestStream
	case timerStall:
		c.server.refuse(Stalled)
		return errCut
	case timerPing:
		return c.sendPing()
	case timerShrink: // scheduleTimers sets it again
		if c.in.reads == c.timers.readsAtShrink {
			c.shrink()
		}
	}
	return nil
}

// waitsSince returns since when a call waits for its client: to read the response, if sending, or else to complete its
// message. It returns false if the call does not wait.
func (k *Stream) waitsSince() (since time.Time, sending, waits bool) {
	switch {
	case k.duplex != nil:
		return k.duplex.waitsSince()
	case !k.complete:
		return k.receivedAt, false, true
	}
	return k.waitingSince, true, len(k.unsent) > 0
}

// expireCalls ends calls whose client has been silent for too long.
func (c *conn) expireCalls() {
	patience := c.server.o.Limits.MessageTimeout
	next := never
	for id, k := range c.streams {
		since, sending, waits := k.waitsSince()
		if !waits {
			continue
		}
		switch due := since.Add(patience); {
		case due.After(c.now):
			if due.Before(next) {
				next = due
			}
		case sending:
			c.reset(id, http2.ErrCodeCancel)
		default:
			c.server.refuse(TooSlow)
			c.fail(k, codes.Canceled, "context canceled")
		}
	}
	c.timers.due[timerCalls] = next
}

// setShortWrites chooses a short deadline for the next writes, or the usual one again.
func (k *timers) setShortWrites(on bool) { k.shortWrites, k.writeDeadline = on, time.Time{} }

// setWriteDeadline sets the write deadline. It does not do so for each write, because that is expensive.
func (c *conn) setWriteDeadline() {
	k, patience := &c.timers, c.server.o.Limits.WriteTimeout
	if k.shortWrites {
		patience = goAwayTimeout
	}
	if now := time.Now(); now.Add(patience / 2).After(k.writeDeadline) {
		k.writeDeadline = now.Add(patience)
		_ = c.raw.SetWriteDeadline(k.writeDeadline)
	}
}
