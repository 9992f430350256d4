package h2

import "time"

const (
	quietTime = 5 * time.Second // without a read, after which a connection gives back what it keeps to be fast
	noteSize  = 64 << 10        // bytes charged by others than the loop, before the loop has to look at them
	openSize  = 48              // bytes of conn.streams for each stream that was open
	fewOpen   = 64              // streams for which conn.streams is kept
)

// keeps is how many bytes the client makes the process keep, beyond what every connection has.
func (c *conn) keeps() int64 {
	return c.held + int64(len(c.in.buf)-smallInput+cap(c.headers.block)+cap(c.out)+cap(c.spare)+c.inFlight+openSize*c.width)
}

// chargeKept charges what has changed of that. It reports whether the connection may stay.
func (c *conn) chargeKept() bool {
	n := c.keeps()
	if n == c.noted {
		return true
	}
	more := n - c.noted
	c.noted = n
	return c.account.Charge(more)
}

// save gives back what it can where the account is full, and is an error if that is not enough. A client that does not read
// its answers has less time for it.
func (c *conn) save() error {
	c.clock.hurry(true)
	err := c.flush()
	c.clock.hurry(false)
	if err != nil {
		return err
	}
	if c.shrink(); !c.chargeKept() {
		c.server.refuse(Unfinished)
		return errCut
	}
	return nil
}

// wide reports whether the connection keeps memory only to be fast when the next calls come.
func (c *conn) wide() bool {
	return len(c.in.buf) > smallInput || cap(c.out)+cap(c.spare) > 2*smallInput || c.width > fewOpen
}

// shrink gives back what is not needed for what has begun.
func (c *conn) shrink() {
	c.in.shrink()
	c.spare = nil
	if len(c.out) == 0 {
		c.out = nil
	}
	if c.headers.id == 0 {
		c.headers.block = nil
	}
	if c.width > fewOpen && len(c.streams) < c.width/2 {
		streams := make(map[uint32]*Stream, len(c.streams))
		for id, k := range c.streams {
			streams[id] = k
		}
		c.streams, c.width = streams, len(streams)
	}
}

// charge sets what a call is charged: as long as its client has to send or to read something, or may have it stay open.
func (c *conn) charge(k *Stream) {
	n := 0
	if !k.complete || len(k.unsent) > 0 || k.streams {
		if n = callSize + k.headerBytes + cap(k.message) + cap(k.unsent); k.streams {
			n += streamSize
		}
	}
	c.held += int64(n - k.charged)
	k.charged = n
}

// release takes back what a call is charged.
func (c *conn) release(k *Stream) {
	c.held -= int64(k.charged)
	k.charged = 0
}
