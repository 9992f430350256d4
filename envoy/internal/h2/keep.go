package h2

import "time"

const (
	shrinkAfter     = 5 * time.Second // without a read, after which a connection gives back what it keeps to be fast
	chargeStep      = 64 << 10        // bytes charged by others than the loop, before the loop has to look at them
	streamEntrySize = 48              // bytes of conn.streams for each stream that was open
	smallStreamMap  = 64              // streams for which conn.streams is kept
)

// keptBytes is how many bytes the client makes the process keep, beyond what every connection has.
func (c *conn) keptBytes() int64 {
	return c.callBytes + int64(len(c.in.buf)-smallInput+cap(c.headers.block)+cap(c.out)+cap(c.spare)+c.inFlight+streamEntrySize*c.peakStreams)
}

// chargeKept charges what has changed of that. It reports whether the connection may stay.
func (c *conn) chargeKept() bool {
	n := c.keptBytes()
	if n == c.chargedBytes {
		return true
	}
	more := n - c.chargedBytes
	c.chargedBytes = n
	return c.account.Charge(more)
}

// reclaim gives back what it can where the account is full, and is an error if that is not enough. A client that does not read
// its answers has less time for it.
func (c *conn) reclaim() error {
	c.timers.setShortWrites(true)
	err := c.flush()
	c.timers.setShortWrites(false)
	if err != nil {
		return err
	}
	if c.shrink(); !c.chargeKept() {
		c.server.refuse(Unfinished)
		return errCut
	}
	return nil
}

// hasSpareMemory reports whether the connection keeps memory only to be fast when the next calls come.
func (c *conn) hasSpareMemory() bool {
	return len(c.in.buf) > smallInput || cap(c.out)+cap(c.spare) > 2*smallInput || c.peakStreams > smallStreamMap
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
	if c.peakStreams > smallStreamMap && len(c.streams) < c.peakStreams/2 {
		streams := make(map[uint32]*Stream, len(c.streams))
		for id, k := range c.streams {
			streams[id] = k
		}
		c.streams, c.peakStreams = streams, len(streams)
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
	c.callBytes += int64(n - k.charged)
	k.charged = n
}

// release takes back what a call is charged.
func (c *conn) release(k *Stream) {
	c.callBytes -= int64(k.charged)
	k.charged = 0
}
