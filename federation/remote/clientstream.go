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
)

// maxSilent is how many pings may have no reply.
const maxSilent = 2

// errRetired means that a connection accepts no more calls.
var errRetired = errors.New("connection is being replaced")

// clientStream is a connection to a server.
type clientStream struct {
	*stream
	pace    pace
	retired chan struct{} // closed when the connection accepts no more calls

	mu     sync.Mutex // guards all below
	lastID uint64
	calls  map[uint64]*pending
	why    error // the reason for closing retired; nil: it is open
}

// pending is a call that waits for its reply.
type pending struct {
	requests int
	grants   []federation.PoolGrant // so far
	err      error
	done     chan struct{} // closed when the reply is complete
}

func newClientStream(ctx context.Context, conn net.Conn, p pace) *clientStream {
	s := &clientStream{
		stream: newStream(ctx, conn, p.stall, nil), pace: p, retired: make(chan struct{}), calls: map[uint64]*pending{},
	}
	context.AfterFunc(s.ctx, func() { s.retire(s.err()) })
	return s
}

// handshake sends h and returns an error if the server refuses it.
func (s *clientStream) handshake(h hello) error {
	if _, err := s.conn.Write(helloFrame(h)); err != nil {
		return err
	}
	payload, err := s.readHandshake(frameWelcome)
	if err != nil {
		return err
	}
	w, err := parseWelcome(payload)
	switch {
	case err != nil:
		return err
	case w.reason != "":
		return fmt.Errorf("the coordinator refuses this region: %s", w.reason)
	case w.version < h.min || w.version > h.max:
		return fmt.Errorf("the coordinator chose the unsupported version %d", w.version)
	}
	return nil
}

// retire ends the acceptance of calls. The connection is closed when those in progress are complete.
func (s *clientStream) retire(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why == nil {
		s.why = why
		close(s.retired)
	}
	s.closeIfUnusedLocked()
}

// closeIfUnusedLocked closes a retired connection without calls.
func (s *clientStream) closeIfUnusedLocked() {
	if s.why != nil && len(s.calls) == 0 {
		s.cancel(s.why)
	}
}

func (s *clientStream) isRetired() bool {
	select {
	case <-s.retired:
		return true
	default:
		return false
	}
}

// reason returns why the connection was retired.
func (s *clientStream) reason() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why
}

// call makes a call and waits for the reply, until ctx ends or the connection is lost. It returns errRetired if the
// connection accepts no more calls.
func (s *clientStream) call(ctx context.Context, op op, rs []federation.PoolRequest) ([]federation.PoolGrant, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p := &pending{requests: len(rs), done: make(chan struct{})}
	id, ok := s.add(p)
	if !ok {
		return nil, errRetired
	}
	defer s.remove(id)
	timeout := callTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = time.Until(deadline)
	}
	if err := s.send(ctx, callFrame(&call{id, timeout, op, rs})); err != nil {
		return nil, err
	}
	select {
	case <-p.done:
		return p.grants, p.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.ctx.Done():
	}
	select {
	case <-p.done: // a connection that is to be replaced ends with its last reply
		return p.grants, p.err
	default:
		return nil, fmt.Errorf("connection lost: %w", s.err())
	}
}

// add begins a call. It returns false if the connection is retired.
func (s *clientStream) add(p *pending) (id uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why != nil {
		return 0, false
	}
	s.lastID++
	s.calls[s.lastID] = p
	return s.lastID, true
}

// remove ends a call, whether or not its reply is complete.
func (s *clientStream) remove(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.calls, id)
	s.closeIfUnusedLocked()
}

// readReplies reads until the connection is lost. It pings a silent server, and gives up if that does not reply.
func (s *clientStream) readReplies() {
	for silent := 0; ; {
		typ, payload, err := s.next(s.pace.keepalive)
		if errors.Is(err, errIdle) && silent < maxSilent {
			silent++
			s.trySend(simpleFrame(framePing))
			continue
		}
		silent = 0
		if err == nil {
			err = s.handle(typ, payload)
		}
		if err != nil {
			s.cancel(s.lost(err))
			return
		}
	}
}

// lost returns why the connection was lost: what the server has sent before it closed the connection, or else err.
func (s *clientStream) lost(err error) error {
	why := s.reason()
	switch {
	case why != nil:
		return why
	case errors.Is(err, io.EOF):
		return errors.New("closed by the coordinator")
	case errors.Is(err, errIdle):
		return errors.New("no reply to pings")
	}
	return err
}

func (s *clientStream) handle(typ byte, payload []byte) error {
	switch typ {
	case frameReply:
		p, err := parseReply(payload)
		if err != nil {
			return malformed(err)
		}
		return s.deliver(&p)
	case framePong:
		return nil
	case frameGoAway:
		reason, err := parseGoAway(payload)
		if err != nil {
			return malformed(err)
		}
		s.retire(fmt.Errorf("the coordinator closes the connection: %s", reason))
		return nil
	}
	return malformed(fmt.Errorf("unknown frame type %d", typ))
}

// deliver adds a reply to its call. Replies to calls that have ended are dropped.
func (s *clientStream) deliver(r *reply) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.calls[r.id]
	if p == nil {
		return nil
	}
	if p.grants = append(p.grants, r.grants...); len(p.grants) > p.requests {
		return malformed(fmt.Errorf("%d grants for %d requests", len(p.grants), p.requests))
	}
	switch r.status {
	case statusMore:
		return nil
	case statusError:
		p.grants, p.err = nil, errors.New(r.text)
	}
	delete(s.calls, r.id)
	close(p.done)
	s.closeIfUnusedLocked()
	return nil
}
