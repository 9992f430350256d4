package h2

import (
	"time"

	"golang.org/x/net/http2"
)

// controlBudget bounds the frames that bring no call further: resets, pings, settings, priorities, window updates, parts of messages
// that are next to nothing. A client has so many at once; each call and the time give some back. What an honest client sends
// is a few a call, and a few a second without.
type controlBudget struct {
	remaining  int
	refilledAt time.Time // up to when time has given
}

const (
	controlPerCall   = 8   // frames that a whole call gives back
	controlPerSecond = 100 // and a second
)

// refillForCall notes a whole call.
func (n *controlBudget) refillForCall() { n.remaining += controlPerCall }

// spendControl takes n from what the client has left.
func (c *conn) spendControl(n int) error {
	most := c.server.o.Limits.ControlFrames
	if c.controls.remaining = min(c.controls.remaining, most) - n; c.controls.remaining >= 0 {
		return nil
	}
	if more := int(min(c.now.Sub(c.controls.refilledAt), time.Hour) * controlPerSecond / time.Second); more > 0 {
		c.controls.remaining = min(c.controls.remaining+more, most)
		c.controls.refilledAt = c.now
	}
	if c.controls.remaining < 0 {
		return connError{http2.ErrCodeEnhanceYourCalm, "too many frames that are no calls"}
	}
	return nil
}

// abort has the loop end the connection; it may be called by whoever answers late.
func (c *conn) abort(code http2.ErrCode, text string) {
	if c.broken == nil {
		c.broken = connError{code, text}
		c.wakeLoop()
		_ = c.raw.SetWriteDeadline(past) // it may be writing
	}
}
