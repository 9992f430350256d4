package peer

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/iotest"
	"time"
)

// newTestLink is a link whose beats are counted by hand.
func newTestLink(t *testing.T) (l *link, ctx context.Context, beat func() (pinged bool)) {
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

// count is how many of n beats pinged; before comes ahead of each.
func count(n int, beat func() bool, before func(i int)) (pings int) {
	for i := range n {
		before(i + 1)
		if beat() {
			pings++
		}
	}
	return pings
}

func TestHeartbeatsTakeThePlaceOfPings(t *testing.T) {
	l, ctx, beat := newTestLink(t)
	answered := func(i int) { l.lastConfirmed.Store(int64(i)) }
	if n := count(idleChecks, beat, answered); n != 0 {
		t.Errorf("%d pings although heartbeats were answered", n)
	}
	if !beat() {
		t.Error("no ping without a heartbeat")
	}
	l.lastRead.Store(1) // the pong
	if n := count(idleChecks, beat, func(i int) { l.lastConfirmed.Store(100 + int64(i)) }); n != 0 {
		t.Errorf("%d pings although heartbeats were answered again", n)
	}
	l.timeouts.Store(1)
	l.lastConfirmed.Store(1000)
	if !beat() {
		t.Error("no ping although a question was not answered")
	}
	if ctx.Err() != nil {
		t.Error(context.Cause(ctx))
	}
}

// Heartbeats come over another stream: a stream whose way back is broken is found by the pings that prove it.
func TestHeartbeatsDoNotHideABrokenStream(t *testing.T) {
	l, ctx, beat := newTestLink(t)
	beats := 0
	for ctx.Err() == nil && beats < 100 {
		beats++
		l.lastConfirmed.Store(int64(beats))
		beat()
	}
	if want := 1 + idleChecks + silentChecks; beats != want || !errors.Is(context.Cause(ctx), errSilent) {
		t.Errorf("given up after %d beats, want %d: %v", beats, want, context.Cause(ctx))
	}
}

// A member that says nothing at all is pinged at every beat and given up after silentChecks of them.
func TestSilenceIsCountedInBeats(t *testing.T) {
	l, ctx, beat := newTestLink(t)
	if n := count(silentChecks, beat, func(int) {}); n != silentChecks || ctx.Err() != nil {
		t.Errorf("%d pings, %v", n, context.Cause(ctx))
	}
	beat()
	if !errors.Is(context.Cause(ctx), errSilent) {
		t.Errorf("not given up: %v", context.Cause(ctx))
	}
	l.keepalive.end()
	if beat() {
		t.Error("a ping without a connection")
	}
}

// Heartbeats that wait to be written are not answered on this stream; questions are.
func TestPingGoesBesideMessages(t *testing.T) {
	l, _, _ := newTestLink(t)
	message := func(b []byte) []byte { return append(b, "message"...) }
	l.appendFrame(message)
	if l.ping(); len(l.out) <= len("message") {
		t.Error("no ping beside a message")
	}
	l.out, l.queuedRequests = nil, 1
	l.appendFrame(message)
	if l.ping(); len(l.out) != len("message") {
		t.Error("a ping beside a question")
	}
}

// A heartbeat's answer that took long proves nothing about now.
func TestLateAnswersProveNothing(t *testing.T) {
	l, _, _ := newTestLink(t)
	if l.confirm(0, int64(keepaliveEvery)); l.lastConfirmed.Load() != 0 {
		t.Error("a late answer counts")
	}
	if l.confirm(0, int64(keepaliveEvery)-1); l.lastConfirmed.Load() == 0 {
		t.Error("an answer in time does not count")
	}
}

// trickle gives at most n bytes a read, for ever.
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
			f.r = f.w // all is taken
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
