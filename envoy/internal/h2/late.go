package h2

// maxLate is the number of a connection's last calls by ReplyOr that are remembered. They cover the time in which an
// answer and a RST_STREAM can pass each other on the way: 64 calls are 3 ms at 20,000 calls per second.
const maxLate = 64

// lateCalls are the last calls of a connection that were answered by ReplyOr.
type lateCalls struct {
	calls []lateCall
	next  int // index of the oldest, once all are in use
}

type lateCall struct {
	id   uint32
	gone func()
}

func (l *lateCalls) add(id uint32, gone func()) {
	if len(l.calls) < maxLate {
		l.calls = append(l.calls, lateCall{id, gone})
		return
	}
	l.calls[l.next] = lateCall{id, gone}
	l.next = (l.next + 1) % maxLate
}

// take returns the function of a call, or nil if there is none, and forgets it.
func (l *lateCalls) take(id uint32) (gone func()) {
	for i := range l.calls {
		if c := &l.calls[i]; c.id == id {
			gone, c.gone = c.gone, nil
			return gone
		}
	}
	return nil
}

// ReplyOr is like Reply if the client waits for the answer. If the client has given up the call, or does so before it
// has read the answer, ReplyOr calls gone, once, on this goroutine or later on that of the connection. Of many answers
// on their way at the same time, or when the connection ends, it may miss some.
func (k *Stream) ReplyOr(m Appender, gone func()) {
	c := k.conn
	c.mu.Lock()
	waited := !k.abandoned
	if waited {
		c.late.add(k.id, gone)
		k.sendLocked(m)
		k.endLocked(nil)
	}
	k.answeredLocked()
	c.mu.Unlock()
	if !waited {
		gone()
	}
}

// abandonLate calls the function of an answered call whose client has not waited for the answer.
func (c *conn) abandonLate(id uint32) {
	if gone := c.late.take(id); gone != nil {
		c.mu.Unlock()
		gone()
		c.mu.Lock()
	}
}
