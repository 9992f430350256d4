package connguard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// eventually waits for the effect of another goroutine.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// refusals returns how often s has refused a connection or request for this reason.
func refusals(s *Guard, reason string) float64 {
	return testutil.ToFloat64(s.guards.refused.WithLabelValues(s.name, reason))
}

func listen(t *testing.T, s *Guard, most int) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return s.Listen(l, most)
}

func dial(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// At the limit, active connections stay and silent ones are closed, the longest silent first.
func TestSilentConnectionsAreCrowdedOut(t *testing.T) {
	s := New(prometheus.NewRegistry()).Guard("test")
	l := listen(t, s, 3)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	busy := dial(t, l)
	echo := func() error {
		if _, err := busy.Write([]byte{1}); err != nil {
			return err
		}
		_, err := io.ReadFull(busy, make([]byte, 1))
		return err
	}
	var idle []net.Conn
	for i := range 20 {
		idle = append(idle, dial(t, l))
		eventually(t, "accepted", func() bool {
			return refusals(s, CrowdedOut) == float64(max(0, i+2-3)) && testutil.ToFloat64(s.guards.open.WithLabelValues("test")) == float64(min(3, i+2))
		})
		if err := echo(); err != nil {
			t.Fatalf("the busy connection, after %d idle ones: %v", i+1, err)
		}
	}
	if n := testutil.ToFloat64(s.guards.open.WithLabelValues("test")); n != 3 {
		t.Errorf("%v open, not 3", n)
	}
	for i, c := range idle[:18] {
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "reset") {
			t.Errorf("idle connection %d is open: %v", i, err)
		}
	}
	for _, c := range append(idle, busy) {
		c.Close()
	}
	eventually(t, "closed ones are forgotten", func() bool { return testutil.ToFloat64(s.guards.open.WithLabelValues("test")) == 0 })
}

// serveGRPC serves health on a guarded listener.
func serveGRPC(t *testing.T) (*Guard, net.Listener) {
	t.Helper()
	s := New(prometheus.NewRegistry()).Guard("test")
	l := listen(t, s, 100)
	g := grpc.NewServer(grpc.Creds(s.Credentials(nil)), grpc.ConnectionTimeout(300*time.Millisecond), grpc.MaxConcurrentStreams(4), grpc.MaxHeaderListSize(4096))
	healthpb.RegisterHealthServer(g, health.NewServer())
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	return s, l
}

func TestHonestCallsAreNotCounted(t *testing.T) {
	s, l := serveGRPC(t)
	for range 3 {
		c, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		for range 50 {
			if _, err := healthpb.NewHealthClient(c).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		w, err := healthpb.NewHealthClient(c).Watch(ctx, &healthpb.HealthCheckRequest{})
		if err == nil {
			_, err = w.Recv()
		}
		cancel()
		if err := errors.Join(err, c.Close()); err != nil {
			t.Fatal(err)
		}
	}
	dial(t, l).Close() // a probe
	eventually(t, "all closed", func() bool { return testutil.ToFloat64(s.guards.open.WithLabelValues("test")) == 0 })
	if n := testutil.CollectAndCount(s.guards.refused); n != 0 {
		t.Errorf("%d kinds of refusals counted", n)
	}
}

// speak opens an HTTP/2 connection by hand.
func speak(t *testing.T, l net.Listener) (net.Conn, *http2.Framer) {
	t.Helper()
	c := dial(t, l)
	f := http2.NewFramer(c, c)
	_, err := io.WriteString(c, http2.ClientPreface)
	if err := errors.Join(err, f.WriteSettings()); err != nil {
		t.Fatal(err)
	}
	return c, f
}

// block returns the header block of a call with n additional headers.
func block(n int) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", "/grpc.health.v1.Health/Watch"}, {":authority", "x"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
		_ = e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	for i := range n {
		_ = e.WriteField(hpack.HeaderField{Name: fmt.Sprintf("x-%d", i), Value: strings.Repeat("v", 100)})
	}
	return b.Bytes()
}

func TestBrokenHTTP2IsCounted(t *testing.T) {
	headers := func(f *http2.Framer, id uint32, b []byte) error {
		return f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: b, EndHeaders: true})
	}
	for name, tt := range map[string]struct {
		reason string
		do     func(net.Conn, *http2.Framer) error
	}{
		"headers too large": {"frame_size_error", func(_ net.Conn, f *http2.Framer) error { return headers(f, 1, block(60)) }},
		"too many streams": {"refused_stream", func(_ net.Conn, f *http2.Framer) error {
			var errs []error
			for i := range 5 {
				errs = append(errs, headers(f, uint32(2*i+1), block(0)))
			}
			return errors.Join(errs...)
		}},
		"pings": {"enhance_your_calm", func(_ net.Conn, f *http2.Framer) error {
			var err error
			for i := 0; i < 10 && err == nil; i++ { // an error: cut off already
				err = f.WritePing(false, [8]byte{1})
			}
			return nil
		}},
		"a continuation of nothing": {Cut, func(_ net.Conn, f *http2.Framer) error { return f.WriteContinuation(1, true, block(0)) }},
		"no frames at all": {Cut, func(c net.Conn, _ *http2.Framer) error {
			_, err := c.Write(bytes.Repeat([]byte{0xff}, 100))
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s, l := serveGRPC(t)
			c, f := speak(t, l)
			go func() { _, _ = io.Copy(io.Discard, c) }()
			if err := tt.do(c, f); err != nil {
				t.Fatal(err)
			}
			eventually(t, "counted as "+tt.reason, func() bool { return refusals(s, tt.reason) >= 1 })
		})
	}
}

func TestNoPreface(t *testing.T) {
	for name, text := range map[string]string{"another protocol": strings.Repeat("GET / HTTP/1.1\r\n", 3), "half a preface": "PRI * HTTP"} {
		t.Run(name, func(t *testing.T) {
			s, l := serveGRPC(t)
			c := dial(t, l)
			if _, err := io.WriteString(c, text); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Read(make([]byte, 100)); err == nil {
				t.Error("it was answered")
			}
			eventually(t, "counted", func() bool { return refusals(s, NotHTTP2) == 1 })
		})
	}
}

// The scanner finds the same frames in whatever pieces they are written.
func TestFramesInPieces(t *testing.T) {
	var b bytes.Buffer
	f := http2.NewFramer(&b, nil)
	for i := range 20 {
		_ = f.WriteData(1, false, make([]byte, i*7))
		_ = f.WriteRSTStream(1, http2.ErrCode(i%3))
		_ = f.WritePing(true, [8]byte{7, 7, 7, 7, 7, 7, 7, 7})
		_ = f.WriteGoAway(5, http2.ErrCode(i%4), []byte("debug"))
		_ = f.WriteSettings()
	}
	for _, piece := range []int{1, 2, 3, 8, 9, 10, 13, 100, b.Len()} {
		var h frames
		var got []string
		for rest := b.Bytes(); len(rest) > 0; {
			n := min(piece, len(rest))
			h.scan(rest[:n], func(f *frame) {
				if typ := f.typ(); typ == http2.FrameRSTStream || typ == http2.FrameGoAway {
					got = append(got, fmt.Sprint(typ, f.code()))
				}
			})
			rest = rest[n:]
		}
		for i := range 20 {
			if len(got) != 40 || got[2*i] != fmt.Sprint(http2.FrameRSTStream, http2.ErrCode(i%3)) || got[2*i+1] != fmt.Sprint(http2.FrameGoAway, http2.ErrCode(i%4)) {
				t.Fatalf("in pieces of %d: %q", piece, got)
			}
		}
	}
}

// The memory of endless calls is limited. Connections that hold it are closed, honest ones are not.
func TestUnfinishedCallsAreBounded(t *testing.T) {
	s, l := serveGRPC(t)
	c, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ask := func() {
		t.Helper()
		if _, err := healthpb.NewHealthClient(c).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	ask()
	others := s.guards.account.Open()
	others.Charge(maxKept)
	conn, f := speak(t, l)
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	for i := 0; i < 100 && err == nil; i++ { // what is taken back is held no more
		id := uint32(2*i + 1)
		err = errors.Join(f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block(0), EndHeaders: true}), f.WriteRSTStream(id, http2.ErrCodeCancel))
	}
	ask()
	conn2, f := speak(t, l)
	go func() { _, _ = io.Copy(io.Discard, conn2) }()
	for i := 0; i < 4 && err == nil; i++ {
		id := uint32(2*i + 1)
		err = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block(0), EndHeaders: true})
		// Parts of a message of 1 MiB: a message that is too long would end its call and release its memory.
		for range 3 {
			err = errors.Join(err, f.WriteData(id, false, append([]byte{0, 0, 16, 0, 0}, make([]byte, 16<<10-5)...)))
		}
	}
	eventually(t, "cut", func() bool { return refusals(s, Unfinished) >= 1 })
	conn.Close()
	eventually(t, "let go", func() bool { return s.guards.account.Held() < maxKept+1000 })
	ask()
}

// An idle connection that was served is not replaced by new ones that were not, however many there are.
func TestServedConnectionsStay(t *testing.T) {
	s, l := serveGRPC(t) // bound: 100
	c, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	client := healthpb.NewHealthClient(c)
	if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	dead := refusals(s, CrowdedOut)
	for i := 0; refusals(s, CrowdedOut) < dead+300; i++ {
		conn, _ := speak(t, l)
		go func() { _, _ = io.Copy(io.Discard, conn) }()
		if i%32 == 31 {
			time.Sleep(time.Millisecond) // the kernel drops what comes faster than it is accepted
		}
	}
	if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}
}

// speakTo opens an HTTP/2 connection to a gRPC server and sends b.
func speakTo(t *testing.T, b ...[]byte) (*Guard, net.Conn) {
	t.Helper()
	gates := New(prometheus.NewRegistry())
	gates.stall = 300 * time.Millisecond
	s := gates.Guard("test")
	l := listen(t, s, 100)
	g := grpc.NewServer(grpc.Creds(s.Credentials(nil)), grpc.MaxHeaderListSize(128<<10))
	healthpb.RegisterHealthServer(g, health.NewServer())
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	c, _ := speak(t, l)
	go func() { _, _ = io.Copy(io.Discard, c) }()
	for _, b := range b {
		_, _ = c.Write(b)
		time.Sleep(gates.stall / 3)
	}
	return s, c
}

// framed returns frames.
func framed(t *testing.T, write func(f *http2.Framer) error) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := write(http2.NewFramer(&b, nil)); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// An incomplete frame or header block ends the connection, and nothing stays charged.
func TestStalledConnectionsEnd(t *testing.T) {
	open := framed(t, func(f *http2.Framer) error {
		return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(0)})
	})
	whole := framed(t, func(f *http2.Framer) error {
		return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(0), EndHeaders: true})
	})
	more := framed(t, func(f *http2.Framer) error { return f.WriteContinuation(1, false, []byte("\x00\x01a\x00")) })
	ping := framed(t, func(f *http2.Framer) error { return f.WritePing(false, [8]byte{}) })
	for name, tt := range map[string]struct {
		say     [][]byte
		stalled float64
	}{
		"a block without an end":       {[][]byte{open}, 1},
		"one that trickles":            {[][]byte{open, more, more, more, more}, 1},
		"half a frame":                 {[][]byte{whole[:len(whole)-1]}, 1},
		"half a head":                  {[][]byte{{0, 0}}, 1},
		"a call without an end":        {[][]byte{whole}, 0},
		"frames that come in halves":   {[][]byte{ping[:3], append(ping[3:], ping[:3]...), append(ping[3:], ping[:10]...), append(ping[10:], ping[:3]...), ping[3:]}, 0},
		"nothing after the settings":   {nil, 0},
		"a frame, and the rest of one": {[][]byte{whole[:5], whole[5:]}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s, c := speakTo(t, tt.say...)
			time.Sleep(2 * s.guards.stall)
			if n := refusals(s, Stalled); n != tt.stalled {
				t.Errorf("%v counted", n)
			}
			c.Close()
			eventually(t, "let go", func() bool { return s.guards.account.Held() == 0 })
		})
	}
}
