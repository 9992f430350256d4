package h2

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
)

// answer is as long as a usual RateLimitResponse with one descriptor.
const answer = "\x08\x01\x12\x12\x08\x01\x12\x06\x08\xc0\x84\x3d\x10\x04\x18\xbf\x84\x3d\x22\x02\x08\x3c"

// message is as long as a request of one descriptor with two entries.
var message = strings.Repeat("q", 60)

type constant struct{}

func (constant) Serve(c *Stream)        { c.Reply(constant{}) }
func (constant) Append(b []byte) []byte { return append(b, answer...) }

// servers are the servers to compare, each in its own process.
var servers = map[string]func(net.Listener) error{
	"loop": func(l net.Listener) error {
		return NewInlineServer(Options{Methods: map[string]Handler{echo: constant{}}}).Serve(l)
	},
	"late": func(l net.Listener) error {
		calls := make(chan *Stream, 1000)
		go func() {
			for c := range calls {
				c.Reply(constant{})
			}
		}()
		return NewInlineServer(Options{Methods: map[string]Handler{echo: method(func(c *Stream) { calls <- c })}}).Serve(l)
	},
	"floor":   serveFloor,
	"grpc-go": serveGRPC,
}

// serveFloor is the minimal loop over the Framer: it treats every stream that ends as the same call, and ignores
// headers, windows and limits.
func serveFloor(l net.Listener) error {
	for {
		nc, err := l.Accept()
		if err != nil {
			return err
		}
		go floor(nc)
	}
}

func floor(nc net.Conn) {
	defer nc.Close()
	r, w := bufio.NewReaderSize(nc, 64<<10), bufio.NewWriterSize(nc, 64<<10)
	f := http2.NewFramer(w, r)
	f.SetReuseFrames()
	if _, err := io.ReadFull(r, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	_ = f.WriteSettings()
	_ = f.WriteWindowUpdate(0, 1<<30)
	dec := hpack.NewDecoder(4096, func(hpack.HeaderField) {})
	message := append([]byte{0, 0, 0, 0, byte(len(answer))}, answer...)
	for {
		if r.Buffered() == 0 {
			if w.Flush() != nil {
				return
			}
		}
		frame, err := f.ReadFrame()
		if err != nil {
			return
		}
		switch frame := frame.(type) {
		case *http2.HeadersFrame:
			_, _ = dec.Write(frame.HeaderBlockFragment())
			_ = dec.Close()
		case *http2.DataFrame:
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: frame.StreamID, BlockFragment: []byte("\x88\x0f\x10\x10application/grpc"), EndHeaders: true})
			_ = f.WriteData(frame.StreamID, false, message)
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: frame.StreamID, BlockFragment: []byte("\x00\x0bgrpc-status\x010"), EndHeaders: true, EndStream: true})
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				_ = f.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !frame.IsAck() {
				_ = f.WritePing(true, frame.Data)
			}
		}
	}
}

func serveGRPC(l net.Listener) error {
	g := grpc.NewServer(grpc.ForceServerCodec(bytesCodec{}), grpc.NumStreamWorkers(32))
	g.RegisterService(&grpc.ServiceDesc{ServiceName: "test.Test", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
		MethodName: "Echo",
		Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			var in string
			err := decode(&in)
			out := answer
			return &out, err
		},
	}}}, nil)
	return g.Serve(l)
}

// TestServe is not a test, but the process that BenchmarkLoop starts.
func TestServe(t *testing.T) {
	kind, address, ok := strings.Cut(os.Getenv("H2_BENCH_SERVE"), " ")
	if !ok {
		return // only a process that BenchmarkLoop starts does anything
	}
	l, err := net.Listen("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = servers[kind](tcp) }()
	for { // reports the port and the processor time so far to each client
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		fmt.Fprintln(c, tcp.Addr(), u.Utime.Nano()+u.Stime.Nano())
		c.Close()
	}
}

// BenchmarkLoop reports the processor time per call of a server with a constant response, with 1 and 64 calls in
// flight, next to grpc-go and the floor. The client costs about as much as the loop, and is not counted.
func BenchmarkLoop(b *testing.B) {
	for _, kind := range []string{"floor", "loop", "late", "grpc-go"} {
		for _, flight := range []int{1, 64} {
			b.Run(fmt.Sprint(kind, "/", flight), func(b *testing.B) {
				look := startServer(b, kind)
				address, _ := look()
				c := newRawClient(b, address)
				c.calls(b, 100*flight, flight)
				_, before := look()
				b.ResetTimer()
				c.calls(b, b.N, flight)
				b.StopTimer()
				_, after := look()
				b.ReportMetric(float64(after-before)/float64(b.N), "cpu-ns/call")
			})
		}
	}
}

// startServer starts a process. look returns its address and its processor time.
func startServer(b *testing.B, kind string) (look func() (string, time.Duration)) {
	control := b.TempDir() + "/s"
	cmd := exec.Command(os.Args[0], "-test.run=^TestServe$")
	cmd.Env = append(os.Environ(), "H2_BENCH_SERVE="+kind+" "+control)
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return func() (address string, used time.Duration) {
		eventually(b, "the server answers", func() bool {
			c, err := net.Dial("unix", control)
			if err != nil {
				return false
			}
			defer c.Close()
			_, err = fmt.Fscan(c, &address, &used)
			return err == nil
		})
		return address, used
	}
}

// rawClient sends calls that differ only in their stream number, and counts the streams that end.
type rawClient struct {
	conn net.Conn
	call []byte // HEADERS and DATA
	head int    // bytes of HEADERS
	id   uint32
	in   []byte
	have int
	got  int64 // bytes of DATA, for windows
}

func newRawClient(b testing.TB, address string) *rawClient {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() })
	hello(b, conn)
	c := &rawClient{conn: conn, id: 1, in: make([]byte, 64<<10)}
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range envoyHeaders {
		_ = enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1], Sensitive: f[0] == ":path"})
	}
	first := append(appendHead(nil, block.Len(), frameKind{http2.FrameHeaders, http2.FlagHeadersEndHeaders}, c.id), block.Bytes()...)
	block.Reset()
	for _, f := range envoyHeaders { // the table has them now
		_ = enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1], Sensitive: f[0] == ":path"})
	}
	c.call = append(appendHead(nil, block.Len(), frameKind{http2.FrameHeaders, http2.FlagHeadersEndHeaders}, 0), block.Bytes()...)
	c.head = len(c.call)
	data := append([]byte{0, 0, 0, 0, byte(len(message))}, message...)
	c.call = append(appendHead(c.call, len(data), frameKind{http2.FrameData, http2.FlagDataEndStream}, 0), data...)
	first = append(appendWindow(first, 0, 1<<30), c.call[c.head:]...)
	putHead(first[len(first)-len(data)-frameHead:], len(data), frameKind{http2.FrameData, http2.FlagDataEndStream}, c.id)
	c.id += 2
	if _, err := conn.Write(first); err != nil {
		b.Fatal(err)
	}
	c.await(b, 1)
	return c
}

// envoyHeaders are the headers of Envoy's calls. The path is never added to the table.
var envoyHeaders = [][2]string{
	{":method", "POST"}, {":path", echo}, {":authority", "keyward"}, {":scheme", "http"}, {"te", "trailers"}, {"grpc-timeout", "9S"},
	{"content-type", "application/grpc"}, {"x-envoy-internal", "true"}, {"x-forwarded-for", "10.1.2.3"}, {"x-envoy-expected-rq-timeout-ms", "20"},
}

// calls makes n calls with the given number in flight.
func (c *rawClient) calls(b testing.TB, n, flight int) {
	var out []byte
	for send, open := n, 0; send > 0 || open > 0; {
		out = out[:0]
		for ; open < flight && send > 0; open, send = open+1, send-1 {
			at := len(out)
			out = append(out, c.call...)
			putHead(out[at:], c.head-frameHead, frameKind{http2.FrameHeaders, http2.FlagHeadersEndHeaders}, c.id)
			putHead(out[at+c.head:], len(c.call)-c.head-frameHead, frameKind{http2.FrameData, http2.FlagDataEndStream}, c.id)
			c.id += 2
		}
		if len(out) > 0 {
			if _, err := c.conn.Write(out); err != nil {
				b.Fatal(err)
			}
		}
		open -= c.await(b, 1)
	}
}

// await reads until at least the given number of streams have ended, and returns their number.
func (c *rawClient) await(b testing.TB, n int) (ended int) {
	for ended < n {
		read, err := c.conn.Read(c.in[c.have:])
		if err != nil {
			b.Fatal(err)
		}
		c.have += read
		rest := c.in[:c.have]
		for len(rest) >= frameHead && len(rest) >= frameHead+payload(rest) {
			size := payload(rest)
			switch http2.FrameType(rest[3]) {
			case http2.FrameHeaders:
				ended += int(rest[4] & 1)
			case http2.FrameData:
				c.got += int64(size)
			case http2.FrameGoAway, http2.FrameRSTStream:
				b.Fatalf("refused: %q", rest[:frameHead+size])
			}
			rest = rest[frameHead+size:]
		}
		c.have = copy(c.in, rest)
	}
	if c.got > 1<<29 {
		c.got = 0
		_, _ = c.conn.Write(appendWindow(nil, 0, 1<<29))
	}
	return ended
}
