package h2

import (
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
)

// clock has the moments at which the loop has to look after something. The connection's read deadline is the first of them,
// or earlier: it is only ever brought forward, and set anew when it has passed, so that calls do not cost a timer.
type clock struct {
	due     [dueCount]time.Time
	armed   time.Time // the read deadline
	poked   bool      // the loop is to look at once
	written time.Time // the write deadline
	hurried bool      // it is to be near
	reads   int       // input.reads when dueShrink was set
}

const (
	dueGreeting = iota // the client's settings have to have come
	dueCalls           // the calls that wait for their client have to be looked at
	dueAge             // the client is to be asked to go
	dueLeave           // it is to be told from where on no stream is taken
	dueCut             // it is cut
	dueIdle            // it has to have had a call
	dueStall           // the frame or the header block that has begun has to have come
	dueShrink          // what is kept to be fast is given back if nothing was read
	dueCount
)

// never is later than anything.
var never = time.Unix(1<<40, 0)

func (k *clock) start(c *conn) {
	for i := range k.due {
		k.due[i] = never
	}
	o := &c.server.o
	k.due[dueGreeting] = c.now.Add(o.Limits.HandshakeTimeout)
	if o.MaxAge > 0 {
		k.due[dueAge] = c.now.Add(o.MaxAge + jitter(o.MaxAge))
	}
	if o.Limits.IdleTimeout > 0 {
		k.due[dueIdle] = c.now.Add(o.Limits.IdleTimeout)
	}
	k.armed = k.due[dueGreeting] // by greet
}

// plan sees to it that the loop wakes in time.
func (c *conn) plan() {
	k := &c.clock
	if c.held > 0 && k.due[dueCalls] == never {
		k.due[dueCalls] = c.now.Add(c.server.o.Limits.MessageTimeout)
	}
	switch begun := c.in.w > c.in.r || c.headers.id != 0; {
	case !begun:
		k.due[dueStall] = never
	case c.moved || k.due[dueStall] == never:
		k.due[dueStall] = time.Now().Add(c.server.o.Limits.StallTimeout) // c.now may be past: the loop had to write
	}
	if c.wide() && k.due[dueShrink] == never {
		k.due[dueShrink], k.reads = c.now.Add(quietTime), c.in.reads
	}
	if first := k.first(); !k.poked && first.Before(k.armed) {
		c.arm(first)
	}
}

func (k *clock) first() time.Time {
	first := never
	for _, t := range k.due {
		if t.Before(first) {
			first = t
		}
	}
	return first
}

func (c *conn) arm(t time.Time) {
	c.clock.armed = t
	if t == never {
		t = time.Time{}
	}
	_ = c.raw.SetReadDeadline(t)
}

// poke has the loop look at the connection at once.
func (c *conn) poke() {
	if !c.clock.poked {
		c.clock.poked = true
		_ = c.raw.SetReadDeadline(past)
	}
}

var past = time.Unix(1, 0)

// overdue does what is due, or what the loop was poked for.
func (c *conn) overdue() error {
	k := &c.clock
	k.poked = false
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
	c.arm(k.first())
	return nil
}

func (c *conn) runTimer(what int) error {
	o := &c.server.o
	switch what {
	case dueGreeting:
		c.server.refuse(Cut)
		return errCut
	case dueCalls:
		c.sweep()
	case dueAge:
		c.goAway()
		if o.MaxAgeGrace > 0 {
			c.clock.due[dueCut] = c.now.Add(o.MaxAgeGrace)
		}
	case dueLeave:
		c.lastStream()
	case dueCut:
		return errCut
	case dueIdle:
		if c.top == c.leave.top && len(c.streams) == 0 {
			c.goAway()
		} else {
			c.clock.due[dueIdle] = c.now.Add(o.Limits.IdleTimeout)
		}
		c.leave.top = c.top
	case dueStall:
		c.server.refuse(Stalled)
		return errCut
	case dueShrink: // plan sets it again
		if c.in.reads == c.clock.reads {
			c.shrink()
		}
	}
	return nil
}

// sweep ends the calls that have waited for their client for too long.
func (c *conn) sweep() {
	patience := c.server.o.Limits.MessageTimeout
	next := never
	for id, k := range c.streams {
		since := k.receivedAt
		if k.complete {
			if since = k.waitingSince; len(k.unsent) == 0 {
				continue
			}
		}
		switch due := since.Add(patience); {
		case due.After(c.now):
			if due.Before(next) {
				next = due
			}
		case k.complete:
			c.reset(id, http2.ErrCodeCancel)
		default:
			c.server.refuse(TooSlow)
			c.fail(k, codes.Canceled, "context canceled")
		}
	}
	c.clock.due[dueCalls] = next
}

// hurry makes the next write deadline a near one, or a usual one again.
func (k *clock) hurry(on bool) { k.hurried, k.written = on, time.Time{} }

// beforeWrite sets the write deadline, not for each write, because it costs.
func (c *conn) beforeWrite() {
	k, patience := &c.clock, c.server.o.Limits.WriteTimeout
	if k.hurried {
		patience = partTime
	}
	if now := time.Now(); now.Add(patience / 2).After(k.written) {
		k.written = now.Add(patience)
		_ = c.raw.SetWriteDeadline(k.written)
	}
}
