package cluster

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	// maxStreams is how many incoming streams are read at once; more wait, until they are taken or give up. A push-pull
	// takes milliseconds, and memberlist cuts off after Timing.Stream whoever is slow.
	maxStreams = 8
	// maxStreamBytes is how much is read of one. What 8192 members say of themselves is half as much.
	maxStreamBytes = 8 << 20
)

var errTooMuch = errors.New("stream too long")

// stoppable ends the streams it dialled when its context does, so that a stop waits for no silent peer. Streams that are
// dialled to it are bounded in number and size: without a key anybody may open one, and memberlist holds what it reads.
type stoppable struct {
	memberlist.NodeAwareTransport
	ctx     context.Context
	streams <-chan net.Conn
	packets <-chan *memberlist.Packet
}

// newStoppable wraps t. In the clear, what is compressed is refused unread: anybody could send it, and memberlist unpacks up to
// 40 MiB of each packet before it looks at the next one.
func newStoppable(ctx context.Context, t memberlist.NodeAwareTransport, clear bool, refused func(reason string)) *stoppable {
	s := &stoppable{NodeAwareTransport: t, ctx: ctx, packets: t.PacketCh()}
	var head func() *opening
	if clear {
		head = func() *opening { return &opening{refused: refused} }
		s.packets = sift(ctx, t.PacketCh(), refused)
	}
	s.streams = admit(ctx, t.StreamCh(), head)
	return s
}

// PacketCh implements memberlist.Transport.
func (s *stoppable) PacketCh() <-chan *memberlist.Packet { return s.packets }

// Shutdown implements memberlist.Transport. It waits for goroutines that pass on what comes, and nobody takes that any more.
func (s *stoppable) Shutdown() error {
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case <-s.NodeAwareTransport.PacketCh():
			case c := <-s.NodeAwareTransport.StreamCh():
				_ = c.Close()
			case <-done:
				return
			}
		}
	}()
	return s.NodeAwareTransport.Shutdown()
}

// StreamCh implements memberlist.Transport.
func (s *stoppable) StreamCh() <-chan net.Conn { return s.streams }

// admit passes streams on, so many at once.
func admit(ctx context.Context, in <-chan net.Conn, head func() *opening) <-chan net.Conn {
	out, slots := make(chan net.Conn), make(chan struct{}, maxStreams)
	go func() {
		for {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			select {
			case c := <-in:
				b := &bounded{Conn: c, left: maxStreamBytes, done: sync.OnceFunc(func() { <-slots })}
				if head != nil {
					b.head = head()
				}
				select {
				case out <- b:
				case <-ctx.Done():
					_ = c.Close()
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// bounded is an incoming stream.
type bounded struct {
	net.Conn
	left int
	head *opening // nil: all may come in
	done func()
}

// Read reads as much as is left.
func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooMuch
	}
	n, err := b.Conn.Read(p[:min(len(p), b.left)])
	b.left -= n
	if b.head != nil && b.head.packed(p[:n]) {
		return 0, errPacked
	}
	return n, err
}

// Close closes the stream.
func (b *bounded) Close() error {
	defer b.done()
	return b.Conn.Close()
}

// DialTimeout implements memberlist.Transport.
func (s *stoppable) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return s.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

// DialAddressTimeout implements memberlist.NodeAwareTransport.
func (s *stoppable) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: min(timeout, dialTimeout)}
	conn, err := d.DialContext(s.ctx, "tcp", a.Addr)
	if err != nil {
		return nil, err
	}
	return &stoppableConn{Conn: conn, stop: context.AfterFunc(s.ctx, func() { _ = conn.Close() })}, nil
}

type stoppableConn struct {
	net.Conn
	stop func() bool
}

// Close closes the stream.
func (c *stoppableConn) Close() error {
	c.stop()
	return c.Conn.Close()
}

// CloseWrite says that no more will be written.
func (c *stoppableConn) CloseWrite() error {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		return tcp.CloseWrite()
	}
	return nil
}
