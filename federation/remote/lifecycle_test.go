package remote

import (
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keyward/keyward/federation"
)

// TestRenewal requires that a connection which has reached its age is replaced without a failed call.
func TestRenewal(t *testing.T) {
	var connections atomic.Int64
	s := serve(t, ServeOptions{Coordinator: memory(), pace: pace{age: 40 * time.Millisecond}, OnConnection: func(_ string, change int) {
		connections.Add(int64(max(change, 0)))
	}})
	c := dial(t, s.Addr().String(), func(o *DialOptions) { o.pace.worked = time.Millisecond })
	for seq := uint64(1); connections.Load() < 4; seq++ {
		r := request(0)
		r.Seq = seq
		if gs, err := c.Lease(bounded(t), "a", []federation.PoolRequest{r}); err != nil || len(gs) != 1 {
			t.Fatal(gs, err)
		}
	}
}

// TestShutdown requires that calls in progress are completed, and that an idle connection does not delay the end.
func TestShutdown(t *testing.T) {
	store, began, release := slow()
	s := serve(t, ServeOptions{Coordinator: store})
	c := dial(t, s.Addr().String(), nil)
	idle := dial(t, s.Addr().String(), func(o *DialOptions) { o.Region = "b" })
	if _, err := idle.stream(bounded(t)); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() {
		_, err := c.Lease(bounded(t), "a", []federation.PoolRequest{request(1)})
		result <- err
	}()
	<-began
	time.AfterFunc(50*time.Millisecond, func() { close(release) })
	at := time.Now()
	if err := s.Shutdown(bounded(t)); err != nil {
		t.Error(err)
	}
	if err := <-result; err != nil || time.Since(at) > time.Second {
		t.Errorf("the call in progress: %v after %v", err, time.Since(at))
	}
}

// TestKeepalive requires that a silent connection is kept by pings, and given up if they have no reply.
func TestKeepalive(t *testing.T) {
	var ended atomic.Int64
	s := serve(t, ServeOptions{Coordinator: memory(), pace: pace{idle: 100 * time.Millisecond}, OnConnection: func(_ string, change int) {
		ended.Add(int64(max(-change, 0)))
	}})
	address := s.Addr().String()
	lively := dial(t, address, func(o *DialOptions) { o.pace.keepalive = 10 * time.Millisecond })
	first, err := lively.stream(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	silent := dial(t, address, func(o *DialOptions) { o.Region = "b" })
	if _, err := silent.stream(bounded(t)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the silent connection has ended", func() bool { return ended.Load() > 0 })
	if first.isRetired() {
		t.Errorf("the other one has ended, too: %v", first.err())
	}
	// A server that does not reply any more.
	near, far := net.Pipe()
	defer far.Close()
	go io.Copy(io.Discard, far)
	c := newClientStream(t.Context(), near, pace{keepalive: 10 * time.Millisecond}.orDefaults())
	go c.write()
	c.readReplies()
	fails(t, c.err(), "no reply to pings")
}
