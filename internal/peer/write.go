package peer

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/keyward/keyward/internal/protocol"
)

const (
	// maxUnacked is how many bytes the other member may not have read yet for a heartbeat to be written by the
	// goroutine that has it. No socket's send buffer is smaller, so the write does not wait for the network.
	maxUnacked = 4 << 10
	// inlineWriteTimeout bounds such a write nevertheless: the kernel may be out of memory.
	inlineWriteTimeout = time.Second
)

// outbound is the connection that a link writes to.
type outbound struct {
	conn   net.Conn
	cancel context.CancelCauseFunc // closes conn
}

// ackedBytes estimates how many of the bytes written to a connection the other end has read.
type ackedBytes struct {
	written   int   // bytes
	acked     int   // bytes up to the last heartbeat that was answered
	probeSent int64 // when the last heartbeat was sent
	probeEnd  int   // bytes up to the end of that heartbeat
}

// confirm records the reply to the heartbeat that was sent at sent.
func (f *ackedBytes) confirm(sent int64) {
	if sent == f.probeSent {
		f.acked = f.probeEnd
	}
}

// attach makes the link write to c, or to no connection if c is nil.
func (l *link) attach(c *outbound) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.outbound, l.acked = c, ackedBytes{}
}

// wakeWriter wakes the writer if there was nothing to write. It is called with mu held, before out grows.
func (l *link) wakeWriter() {
	if len(l.out) == 0 && !l.writing {
		wake(l.wake)
	}
}

// takeBatch returns the bytes to write next and the number of requests in them, or nil if there are none or another
// batch is being written. It is called with mu held; so is batchWritten, when the batch has been written.
func (l *link) takeBatch() (batch []byte, requests int) {
	if l.writing || len(l.out) == 0 {
		return nil, 0
	}
	batch, requests = l.out, l.queuedRequests
	l.out, l.queuedRequests, l.spare = l.spare[:0], 0, nil
	l.writing = true
	l.acked.written += len(batch)
	return batch, requests
}

func (l *link) batchWritten(batch []byte) { l.spare, l.writing = batch[:0], false }

// writeBatches writes to conn. A batch is everything that was queued during the last write, so batching adds no delay
// to an idle stream.
func (l *link) writeBatches(ctx context.Context, conn net.Conn) error {
	var batch []byte
	var requests int
	for {
		l.mu.Lock()
		if batch != nil {
			l.batchWritten(batch)
			batch = nil
		}
		if ctx.Err() == nil {
			batch, requests = l.takeBatch()
		}
		l.mu.Unlock()
		if batch == nil {
			select {
			case <-l.wake:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			continue
		}
		if requests > 0 {
			l.m.batch.Observe(float64(requests))
		}
		if _, err := conn.Write(batch); err != nil {
			l.mu.Lock()
			l.batchWritten(batch)
			l.mu.Unlock()
			return fmt.Errorf("write: %w", err)
		}
	}
}

// writeInline queues heartbeats. If nothing else is queued and the write cannot block on the other member, it also
// writes them: for an idle member, waking the writer would cost more than the write. The caller must hold no lock.
func (l *link) writeInline(heartbeats []protocol.Outbound) {
	l.mu.Lock()
	c := l.outbound
	inline := c != nil && !l.writing && len(l.out) == 0 && l.acked.written-l.acked.acked <= maxUnacked
	l.writing = l.writing || inline // keeps the writer asleep
	for i := range heartbeats {
		l.enqueueLocked(&heartbeats[i].Msg)
	}
	if !inline {
		l.mu.Unlock()
		return
	}
	l.writing = false
	batch, _ := l.takeBatch()
	l.mu.Unlock()
	if batch == nil {
		return
	}
	c.conn.SetWriteDeadline(time.Now().Add(inlineWriteTimeout))
	_, err := c.conn.Write(batch)
	c.conn.SetWriteDeadline(time.Time{})
	if err != nil {
		c.cancel(fmt.Errorf("write: %w", err))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.batchWritten(batch)
	if len(l.out) > 0 {
		wake(l.wake)
	}
}
