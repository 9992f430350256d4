package holds

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/keyward/keyward/envoy/holds/client"
	pb "github.com/keyward/keyward/envoy/holds/keywardv1"
)

// openSession is a session of a client, and its notices.
type openSession struct {
	end     context.CancelFunc
	notices chan *pb.Notice
	done    chan error
}

func openSessionOf(t *testing.T, c *client.HoldClient, watch ...*pb.Descriptor) *openSession {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s := &openSession{cancel, make(chan *pb.Notice, 100), make(chan error, 1)}
	go func() {
		s.done <- c.Session(ctx, "llm", watch, func(n *pb.Notice) { s.notices <- n })
	}()
	return s
}

// next returns the next notice.
func (s *openSession) next(t *testing.T) *pb.Notice {
	t.Helper()
	select {
	case n := <-s.notices:
		return n
	case err := <-s.done:
		t.Fatal("the session has ended: ", err)
	case <-time.After(20 * time.Second):
		t.Fatal("no notice")
	}
	return nil
}

// eventually waits for the effect of another goroutine.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func held(t *testing.T, c *client.HoldClient, d *pb.Descriptor) uint64 {
	t.Helper()
	u, err := c.Usage(t.Context(), "llm", d)
	if err != nil {
		t.Fatal(err)
	}
	return u[0].GetHeld()
}

// When its session ends, the requests in flight of a caller are released, but not what it has reserved of a budget: it may
// have been used. What it has settled, and what others have, stays as it is.
func TestSessionEnds(t *testing.T) {
	r := start(t)
	acme, stream := client.Descriptor("tenant", "acme"), client.Descriptor("streams", "acme")
	for name, end := range map[string]func(*openSession, *grpc.ClientConn){
		"by the caller":       func(s *openSession, _ *grpc.ClientConn) { s.end() },
		"with its connection": func(_ *openSession, conn *grpc.ClientConn) { conn.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			conn := r.dial(t, nil)
			c, other := client.New(conn, "me"), client.New(r.dial(t, nil), "other")
			s := openSessionOf(t, c)
			if n := s.next(t); n.Caller != "me" {
				t.Fatal(n)
			}
			before := held(t, other, acme)
			if _, err := c.Reserve(t.Context(), client.Reserve{Domain: "llm", Descriptors: []*pb.Descriptor{acme, stream}, Hits: 10}); err != nil {
				t.Fatal(err)
			}
			others, err := other.Reserve(t.Context(), client.Reserve{Domain: "llm", Descriptors: []*pb.Descriptor{stream}})
			if err != nil {
				t.Fatal(err)
			}
			end(s, conn)
			eventually(t, "the slot is released", func() bool { return held(t, other, stream) == 1 })
			if n := held(t, other, acme); n != before+10 {
				t.Errorf("%d tokens are held", n)
			}
			if err := others.Release(t.Context()); err != nil || held(t, other, stream) != 0 {
				t.Error(err)
			}
		})
	}
	if len(r.sessions.holders) != 0 {
		t.Error("settled holds are remembered")
	}
}

// A session that the server ends is opened again, with all that it holds.
func TestSessionsResume(t *testing.T) {
	r := start(t)
	r.sessions.life = time.Millisecond
	c := client.New(r.dial(t, nil), "me")
	s := openSessionOf(t, c)
	s.next(t)
	stream := client.Descriptor("streams", "acme")
	if _, err := c.Reserve(t.Context(), client.Reserve{Domain: "llm", Descriptors: []*pb.Descriptor{stream}}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s.next(t)
	}
	if n := held(t, c, stream); n != 1 {
		t.Errorf("%d slots are held", n)
	}
	s.end()
	eventually(t, "the slot is released", func() bool { return held(t, c, stream) == 0 })
}

// A caller whose session the server has ended, and that does not open it again, has ended, whatever its connection.
func TestSessionsThatDoNotResume(t *testing.T) {
	r := start(t)
	r.sessions.life, r.sessions.resume = 200*time.Millisecond, time.Second
	conn := r.dial(t, nil)
	s, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, holdsService+"Session")
	if err == nil {
		err = errors.Join(s.SendMsg(&pb.SessionRequest{Caller: "me"}), s.CloseSend())
	}
	if err != nil {
		t.Fatal(err)
	}
	c, stream := client.New(conn, "me"), client.Descriptor("streams", "acme")
	if err := s.RecvMsg(new(pb.Notice)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Reserve(t.Context(), client.Reserve{Domain: "llm", Descriptors: []*pb.Descriptor{stream}}); err != nil {
		t.Fatal(err)
	}
	if err := s.RecvMsg(new(pb.Notice)); !errors.Is(err, io.EOF) {
		t.Fatalf("the session has not ended: %v", err)
	}
	eventually(t, "the slot is released", func() bool { return held(t, c, stream) == 0 })
}

// A server that stops ends the sessions and releases nothing: their callers live.
func TestStoppingServerReleasesNothing(t *testing.T) {
	r := start(t)
	c := client.New(r.dial(t, nil), "me")
	s := openSessionOf(t, c)
	s.next(t)
	stream := client.Descriptor("streams", "acme")
	if _, err := c.Reserve(t.Context(), client.Reserve{Domain: "llm", Descriptors: []*pb.Descriptor{stream}}); err != nil {
		t.Fatal(err)
	}
	r.Close()
	if err := <-s.done; status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	if n := held(t, c, stream); n != 1 {
		t.Errorf("%d slots are held", n)
	}
}

func TestNotices(t *testing.T) {
	r := start(t)
	tick := make(chan time.Time)
	r.sessions.tick = func() (<-chan time.Time, func()) { return tick, func() {} }
	c := client.New(r.dial(t, nil), "me")
	acme := client.Descriptor("tenant", "acme")
	s := openSessionOf(t, c, client.Descriptor("other", "x"), acme)
	s.next(t)
	var open []*client.OpenHold
	reserve := func(hits uint64) {
		t.Helper()
		h, err := c.Reserve(t.Context(), client.Reserve{Domain: "llm", Descriptors: []*pb.Descriptor{acme}, Hits: hits})
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, h)
	}
	expect := func(level uint32, left uint32) {
		t.Helper()
		tick <- time.Time{}
		if n := s.next(t); n.Watch != 1 || n.Level != level || n.Usage.Left != left {
			t.Errorf("notice %v, want %d, left %d", n, level, left)
		}
	}
	reserve(799)
	tick <- time.Time{} // no notice
	reserve(1)
	expect(80, 200)
	reserve(200)
	expect(100, 0)
	if err := open[2].Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect(80, 200)
	if err := open[0].Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect(0, 999)
	s.end()
	<-s.done
}

func TestSessionLimits(t *testing.T) {
	r := start(t)
	conn := r.dial(t, nil)
	for name, req := range map[string]*pb.SessionRequest{
		"caller": {Caller: string(make([]byte, maxID+1))},
		"watch":  {Domain: "llm", Watch: make([]*pb.Descriptor, maxWatched+1)},
		"domain": {Watch: client.One("tenant", "acme")},
	} {
		if err := openStream(t, conn, req); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	r.sessions.count = maxSessions
	if err := openStream(t, conn, &pb.SessionRequest{}); status.Code(err) != codes.ResourceExhausted {
		t.Error(err)
	}
	r.sessions.count = 0
}

// openStream opens a session and returns the error of its first notice.
func openStream(t *testing.T, conn *grpc.ClientConn, req *pb.SessionRequest) error {
	t.Helper()
	s, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, holdsService+"Session")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SendMsg(req); err != nil {
		t.Fatal(err)
	}
	s.CloseSend()
	return s.RecvMsg(&pb.Notice{})
}
