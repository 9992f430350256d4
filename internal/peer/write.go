package peer

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/keyward/keyward/handoff"
)

const (
	// maxUnacked is how much another member may have left unread for a heartbeat to be written by whoever has it. No socket's
	// send buffer is smaller, so the write does not wait for the network.
	maxUnacked = 4 << 10
	// inlineWriteTimeout bounds such a write all the same: the kernel may have no memory for it.
	inlineWriteTimeout = time.Second
)

// outbound is the connection that a link writes to.
type outbound struct {
	conn   net.Conn
	cancel context.CancelCauseFunc // ends it
}

// ackedBytes is what is known of how much of a connection's bytes the other end has read.
type ackedBytes struct {
	written   int   // bytes
	acked     int   // of these, by what has been answered
	probeSent int64 // when the last heartbeat was sent
	probeEnd  int   // bytes up to its end
}

// confirm notes that the heartbeat of that time was.
func (f *ackedBytes) confirm(sent int64) {
	if sent == f.probeSent {
		f.acked = f.probeEnd
	}
}

// attach has the link write to c from now on.
func (l *link) attach(c *outbound) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.outbound, l.acked = c, ackedBytes{}
}

// wakeWriter wakes the writer when there was nothing to write. It is called with mu held, before out gets more.
func (l *link) wakeWriter() {
	if len(l.out) == 0 && !l.writing {
		wake(l.wake)
	}
}

// takeBatch is what is to be written next; nil when there is nothing or a batch is being written. It is called with mu held, as
// batchWritten is after the batch has been written.
func (l *link) takeBatch() (batch []byte, questions int) {
	if l.writing || len(l.out) == 0 {
		return nil, 0
	}
	batch, questions = l.out, l.queuedRequests
	l.out, l.queuedRequests, l.spare = l.spare[:0], 0, nil
	l.writing = true
	l.acked.written += len(batch)
	return batch, questions
}

func (l *link) batchWritten(batch []byte) { l.spare, l.writing = batch[:0], false }

// writeBatches writes what gathered while the last write was under way: batches form by themselves, and an idle stream adds
// no delay.
func (l *link) writeBatches(ctx context.Context, conn net.Conn) error {
	var batch []byte
	var questions int
	for {
		l.mu.Lock()
		if batch != nil {
			l.batchWritten(batch)
			batch = nil
		}
		if ctx.Err() == nil {
			batch, questions = l.takeBatch()
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
		if questions > 0 {
			l.m.batch.Observe(float64(questions))
		}
		if _, err := conn.Write(batch); err != nil {
			l.mu.Lock()
			l.batchWritten(batch)
			l.mu.Unlock()
			return fmt.Errorf("write: %w", err)
		}
	}
}

// writeInline posts heartbeats and writes them on the goroutine that calls when nothing else is queued and the write does not wait
// for the other member: an idle member would spend more on waking a writer for each. The caller must hold no lock.
func (l *link) writeInline(beats []handoff.Outbound) {
	l.mu.Lock()
	c := l.outbound
	here := c != nil && !l.writing && len(l.out) == 0 && l.acked.written-l.acked.acked <= maxUnacked
	l.writing = l.writing || here // the writer sleeps on
	for i := range beats {
		l.enqueueLocked(&beats[i].Msg)
	}
	if !here {
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
