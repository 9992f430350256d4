package h2

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	both        = "/test.Test/Both" // echoes each message
	maxBoth     = 100_000           // bytes of its messages
	eventSettle = 10 * time.Second
)

// echoReceiver answers each message with itself.
type echoReceiver struct{ d *Duplex }

func (r echoReceiver) Receive(m []byte)    { _ = r.d.Send(text(m)) }
func (r echoReceiver) ClientDone()         { r.d.End() }
func (r echoReceiver) PingAnswered(uint64) {}
func (r echoReceiver) Draining()           {}
func (r echoReceiver) Gone()               {}

// eventReceiver passes on what it hears.
type eventReceiver struct {
	events chan string
	ready  chan *Duplex
}

func newEventReceiver() *eventReceiver {
	return &eventReceiver{make(chan string, 1000), make(chan *Duplex, 100)}
}

func (r *eventReceiver) open(d *Duplex) DuplexReceiver {
	select {
	case r.ready <- d:
	default: // of a flood
	}
	return r
}

func (r *eventReceiver) add(event string) {
	select {
	case r.events <- event:
	default: // of a flood
	}
}

func (r *eventReceiver) Receive(m []byte)      { r.add("message " + string(m)) }
func (r *eventReceiver) ClientDone()           { r.add("done") }
func (r *eventReceiver) PingAnswered(n uint64) { r.add(fmt.Sprint("ping ", n)) }
func (r *eventReceiver) Draining()             { r.add("draining") }
func (r *eventReceiver) Gone()                 { r.add("gone") }

func (r *eventReceiver) expect(t *testing.T, want ...string) {
	t.Helper()
	for _, w := range want {
		select {
		case got := <-r.events:
			if got != w {
				t.Fatalf("%q, want %q", got, w)
			}
		case <-time.After(eventSettle):
			t.Fatalf("never: %q", w)
		}
	}
}

// withEvents serves a method that reports what happens, next to the usual ones.
func withEvents(o Options) (Options, *eventReceiver) {
	r := newEventReceiver()
	o.Methods = methods()
	o.Methods[both] = NewDuplexHandler(maxBoth, r.open)
	return o, r
}

// speakDuplex opens a connection by hand, and a duplex call on stream 1.
func speakDuplex(t *testing.T, l net.Listener, more ...[2]string) *talk {
	t.Helper()
	conn, f := speak(t, l)
	k := &talk{t: t, conn: conn, Framer: f, dec: hpack.NewDecoder(4096, func(hpack.HeaderField) {})}
	k.enc = hpack.NewEncoder(&k.block)
	k.openDuplex(1, more...)
	return k
}

func (k *talk) openDuplex(id uint32, more ...[2]string) {
	list := append(append(fields{}, good[:2]...), [2]string{":path", both})
	k.open(id, false, append(append(list, good[3:]...), more...))
}

// hears checks the next frames.
func (k *talk) hears(want ...string) {
	k.t.Helper()
	for _, w := range want {
		if got := k.hear(); got != w {
			k.t.Fatalf("%s, want %s", got, w)
		}
	}
}

func TestDuplexEchoes(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		_, l, r := start(t, network, Options{})
		c := client(t, l)
		s, err := c.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, both)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{0, 1, 10, 16 << 10, maxBoth, 3, maxBoth - 1, 0} {
			in, out := strings.Repeat("x", n), ""
			if err := errors.Join(s.SendMsg(&in), s.RecvMsg(&out)); err != nil || in != out {
				t.Fatalf("%s: %d bytes: %d, %v", network, n, len(out), err)
			}
		}
		var sent sync.WaitGroup
		const many = 5000
		flight := make(chan bool, 100) // what is not read is not sent for ever
		sent.Go(func() {
			for i := range many {
				flight <- true
				in := fmt.Sprintf("%0*d", 16+i%3000, i) // shorter ones are counted as control frames
				if err := s.SendMsg(&in); err != nil {
					t.Error(err)
				}
			}
			_ = s.CloseSend()
		})
		var out string
		for i := range many {
			if err := s.RecvMsg(&out); err != nil || out != fmt.Sprintf("%0*d", 16+i%3000, i) {
				t.Fatalf("message %d is %q: %v", i, out, err)
			}
			<-flight
		}
		if err := s.RecvMsg(&out); !errors.Is(err, io.EOF) {
			t.Errorf("the end: %v", err)
		}
		sent.Wait()
		if len(r.n) != 0 {
			t.Errorf("counted as refused: %v", r.n)
		}
	}
}

// A message may be too long for the method, although others of the server may be longer.
func TestDuplexLongMessage(t *testing.T) {
	o, events := withEvents(Options{})
	_, l, r := start(t, "tcp", o)
	s, err := client(t, l).NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, both)
	if err != nil {
		t.Fatal(err)
	}
	in, out := strings.Repeat("x", maxBoth+1), ""
	_ = s.SendMsg(&in)
	if err := s.RecvMsg(&out); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "100001 vs. 100000") {
		t.Error(err)
	}
	events.expect(t, "gone")
	if r.of(TooLarge) != 1 {
		t.Errorf("counted %v", r.n)
	}
}

// The server sends at any time, from any goroutine, and ends the call while the client could still send.
func TestDuplexSendsAtAnyTime(t *testing.T) {
	o, events := withEvents(Options{})
	_, l, _ := start(t, "tcp", o)
	s, err := client(t, l).NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, both)
	if err != nil {
		t.Fatal(err)
	}
	d := <-events.ready
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for j := range 200 {
				if err := d.Send(text(fmt.Sprint(i))); err != nil {
					t.Error(err)
				}
				if j%10 == 0 {
					if err := d.Ping(uint64(i*1000 + j)); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	count := map[string]int{}
	for range 800 {
		var out string
		if err := s.RecvMsg(&out); err != nil {
			t.Fatal(err)
		}
		count[out]++
	}
	all.Wait()
	if len(count) != 4 || count["0"] != 200 {
		t.Error(count)
	}
	for range 80 {
		if e := <-events.events; !strings.HasPrefix(e, "ping ") {
			t.Error(e)
		}
	}
	d.Fail(codes.Unavailable, "open it again")
	if err := s.RecvMsg(new(string)); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	d.End()
	if err := d.Send(text("")); err == nil {
		t.Error("sent after the end")
	}
	if err := d.Ping(1); err == nil {
		t.Error("pinged after the end")
	}
	if len(events.events) > 0 {
		t.Error(<-events.events)
	}
}

// The connection of a duplex call is pinged, so that a client that has died is noticed.
func TestDuplexSilentClient(t *testing.T) {
	o, events := withEvents(Options{PingInterval: 10 * time.Millisecond})
	_, l, _ := start(t, "tcp", o)
	speakDuplex(t, l)
	events.expect(t, "gone")
}

func TestDuplexEndsOfConnections(t *testing.T) {
	t.Run("closed", func(t *testing.T) {
		o, events := withEvents(Options{})
		_, l, _ := start(t, "tcp", o)
		k := speakDuplex(t, l)
		<-events.ready
		k.conn.Close()
		events.expect(t, "gone")
	})
	t.Run("aged", func(t *testing.T) {
		o, events := withEvents(Options{MaxAge: 20 * time.Millisecond})
		_, l, _ := start(t, "tcp", o)
		k := speakDuplex(t, l)
		k.hears("GOAWAY NO_ERROR", "PING ack=false going")
		events.expect(t, "draining")
		k.openDuplex(3) // the client has not read the GOAWAY yet
		events.expect(t, "draining")
		_ = k.WritePing(true, drainPing)
		k.hears("GOAWAY NO_ERROR")
		k.message(1, false, "last")
		events.expect(t, "message last")
		for range 2 {
			(<-events.ready).End()
		}
		for got := ""; got != "end"; {
			got = k.hear()
		}
		if len(events.events) > 0 {
			t.Error(<-events.events)
		}
	})
	t.Run("shut down", func(t *testing.T) {
		o, events := withEvents(Options{})
		s, l, _ := start(t, "tcp", o)
		c := client(t, l)
		call, err := c.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, both)
		if err != nil {
			t.Fatal(err)
		}
		d := <-events.ready
		down := make(chan struct{})
		go func() {
			s.Shutdown(t.Context())
			close(down)
		}()
		events.expect(t, "draining")
		_ = d.Send(text("farewell"))
		d.Fail(codes.Unavailable, "shutting down")
		var out string
		if err := call.RecvMsg(&out); err != nil || out != "farewell" {
			t.Error(out, err)
		}
		if err := call.RecvMsg(&out); status.Code(err) != codes.Unavailable {
			t.Error(err)
		}
		<-down
	})
	t.Run("cut", func(t *testing.T) {
		o, events := withEvents(Options{})
		s, l, _ := start(t, "tcp", o)
		speakDuplex(t, l)
		<-events.ready
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		s.Shutdown(ctx)
		for got := ""; got != "gone"; {
			got = <-events.events
		}
	})
}

// Calls that end in all ways at the same time, for the race detector.
func TestDuplexRaces(t *testing.T) {
	var handlers sync.WaitGroup
	_, l, _ := start(t, "tcp", Options{Methods: map[string]Handler{both: NewDuplexHandler(maxBoth, func(d *Duplex) DuplexReceiver {
		for i := range 3 {
			handlers.Go(func() {
				for j := range 50 {
					_ = d.Send(text("x"))
					_ = d.Ping(uint64(j))
				}
				if i == 0 {
					d.End()
				}
			})
		}
		return echoReceiver{d}
	})}})
	c := client(t, l)
	var clients sync.WaitGroup
	for i := range 8 {
		clients.Go(func() {
			for range 25 {
				ctx, cancel := context.WithCancel(t.Context())
				s, err := c.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, both)
				if err != nil {
					t.Error(err)
					cancel()
					return
				}
				in, out := "a message that is long enough", ""
				_ = s.SendMsg(&in)
				for range i * 10 {
					if s.RecvMsg(&out) != nil {
						break
					}
				}
				cancel()
			}
		})
	}
	clients.Wait()
	handlers.Wait()
}
