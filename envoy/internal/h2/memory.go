package h2

import "time"

const (
	shrinkAfter     = 5 * time.Second // time without a read after which a connection releases spare memory
	chargeStep      = 64 << 10        // bytes charged outside the loop before the loop must check them
	streamEntrySize = 48              // bytes in conn.streams per stream that was open
	smallStreamMap  = 64              // number of streams for which conn.streams is never shrunk
)

// keptBytes returns the number of bytes that the client makes the process keep, beyond those of every connection.
func (c *conn) keptBytes() int64 {
	return c.callBytes + int64(len(c.in.buf)-smallInput+cap(c.headers.block)+cap(c.out)+cap(c.spare)+c.inFlight+streamEntrySize*c.peakStreams)
}

// chargeKept charges the change of keptBytes to the account. It reports whether the connection may stay open.
func (c *conn) chargeKept() bool {
	n := c.keptBytes()
	if n == c.chargedBytes {
		return true
	}
	more := n - c.chargedBytes
	c.chargedBytes = n
	return c.account.Charge(more)
}

// reclaim releases spare memory when the account is full, and returns an error if that is not enough. A client that
// does not read its responses gets less time to do so.
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

// hasSpareMemory reports whether the connection keeps memory only to make the next calls faster.
func (c *conn) hasSpareMemory() bool {
	return len(c.in.buf) > smallInput || cap(c.out)+cap(c.spare) > 2*smallInput || c.peakStreams > smallStreamMap
}

// shrink releases the memory that is not in use.
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

// charge updates what is charged for a call. A call is charged while its client has data to send or to read, or may
// keep it open, and if its message was decompressed.
func (c *conn) charge(k *Stream) {
	n := 0
	if !k.complete || len(k.unsent) > 0 || k.streams || k.inflated {
		if n = callSize + k.headerBytes + cap(k.message) + cap(k.unsent) + k.inflating; k.streams {
			n += streamSize
		}
	}
	c.callBytes += int64(n - k.charged)
	k.charged = n
}

// release takes back what was charged for a call.
func (c *conn) release(k *Stream) {
	c.callBytes -= int64(k.charged)
	k.charged = 0
}
