package peer

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/keyward/keyward/handoff"
)

const (
	// smallFlow is how much another member may have left unread for a heartbeat to be written by whoever has it. No socket's
	// send buffer is smaller, so the write does not wait for the network.
	smallFlow = 4 << 10
	// hereTime bounds such a write all the same: the kernel may have no memory for it.
	hereTime = time.Second
)

// current is the connection that a link writes to.
type current struct {
	conn net.Conn
	cut  context.CancelCauseFunc // ends it
}

// flow is what is known of how much of a connection's bytes the other end has read.
type flow struct {
	written int   // bytes
	read    int   // of these, by what has been answered
	asked   int64 // when the last heartbeat was sent
	upTo    int   // bytes up to its end
}

// answered notes that the heartbeat of that time was.
func (f *flow) answered(sent int64) {
	if sent == f.asked {
		f.read = f.upTo
	}
}

// ride has the link write to c from now on.
func (l *link) ride(c *current) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current, l.flow = c, flow{}
}

// rouse wakes the writer when there was nothing to write. It is called with mu held, before out gets more.
func (l *link) rouse() {
	if len(l.out) == 0 && !l.writing {
		wake(l.wake)
	}
}

// take is what is to be written next; nil when there is nothing or a batch is being written. It is called with mu held, as
// wrote is after the batch has been written.
func (l *link) take() (batch []byte, questions int) {
	if l.writing || len(l.out) == 0 {
		return nil, 0
	}
	batch, questions = l.out, l.queued
	l.out, l.queued, l.spare = l.spare[:0], 0, nil
	l.writing = true
	l.flow.written += len(batch)
	return batch, questions
}

func (l *link) wrote(batch []byte) { l.spare, l.writing = batch[:0], false }

// write writes what gathered while the last write was under way: batches form by themselves, and an idle stream adds
// no delay.
func (l *link) write(ctx context.Context, conn net.Conn) error {
	var batch []byte
	var questions int
	for {
		l.mu.Lock()
		if batch != nil {
			l.wrote(batch)
			batch = nil
		}
		if ctx.Err() == nil {
			batch, questions = l.take()
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
			l.wrote(batch)
			l.mu.Unlock()
			return fmt.Errorf("write: %w", err)
		}
	}
}

// postHere posts heartbeats and writes them on the goroutine that calls when nothing else is queued and the write does not wait
// for the other member: an idle member would spend more on waking a writer for each. The caller must hold no lock.
func (l *link) postHere(beats []handoff.Outbound) {
	l.mu.Lock()
	c := l.current
	here := c != nil && !l.writing && len(l.out) == 0 && l.flow.written-l.flow.read <= smallFlow
	l.writing = l.writing || here // the writer sleeps on
	for i := range beats {
		l.queue(&beats[i].Msg)
	}
	if !here {
		l.mu.Unlock()
		return
	}
	l.writing = false
	batch, _ := l.take()
	l.mu.Unlock()
	if batch == nil {
		return
	}
	c.conn.SetWriteDeadline(time.Now().Add(hereTime))
	_, err := c.conn.Write(batch)
	c.conn.SetWriteDeadline(time.Time{})
	if err != nil {
		c.cut(fmt.Errorf("write: %w", err))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wrote(batch)
	if len(l.out) > 0 {
		wake(l.wake)
	}
}
