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

	"golang.org/x/net/http2"
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

// pingFrame returns what talk.hear returns for the n-th ping of a connection's duplex calls.
func pingFrame(n byte) string { return "PING ack=false d\x00\x00\x00\x00\x00\x00" + string(n) }

func pingContent(n byte) [8]byte { return [8]byte{'d', 7: n} }

// A ping is behind what was sent before it, and only its own answer counts, once.
func TestDuplexPing(t *testing.T) {
	o, events := withEvents(Options{})
	_, l, _ := start(t, "tcp", o)
	k := speakDuplex(t, l)
	d := <-events.ready
	for i, s := range []string{"a", "b"} {
		if err := errors.Join(d.Send(text(s)), d.Ping(uint64(100+i))); err != nil {
			t.Fatal(err)
		}
	}
	k.hears("HEADERS 1 status=200", `DATA 1 "\x00\x00\x00\x00\x01a"`, pingFrame(1), `DATA 1 "\x00\x00\x00\x00\x01b"`, pingFrame(2))
	k.openDuplex(3)
	other := <-events.ready
	if err := other.Ping(7); err != nil {
		t.Fatal(err)
	}
	k.hears(pingFrame(3))
	for _, content := range [][8]byte{pingContent(0), pingContent(4), watchPing, drainPing, {}, pingContent(3), pingContent(2), pingContent(2), pingContent(1), pingContent(1), pingContent(3)} {
		_ = k.WritePing(true, content)
	}
	k.message(1, false, "end")
	events.expect(t, "ping 7", "ping 101", "ping 100", "message end")

	if err := errors.Join(d.Ping(1), d.Ping(2), other.Ping(3)); err != nil {
		t.Fatal(err)
	}
	k.hears(pingFrame(4), pingFrame(5), pingFrame(6))
	d.End()
	for n := range byte(7) {
		_ = k.WritePing(true, pingContent(n))
	}
	events.expect(t, "ping 3")
}

// A ping behind data that waits for a window waits, too.
func TestDuplexPingBehindWindow(t *testing.T) {
	o, events := withEvents(Options{})
	_, l, _ := start(t, "tcp", o)
	k := speakDuplex(t, l)
	_ = k.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 7})
	k.message(1, false, "narrow")
	events.expect(t, "message narrow")
	d := <-events.ready
	if err := errors.Join(d.Send(text("ab")), d.Ping(1), d.Send(text("c")), d.Ping(2), d.Ping(3), d.Send(text("d"))); err != nil {
		t.Fatal(err)
	}
	k.hears("HEADERS 1 status=200", `DATA 1 "\x00\x00\x00\x00\x02ab"`, pingFrame(1))
	_ = k.WriteWindowUpdate(1, 5)
	k.hears(`DATA 1 "\x00\x00\x00\x00\x01"`)
	_ = k.WriteWindowUpdate(1, 1)
	k.hears(`DATA 1 "c"`, pingFrame(2), pingFrame(3))
	_ = k.WriteWindowUpdate(1, 100)
	k.hears(`DATA 1 "\x00\x00\x00\x00\x01d"`)
	for n := range 3 {
		_ = k.WritePing(true, pingContent(byte(n+1)))
		events.expect(t, fmt.Sprint("ping ", n+1))
	}
}

// A client that answers no pings gets no more than a limited number.
func TestDuplexManyPings(t *testing.T) {
	o, events := withEvents(Options{})
	_, l, _ := start(t, "tcp", o)
	k := speakDuplex(t, l)
	d := <-events.ready
	for i := range maxDuplexPings {
		if err := d.Ping(uint64(i)); err != nil {
			t.Fatal(i, err)
		}
	}
	if err := d.Ping(0); !errors.Is(err, errTooManyPings) {
		t.Error(err)
	}
	for n := range 10 {
		_ = k.WritePing(true, pingContent(byte(n+1)))
		events.expect(t, fmt.Sprint("ping ", n))
	}
	if err := d.Ping(1000); err != nil {
		t.Error(err)
	}
}

// Mistakes of a client end the call, and its receiver learns of it once.
func TestDuplexMistakes(t *testing.T) {
	raw := func(ends bool, b string) func(*talk) {
		return func(k *talk) { _ = k.WriteData(1, ends, []byte(b)) }
	}
	long := [2]string{"content-length", "7"}
	for name, c := range map[string]struct {
		more fields
		do   func(*talk)
		want []string
		hear []string
	}{
		"compressed":           {nil, raw(false, "\x01\x00\x00\x00\x01x"), []string{"gone"}, []string{failed(1, 200, 12, "grpc: compressed messages are not accepted here"), "RST 1 NO_ERROR"}},
		"compressed, in parts": {nil, func(k *talk) { raw(false, "\x01")(k); raw(false, "\x00\x00\x00\x01x")(k) }, []string{"gone"}, []string{failed(1, 200, 12, "grpc: compressed messages are not accepted here"), "RST 1 NO_ERROR"}},
		"format":               {nil, raw(false, "\x02\x00\x00\x00\x01x"), []string{"gone"}, []string{failed(1, 200, 13, "grpc: received unexpected payload format 2"), "RST 1 NO_ERROR"}},
		"long":                 {nil, raw(false, "\x00\x01\x00\x00\x01x"), []string{"gone"}, []string{failed(1, 200, 8, "grpc: received message larger than max (16777217 vs. 100)"), "RST 1 NO_ERROR"}},
		"part":                 {nil, raw(true, "\x00\x00\x00\x00\x01"), []string{"gone"}, []string{failed(1, 200, 13, "unexpected EOF")}},
		"part of a prefix":     {nil, raw(true, "\x00\x00"), []string{"gone"}, []string{failed(1, 200, 13, "unexpected EOF")}},
		"second is cut": {nil, raw(true, "\x00\x00\x00\x00\x01a\x00\x00\x00\x00\x02b"), []string{"message a", "gone"},
			[]string{failed(1, 200, 13, "unexpected EOF")}},
		"longer than announced":  {fields{long}, raw(false, "\x00\x00\x00\x00\x03abc"), []string{"gone"}, rst(1, protocol)},
		"shorter than announced": {fields{long}, raw(true, "\x00\x00\x00\x00\x01a"), []string{"message a", "gone"}, rst(1, protocol)},
		"as announced":           {fields{long}, raw(true, "\x00\x00\x00\x00\x02ab"), []string{"message ab", "done"}, nil},
		"reset":                  {nil, func(k *talk) { raw(false, "\x00\x00")(k); _ = k.WriteRSTStream(1, http2.ErrCodeCancel) }, []string{"gone"}, nil},
		"trailers":               {nil, func(k *talk) { k.message(1, false, "a"); k.open(1, true, fields{{"x-t", "1"}}) }, []string{"message a", "done"}, nil},
		"trailers without end":   {nil, func(k *talk) { k.message(1, false, "a"); k.open(1, false, fields{{"x-t", "1"}}) }, []string{"message a", "gone"}, rst(1, protocol)},
		"data after the end":     {nil, func(k *talk) { k.message(1, true, "a"); k.message(1, false, "b") }, []string{"message a", "done", "gone"}, rst(1, closed)},
		"window":                 {nil, func(k *talk) { _ = k.WriteWindowUpdate(1, maxWindow) }, []string{"gone"}, rst(1, flow)},
	} {
		t.Run(name, func(t *testing.T) {
			events := newEventReceiver()
			s, l, _ := start(t, "tcp", Options{Methods: map[string]Handler{both: NewDuplexHandler(100, events.open), echo: methods()[echo]}})
			k := speakDuplex(t, l, c.more...)
			c.do(k)
			k.hears(c.hear...)
			events.expect(t, c.want...)
			k.call(3)
			k.hears(answered(3)...)
			(<-events.ready).End()
			k.call(5)
			for got := ""; got != answered(5)[2]; {
				if got = k.hear(); got == "end" {
					t.Fatal("the connection ended")
				}
			}
			if len(events.events) > 0 {
				t.Error(<-events.events)
			}
			if n := heldByCalls(s); n != 0 {
				t.Errorf("%d bytes held", n)
			}
		})
	}
}

// Floods of frames that carry no message, of tiny messages and of calls are cut off.
func TestDuplexFloods(t *testing.T) {
	o, events := withEvents(Options{})
	o.Methods[both] = NewDuplexHandler(maxBoth, func(d *Duplex) DuplexReceiver { return echoReceiver{d} })
	failing := "/test.Test/Failing"
	o.Methods[failing] = NewDuplexHandler(maxBoth, func(d *Duplex) DuplexReceiver {
		d.Fail(codes.Unavailable, "")
		return events
	})
	_, l, r := start(t, "tcp", o)
	watchMemory(t)
	open := headersFrame(1, 0, callBlock(both))
	data := func(p string) func(int) []byte {
		b := append(appendHead(nil, len(p), frameKind{http2.FrameData, 0}, 1), p...)
		return func(i int) []byte {
			if i == 0 {
				return append(append([]byte{}, open...), b...)
			}
			return b
		}
	}
	id := func(i int) uint32 { return uint32(2*i + 1) }
	for name, next := range map[string]func(int) []byte{
		"empty DATA": data(""),
		"bytes": func(i int) []byte {
			if i == 0 {
				return data("\x00\x00\x01\x00\x00")(0)
			}
			return data("x")(1)
		},
		"empty messages": data("\x00\x00\x00\x00\x00"),
		"many in one":    data(strings.Repeat("\x00\x00\x00\x00\x00", 3000)),
		"tiny messages":  data("\x00\x00\x00\x00\x0512345"),
		"calls":          func(i int) []byte { return headersFrame(id(i), 0, callBlock(failing)) },
		"resets": func(i int) []byte {
			return appendReset(headersFrame(id(i), 0, callBlock(both)), id(i), http2.ErrCodeCancel)
		},
		"ends": func(i int) []byte { return headersFrame(id(i), 1, callBlock(both)) },
		"PING answers": func(int) []byte {
			return append(appendHead(nil, 8, frameKind{http2.FramePing, 1}, 0), "d\x00\x00\x00\x00\x00\x00\x01"...)
		},
	} {
		before := r.of("enhance_your_calm")
		if code := attack(t, l, true, 16<<20, next); code != http2.ErrCodeEnhanceYourCalm {
			t.Errorf("%s: ended by %v", name, code)
		}
		if r.of("enhance_your_calm") == before {
			t.Errorf("%s: not counted", name)
		}
	}
}

// A client may stay silent between messages, but not within one.
func TestDuplexSlowMessage(t *testing.T) {
	o, events := withEvents(Options{Limits: Limits{MessageTimeout: 50 * time.Millisecond}})
	_, l, r := start(t, "tcp", o)
	k := speakDuplex(t, l)
	d := <-events.ready
	k.open(3, false, good) // times out after the idle stream was checked
	k.hears(failed(3, 200, 1, "context canceled"), "RST 3 NO_ERROR")
	k.message(1, false, "first")
	events.expect(t, "message first")
	_ = k.WriteData(1, false, []byte{0, 0, 0, 0})
	k.hears(failed(1, 200, 1, "context canceled"), "RST 1 NO_ERROR")
	events.expect(t, "gone")
	if r.of(TooSlow) != 2 || d.Send(text("")) == nil {
		t.Errorf("counted %v", r.n)
	}
}

// A client that does not open its window gets no more messages, and the call ends.
func TestDuplexUnread(t *testing.T) {
	o, events := withEvents(Options{Limits: Limits{MessageTimeout: 50 * time.Millisecond}})
	s, l, _ := start(t, "tcp", o)
	k := speakDuplex(t, l)
	d := <-events.ready
	message := text(strings.Repeat("x", 10_000))
	sent := 0
	for ; d.Send(message) == nil; sent++ {
		if sent > 1000 {
			t.Fatal("no end")
		}
	}
	if most := maxDuplexUnsent/len(message) + firstWindow/len(message) + 2; sent > most {
		t.Errorf("%d messages, want at most %d", sent, most)
	}
	for got := k.hear(); got != "RST 1 CANCEL"; got = k.hear() {
		if got == "end" {
			t.Fatal("the connection ended")
		}
	}
	events.expect(t, "gone")
	if n := heldByCalls(s); n != 0 {
		t.Errorf("%d bytes held", n)
	}
}

// A client that reads nothing is cut off.
func TestDuplexClientNeverReads(t *testing.T) {
	o, events := withEvents(Options{Limits: Limits{WriteTimeout: 200 * time.Millisecond}})
	_, l, r := start(t, "tcp", o)
	watchMemory(t)
	k := speakDuplex(t, l)
	_ = k.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow})
	_ = k.WriteWindowUpdate(0, maxWindow-firstWindow)
	k.message(1, false, "wide")
	events.expect(t, "message wide")
	d := <-events.ready
	message := text(strings.Repeat("x", 10_000))
	for d.Send(message) == nil {
	}
	events.expect(t, "gone")
	eventually(t, "cut", func() bool { return r.of(Cut)+r.of("enhance_your_calm") > 0 })
}

// What a client has sent of its messages is charged, and limited for all of them together.
func TestDuplexPartsAreCharged(t *testing.T) {
	events := newEventReceiver()
	s, l, r := start(t, "tcp", Options{
		Limits: Limits{Unfinished: 4 << 20}, Methods: map[string]Handler{both: NewDuplexHandler(16<<20, events.open)},
	})
	k := speakDuplex(t, l)
	_ = k.WriteData(1, false, append([]byte{0, 0, 0x10, 0, 0}, make([]byte, 10_000)...))
	eventually(t, "charged", func() bool { return heldByCalls(s) > 10_000+streamSize })
	watchMemory(t)
	attack(t, l, true, 64<<20, func(i int) []byte {
		id := uint32(2*i + 1)
		b := headersFrame(id, 0, callBlock(both))
		b = append(appendHead(b, 16<<10, frameKind{http2.FrameData, 0}, id), 0, 0, 0xff, 0, 0)
		return append(b, make([]byte, 16<<10-5)...)
	})
	if r.of(Unfinished) == 0 {
		t.Errorf("counted %v", r.n)
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
