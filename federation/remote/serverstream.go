package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/budget"
)

// maxCalls is how many calls of one connection are processed at a time. The server does not read more meanwhile.
const maxCalls = 16

// serverStream is a connection of a region.
type serverStream struct {
	*stream
	region string
	pace   pace
	serves federation.Coordinator
	slots  chan struct{} // holds a value for each call in progress
	calls  sync.WaitGroup
	ageing *time.Timer
	away   sync.Once
}

func newServerStream(s *CoordinatorServer, conn net.Conn, account *budget.Account) *serverStream {
	return &serverStream{
		stream: newStream(s.ctx, conn, s.o.pace.stall, account), pace: s.o.pace, serves: s.o.Coordinator,
		slots: make(chan struct{}, maxCalls),
	}
}

// goAway asks the client to use another connection, and closes this one a little later.
func (c *serverStream) goAway(reason string) {
	c.away.Do(func() {
		c.trySend(goAwayFrame(reason))
		time.AfterFunc(c.pace.drain, func() { c.cancel(errFinished) })
	})
}

// run processes frames until the connection ends, and returns why it did. It waits for calls in progress.
func (c *serverStream) run() error {
	c.calls.Go(c.write)
	defer c.calls.Wait()
	for {
		typ, payload, err := c.next(c.pace.idle)
		if err == nil {
			err = c.handle(typ, payload)
		}
		var bad malformedError
		switch {
		case err == nil:
			continue
		case errors.As(err, &bad):
			c.finish(goAwayFrame(err.Error()))
		case errors.Is(err, io.EOF):
			err = errors.New("closed by the client")
		case c.ctx.Err() != nil:
			err = c.err()
		}
		c.cancel(err)
		return err
	}
}

// handle processes a frame. It blocks while maxCalls are in progress.
func (c *serverStream) handle(typ byte, payload []byte) error {
	size := len(payload)
	switch typ {
	case framePing:
		defer c.release(size)
		return c.send(c.ctx, simpleFrame(framePong))
	case frameCall:
		read := time.Now()
		call, err := parseCall(payload)
		if err != nil {
			return malformed(err)
		}
		select {
		case c.slots <- struct{}{}:
		case <-c.ctx.Done():
			return c.err()
		}
		c.calls.Go(func() {
			c.process(&call, read)
			c.release(size)
			<-c.slots
		})
		return nil
	}
	return malformed(fmt.Errorf("unknown frame type %d", typ))
}

// process makes a call that was read at that time and sends the reply. A call whose caller has given up is not made.
func (c *serverStream) process(call *call, read time.Time) {
	ctx, cancel := context.WithDeadline(c.ctx, read.Add(min(call.timeout, callTimeout)))
	defer cancel()
	var gs []federation.PoolGrant
	err := ctx.Err()
	if err == nil {
		switch call.op {
		case opLease:
			gs, err = c.serves.Lease(ctx, c.region, call.requests)
		case opReconcile:
			err = c.serves.Reconcile(ctx, c.region, call.requests)
		case opHealthy:
			err = c.serves.Healthy(ctx)
		}
	}
	switch {
	case c.ctx.Err() != nil: // the client learns that the connection has ended
		return
	case err != nil:
		_ = c.send(c.ctx, errorFrame(call.id, err)) // fails only if the connection has ended
		return
	}
	for _, frame := range replyFrames(call.id, gs) {
		_ = c.send(c.ctx, frame)
	}
}
