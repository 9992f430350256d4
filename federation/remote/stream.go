package remote

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"github.com/keyward/keyward/internal/budget"
)

const (
	readBuffer  = 4 << 10
	writeBuffer = 16 << 10
	writeQueue  = 64       // frames that wait to be written
	firstChunk  = 16 << 10 // bytes of a frame for which memory is allocated before they arrive
	keptBuffer  = 32 << 10 // bytes of the largest frame whose memory is used again
)

var (
	errIdle     = errors.New("silent")
	errStalled  = errors.New("the rest of a frame did not arrive in time")
	errOver     = errors.New("the client makes the process keep too much memory")
	errFinished = errors.New("closed")
)

// stream is a connection that carries frames. One goroutine reads, one runs write, and any number call send.
type stream struct {
	conn    net.Conn
	src     *bufio.Reader
	stall   time.Duration
	account *budget.Account // is charged with frames until release; nil: none
	buf     []byte          // of the frame that was read last
	out     chan []byte     // frames to write; nil: close when all before it are written

	ctx    context.Context // ends when the connection does; the cause is the reason
	cancel context.CancelCauseFunc
}

// newStream returns a stream, which closes conn when it ends.
func newStream(ctx context.Context, conn net.Conn, stall time.Duration, account *budget.Account) *stream {
	s := &stream{
		conn: conn, src: bufio.NewReaderSize(conn, readBuffer), stall: stall, account: account,
		out: make(chan []byte, writeQueue),
	}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	context.AfterFunc(s.ctx, func() { conn.Close() })
	return s
}

// err returns why the stream has ended.
func (s *stream) err() error { return context.Cause(s.ctx) }

// send queues a frame. It blocks until there is room in the queue.
func (s *stream) send(ctx context.Context, frame []byte) error {
	select {
	case s.out <- frame:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.ctx.Done():
		return s.err()
	}
}

// trySend queues a frame if there is room in the queue.
func (s *stream) trySend(frame []byte) {
	select {
	case s.out <- frame:
	default:
	}
}

// finish sends what is queued and a last frame, closes the connection, and waits until that is done.
func (s *stream) finish(frame []byte) {
	bounded, cancel := context.WithTimeout(s.ctx, time.Second)
	defer cancel()
	if s.send(bounded, frame) == nil && s.send(bounded, nil) == nil {
		<-bounded.Done()
	}
	s.cancel(errFinished)
}

// write writes queued frames until the stream ends. Frames that are queued while it writes share the next write.
func (s *stream) write() {
	w := bufio.NewWriterSize(s.conn, writeBuffer)
	for {
		var frame []byte
		select {
		case frame = <-s.out:
		case <-s.ctx.Done():
			return
		}
		s.conn.SetWriteDeadline(time.Now().Add(s.stall))
		_, err := w.Write(frame)
		if err == nil && (frame == nil || len(s.out) == 0) {
			err = w.Flush()
		}
		switch {
		case err != nil:
			s.cancel(fmt.Errorf("write: %w", err))
			return
		case frame == nil:
			s.cancel(errFinished)
			return
		}
	}
}

// next returns the next frame. The payload is valid until the next call, and is charged until release. The error is
// errIdle if no frame begins within the time; then next can be called again.
func (s *stream) next(idle time.Duration) (typ byte, payload []byte, err error) {
	s.conn.SetReadDeadline(time.Now().Add(idle))
	if _, err := s.src.Peek(1); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = errIdle
		}
		return 0, nil, err
	}
	s.conn.SetReadDeadline(time.Now().Add(s.stall))
	typ, payload, err = s.read(maxFrame)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = errStalled
	}
	return typ, payload, err
}

// read reads a frame of at most most bytes.
func (s *stream) read(most uint32) (typ byte, payload []byte, err error) {
	var length [frameLength]byte
	if _, err := io.ReadFull(s.src, length[:]); err != nil {
		return 0, nil, err
	}
	n := binary.LittleEndian.Uint32(length[:])
	if n < 1 || n > most {
		return 0, nil, malformed(fmt.Errorf("frame of %d bytes, want 1 to %d", n, most))
	}
	frame, err := s.receive(int(n))
	if err != nil {
		return 0, nil, err
	}
	return frame[0], frame[1:], nil
}

// receive reads n bytes. It allocates memory as the bytes arrive.
func (s *stream) receive(n int) ([]byte, error) {
	b := s.buf[:0]
	s.buf = nil
	for len(b) < n {
		have := len(b)
		chunk := min(n-have, max(have, firstChunk))
		if !s.account.Charge(int64(chunk)) {
			return nil, errOver
		}
		b = slices.Grow(b, chunk)[:have+chunk]
		if _, err := io.ReadFull(s.src, b[have:]); err != nil {
			return nil, err
		}
	}
	if cap(b) <= keptBuffer {
		s.buf = b
	}
	return b, nil
}

// release takes back the charge for a frame with a payload of n bytes.
func (s *stream) release(n int) { s.account.Charge(-int64(n + 1)) }

// readHandshake reads the magic and one frame of that type.
func (s *stream) readHandshake(want byte) ([]byte, error) {
	head := make([]byte, len(magic))
	if _, err := io.ReadFull(s.src, head); err != nil {
		return nil, err
	}
	if string(head) != magic {
		return nil, malformed(errors.New("the other end does not speak this protocol"))
	}
	typ, payload, err := s.read(maxHello)
	if err == nil && typ != want {
		err = malformed(fmt.Errorf("frame type %d instead of the handshake", typ))
	}
	return payload, err
}

// malformedError means that the other end violates the protocol.
type malformedError struct{ error }

func malformed(err error) error { return malformedError{err} }

// Unwrap returns what is wrong.
func (e malformedError) Unwrap() error { return e.error }
