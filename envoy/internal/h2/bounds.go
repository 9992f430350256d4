package h2

import (
	"time"

	"golang.org/x/net/http2"
)

// controlBudget limits frames that carry no call: resets, pings, settings, priorities, window updates and tiny parts
// of messages. The budget grows with each call and with time. An honest client sends a few such frames per call, and
// a few per second without calls.
type controlBudget struct {
	remaining  int
	refilledAt time.Time // the time up to which refills have been added
}

const (
	controlPerCall   = 8   // frames that a complete call adds
	controlPerSecond = 100 // frames that a second adds
)

// refillForCall adds the refill for a complete call.
func (n *controlBudget) refillForCall() { n.remaining += controlPerCall }

// spendControl takes n frames from the budget. It returns an error when the budget is exhausted.
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
		return connError{http2.ErrCodeEnhanceYourCalm, "too many control frames"}
	}
	return nil
}

// abort makes the loop end the connection. Handlers that answer late may call it, too.
func (c *conn) abort(code http2.ErrCode, text string) {
	if c.broken == nil {
		c.broken = connError{code, text}
		c.wakeLoop()
		_ = c.raw.SetWriteDeadline(past) // the loop may be writing
	}
}
