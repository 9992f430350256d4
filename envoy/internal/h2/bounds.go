package h2

import (
	"time"

	"golang.org/x/net/http2"
)

// noise bounds the frames that bring no call further: resets, pings, settings, priorities, window updates, parts of messages
// that are next to nothing. A client has so many at once; each call and the time give some back. What an honest client sends
// is a few a call, and a few a second without.
type noise struct {
	left int
	at   time.Time // up to when time has given
}

const (
	noiseOfCall   = 8   // frames that a whole call gives back
	noiseOfSecond = 100 // and a second
)

// call notes a whole call.
func (n *noise) call() { n.left += noiseOfCall }

// heard takes n from what the client has left.
func (c *conn) heard(n int) error {
	most := c.server.o.Bounds.Noise
	if c.noise.left = min(c.noise.left, most) - n; c.noise.left >= 0 {
		return nil
	}
	if more := int(min(c.now.Sub(c.noise.at), time.Hour) * noiseOfSecond / time.Second); more > 0 {
		c.noise.left = min(c.noise.left+more, most)
		c.noise.at = c.now
	}
	if c.noise.left < 0 {
		return fault{http2.ErrCodeEnhanceYourCalm, "too many frames that are no calls"}
	}
	return nil
}

// doom has the loop end the connection; it may be called by whoever answers late.
func (c *conn) doom(code http2.ErrCode, text string) {
	if c.broken == nil {
		c.broken = fault{code, text}
		c.poke()
		_ = c.raw.SetWriteDeadline(past) // it may be writing
	}
}
