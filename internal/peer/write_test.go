package peer

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/counterwire"
	"github.com/keyward/keyward/internal/protocol"
)

// newPipeLink returns a link to a member whose end of the connection is the test's. It has no writer.
func newPipeLink(t *testing.T) (l *link, other net.Conn, cut context.Context) {
	t.Helper()
	conn, other := net.Pipe()
	t.Cleanup(func() { conn.Close(); other.Close() })
	ctx, cancel := context.WithCancelCause(t.Context())
	l = &link{clock: newClock(time.Now(), nil), wake: make(chan struct{}, 1), bounds: queueBounds{bytes: 1 << 20},
		live: true, version: maxVersion}
	l.attach(&outbound{conn, cancel})
	return l, other, ctx
}

func ping(sent int64) *protocol.Message {
	return &protocol.Message{Kind: protocol.Ping, Ring: 1, Sent: sent, Now: sent}
}

// pings returns heartbeats for one member.
func pings(sent ...int64) (out []protocol.Outbound) {
	for _, at := range sent {
		out = append(out, protocol.Outbound{To: "other", Msg: *ping(at)})
	}
	return out
}

// pingBytes returns the length of a heartbeat on the stream.
func pingBytes(t *testing.T) int {
	t.Helper()
	b, err := appendMsg(nil, ping(1), &counterwire.Writers{})
	if err != nil {
		t.Fatal(err)
	}
	return len(b)
}

// Heartbeats are written inline as long as they are answered. Beyond what the network is certain to accept, they are
// left to the writer.
func TestHeartbeatsAreWrittenInline(t *testing.T) {
	l, other, _ := newPipeLink(t)
	go func() { _, _ = io.Copy(io.Discard, other) }()
	for sent := int64(1); sent <= 200; sent++ {
		if l.writeInline(pings(sent)); len(l.out) > 0 || len(l.wake) > 0 {
			t.Fatalf("heartbeat %d: %d bytes and %d wakes are left to the writer", sent, len(l.out), len(l.wake))
		}
		l.handleHeartbeatReply(sent, sent)
	}
	most := 0
	for sent := int64(1000); len(l.out) == 0; sent++ {
		l.writeInline(pings(sent))
		if most++; most > maxUnacked {
			t.Fatal("all heartbeats are written inline although none is answered")
		}
	}
	if n := pingBytes(t); (most-1)*n < maxUnacked || (most-1)*n > maxUnacked+2*n || len(l.wake) != 1 {
		t.Errorf("%d heartbeats of %d bytes were written inline without a reply, and %d wakes left", most-1, n,
			len(l.wake))
	}
	l.out = l.out[:0]
	l.handleHeartbeatReply(1000, 1000) // the first one: what came after it may still be unread
	if l.writeInline(pings(5000)); len(l.out) == 0 {
		t.Error("an early reply confirmed too much")
	}
}

// The reply to a heartbeat and the heartbeat next to it are one write.
func TestHeartbeatsGoTogether(t *testing.T) {
	l, other, _ := newPipeLink(t)
	go l.writeInline(pings(1, 2))
	n := pingBytes(t)
	if got, err := other.Read(make([]byte, 10*n)); got != 2*n || err != nil {
		t.Errorf("%d bytes were written at first, error %v; want the %d of two heartbeats", got, err, 2*n)
	}
	out := append(pings(1, 2), protocol.Outbound{To: "third", Msg: *ping(3)},
		protocol.Outbound{To: "third", Msg: protocol.Message{Kind: protocol.Ack}})
	for i, want := range []int{2, 1, 1, 0} {
		if got := heartbeats(out[i:]); got != want {
			t.Errorf("%d heartbeats for one member from %d on, want %d", got, i, want)
		}
	}
}

// What is queued during an inline write is left to the writer, which wakes when the write has ended.
func TestWriterContinuesAfterAHeartbeat(t *testing.T) {
	l, other, _ := newPipeLink(t)
	done := make(chan struct{})
	go func() {
		l.writeInline(pings(1))
		close(done)
	}()
	n := pingBytes(t)
	got := make([]byte, 2*n)
	if _, err := io.ReadFull(other, got[:1]); err != nil { // the write is under way
		t.Fatal(err)
	}
	if l.writeInline(pings(2)); len(l.out) != n || len(l.wake) != 0 {
		t.Fatalf("%d bytes are queued, and %d wakes, during a write", len(l.out), len(l.wake))
	}
	if batch, _ := l.takeBatch(); batch != nil {
		t.Fatal("two batches are written at once")
	}
	if _, err := io.ReadFull(other, got[1:n]); err != nil {
		t.Fatal(err)
	}
	<-done
	if batch, _ := l.takeBatch(); len(batch) != n || len(l.wake) != 1 {
		t.Errorf("%d bytes are left to the writer, and %d wakes", len(batch), len(l.wake))
	}
}

// A write that fails ends the connection.
func TestFailedHeartbeatEndsTheConnection(t *testing.T) {
	l, other, ctx := newPipeLink(t)
	other.Close()
	l.writeInline(pings(1))
	<-ctx.Done()
	if l.writing {
		t.Error("the link is held to be written to for ever")
	}
}
