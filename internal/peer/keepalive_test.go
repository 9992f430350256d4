package peer

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/iotest"
	"time"
)

// newTestLink returns a link whose keepalive checks the test calls.
func newTestLink(t *testing.T) (l *link, ctx context.Context, check func() (pinged bool)) {
	t.Helper()
	l = &link{clock: newClock(time.Now(), nil), wake: make(chan struct{}, 1)}
	ctx, cut := context.WithCancelCause(t.Context())
	t.Cleanup(func() { cut(nil) })
	l.keepalive.begin(0, cut)
	return l, ctx, func() bool {
		l.checkKeepalive()
		pinged := len(l.out) > 0
		l.out = nil
		return pinged
	}
}

// count returns how many of n checks sent a ping. It calls before ahead of each check.
func count(n int, check func() bool, before func(i int)) (pings int) {
	for i := range n {
		before(i + 1)
		if check() {
			pings++
		}
	}
	return pings
}

func TestHeartbeatsReplacePings(t *testing.T) {
	l, ctx, check := newTestLink(t)
	answered := func(i int) { l.lastHeartbeatReply.Store(int64(i)) }
	if n := count(idleChecks, check, answered); n != 0 {
		t.Errorf("%d pings although heartbeats were answered", n)
	}
	if !check() {
		t.Error("no ping without a heartbeat")
	}
	l.lastRead.Store(1) // the pong
	if n := count(idleChecks, check, func(i int) { l.lastHeartbeatReply.Store(100 + int64(i)) }); n != 0 {
		t.Errorf("%d pings although heartbeats were answered again", n)
	}
	l.timeouts.Store(1)
	l.lastHeartbeatReply.Store(1000)
	if !check() {
		t.Error("no ping although a request has no reply")
	}
	if ctx.Err() != nil {
		t.Error(context.Cause(ctx))
	}
}

// Heartbeats arrive over another stream: pings detect a stream whose way back is broken.
func TestHeartbeatsDoNotHideABrokenStream(t *testing.T) {
	l, ctx, check := newTestLink(t)
	checks := 0
	for ctx.Err() == nil && checks < 100 {
		checks++
		l.lastHeartbeatReply.Store(int64(checks))
		check()
	}
	if want := 1 + idleChecks + silentChecks; checks != want || !errors.Is(context.Cause(ctx), errSilent) {
		t.Errorf("given up after %d checks, want %d: %v", checks, want, context.Cause(ctx))
	}
}

// A silent member is pinged at every check, and its connection is closed after silentChecks of them.
func TestSilenceIsCountedInChecks(t *testing.T) {
	l, ctx, check := newTestLink(t)
	if n := count(silentChecks, check, func(int) {}); n != silentChecks || ctx.Err() != nil {
		t.Errorf("%d pings, %v", n, context.Cause(ctx))
	}
	check()
	if !errors.Is(context.Cause(ctx), errSilent) {
		t.Errorf("not given up: %v", context.Cause(ctx))
	}
	l.keepalive.end()
	if check() {
		t.Error("a ping without a connection")
	}
}

// Queued heartbeats have no reply on this stream; queued requests have.
func TestPingAlongsideMessages(t *testing.T) {
	l, _, _ := newTestLink(t)
	message := func(b []byte) []byte { return append(b, "message"...) }
	l.appendFrame(message)
	if l.ping(); len(l.out) <= len("message") {
		t.Error("no ping although only a message is queued")
	}
	l.out, l.queuedRequests = nil, 1
	l.appendFrame(message)
	if l.ping(); len(l.out) != len("message") {
		t.Error("a ping although a request is queued")
	}
}

// A late reply to a heartbeat is no sign of life.
func TestLateRepliesAreNoSignOfLife(t *testing.T) {
	l, _, _ := newTestLink(t)
	if l.handleHeartbeatReply(0, int64(l.keepaliveEvery())); l.lastHeartbeatReply.Load() != 0 {
		t.Error("a late reply counts")
	}
	if l.handleHeartbeatReply(0, int64(l.keepaliveEvery())-1); l.lastHeartbeatReply.Load() == 0 {
		t.Error("a prompt reply does not count")
	}
}

// trickle returns at most n bytes a read, without end.
type trickle struct{ n int }

func (r *trickle) Read(b []byte) (int, error) {
	for i := range min(len(b), r.n) {
		b[i] = 0
	}
	return min(len(b), r.n), nil
}

func TestBufferFitsWhatComes(t *testing.T) {
	src := &trickle{n: 40}
	f := frames{src: src}
	read := func(n int) {
		for range n {
			if err := f.fill(); err != nil {
				t.Fatal(err)
			}
			f.r = f.w // everything has been read
		}
	}
	read(10)
	if len(f.buf) != firstBuffer {
		t.Errorf("%d bytes for heartbeats", len(f.buf))
	}
	src.n = 1 << 20
	read(10)
	if len(f.buf) < readBuffer || len(f.buf) > 4*readBuffer {
		t.Errorf("%d bytes under load", len(f.buf))
	}
	src.n = 40
	read(shortReads)
	if len(f.buf) != firstBuffer {
		t.Errorf("%d bytes for heartbeats after load", len(f.buf))
	}
	f.src = iotest.ErrReader(io.ErrUnexpectedEOF)
	if err := f.fill(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
}
