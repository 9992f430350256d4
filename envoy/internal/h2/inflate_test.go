package h2

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"
)

// gzipped returns b in gzip's format.
func gzipped(b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(b)
	_ = w.Close()
	return out.Bytes()
}

// compressedFrame returns a message with gRPC's prefix and the compressed flag.
func compressedFrame(message []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{1}, uint32(len(message))), message...)
}

// gzipBlock returns the header block of a call with grpc-encoding gzip.
func gzipBlock(method string) []byte {
	return append(callBlock(method), literal("grpc-encoding", "gzip")...)
}

// gzipCall returns the frames of a call with a compressed message.
func gzipCall(id uint32, method string, message []byte) []byte {
	b := headersFrame(id, 0, gzipBlock(method))
	for p := compressedFrame(message); ; p = p[minFrame:] {
		if len(p) <= minFrame {
			return append(appendHead(b, len(p), frameKind{http2.FrameData, http2.FlagDataEndStream}, id), p...)
		}
		b = append(appendHead(b, minFrame, frameKind{http2.FrameData, 0}, id), p[:minFrame]...)
	}
}

// Calls of a client that compresses are answered, in sizes around every limit.
func TestCompressedCalls(t *testing.T) {
	const keep, most = 100_000, 1 << 20
	_, l, r := start(t, "tcp", Options{Limits: Limits{Message: most, KeepMessage: keep}})
	c := client(t, l, grpc.WithDefaultCallOptions(grpc.UseCompressor("gzip")))
	noise := make([]byte, most+1)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	zeros := string(make([]byte, most+1))
	for kind, all := range map[string]string{"zeros": zeros, "noise": string(noise)} {
		for _, n := range []int{0, 1, 100, inflateStep - 1, inflateStep, inflateStep + 1, keep - 1, keep, keep + 1, most / 2, most - 1000, most, most + 1} {
			out, err := ask(t.Context(), c, size, all[:n])
			switch {
			case n > most || kind == "noise" && n == most: // compressed, noise is longer
				if status.Code(err) != codes.ResourceExhausted {
					t.Errorf("%d %s: %q, %v", n, kind, out, err)
				}
			case err != nil || out != fmt.Sprint(min(n, keep)):
				t.Errorf("%d %s: %q, %v", n, kind, out, err)
			}
		}
		if out, err := ask(t.Context(), c, echo, all[:keep]); err != nil || out != all[:keep] {
			t.Errorf("%s: %d bytes returned, %v", kind, len(out), err)
		}
	}
	if r.of(TooLarge) != 3 || len(r.n) != 1 {
		t.Errorf("refused: %v", r.n)
	}
}

// A compressed message of which a part is dropped as it arrives is answered if the rest shows that it is too large to
// be kept, and fails otherwise.
func TestCompressedIsCut(t *testing.T) {
	const keep = 10_000
	_, l, _ := start(t, "tcp", Options{Limits: Limits{KeepMessage: keep}})
	empty := bytes.Repeat(gzipped(nil), 1000)
	for name, tt := range map[string]struct {
		message []byte
		want    string
	}{
		"large at once":             {append(gzipped(make([]byte, keep)), empty...), fmt.Sprint(keep)},
		"large, but only after it":  {append(empty, gzipped(make([]byte, keep))...), "8"},
		"small, in many members":    {append(gzipped([]byte("hi")), empty...), "8"},
		"garbage after enough":      {append(gzipped(make([]byte, keep)), bytes.Repeat([]byte("x"), 2*keep)...), fmt.Sprint(keep)},
		"just as much as is kept":   {gzipped(make([]byte, keep)), fmt.Sprint(keep)},
		"nothing, in a few members": {empty[:100*len(gzipped(nil))], "0"},
		"not compressed":            {nil, fmt.Sprint(keep)},
	} {
		conn, f := speak(t, l)
		call := gzipCall(1, size, tt.message)
		if tt.message == nil {
			call = gzipCall(1, size, make([]byte, keep+10))
			call[len(call)-prefix-keep-10] = 0 // the flag
		}
		_, _ = conn.Write(call)
		if got := answerOf(t, f); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

// answerOf reads the message or the status of the next response.
func answerOf(t *testing.T, f *http2.Framer) string {
	t.Helper()
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		switch frame := frame.(type) {
		case *http2.DataFrame:
			return string(frame.Data()[prefix:])
		case *http2.HeadersFrame:
			if _, rest, found := strings.Cut(string(frame.HeaderBlockFragment()), "grpc-status\x01"); found {
				return rest[:1]
			}
		}
	}
}

// bomb returns a message of about n/1000 bytes whose content has n.
func bomb(n int) []byte {
	var out bytes.Buffer
	w, zeros := gzip.NewWriter(&out), make([]byte, 1<<16)
	for ; n > 0; n -= len(zeros) {
		_, _ = w.Write(zeros[:min(n, len(zeros))])
	}
	_ = w.Close()
	return out.Bytes()
}

// Bombs, one after the other on several connections, are refused and take little memory. The connections stay.
func TestGzipBombs(t *testing.T) {
	s, l, r := start(t, "tcp", Options{Limits: Limits{KeepMessage: 1 << 20, Unfinished: 8 << 20}})
	watchMemory(t)
	one := bomb(64 << 20)
	const conns, calls = 4, 10
	for range conns {
		conn, f := speak(t, l)
		for i := range calls {
			_, _ = conn.Write(gzipCall(uint32(2*i+1), echo, one))
			if got := answerOf(t, f); got != "8" {
				t.Fatalf("status %s", got)
			}
		}
		if !heardPing(t, f) {
			t.Error("the connection ended")
		}
	}
	if r.of(TooLarge) != conns*calls {
		t.Errorf("%v", r.n)
	}
	eventually(t, "let go", func() bool { return heldByCalls(s) == 0 })
}

// A decompressed message is charged until its call is answered, also if the client gives the call up before.
func TestDecompressedIsCharged(t *testing.T) {
	const n = 1 << 20
	calls := make(chan *Stream, 100)
	s, l, r := start(t, "tcp", Options{Limits: Limits{Unfinished: 8 << 20}, Methods: map[string]Handler{echo: method(func(k *Stream) { calls <- k })}})
	watchMemory(t)
	one := bomb(n)
	conn, f := speak(t, l)
	for i, abandon := range []bool{false, true} {
		before := heldByCalls(s)
		_, _ = conn.Write(gzipCall(uint32(2*i+1), echo, one))
		k := <-calls
		if abandon {
			_ = f.WriteRSTStream(uint32(2*i+1), http2.ErrCodeCancel)
		}
		heardPing(t, f)
		if held := heldByCalls(s) - before; held < n || held > 2*n {
			t.Errorf("%d bytes charged for a message of %d, abandoned: %v", held, n, abandon)
		}
		k.Reply(text("hi"))
		eventually(t, "let go", func() bool { return heldByCalls(s) == 0 && s.account.Held() < n/2 })
	}
	for i := range 20 { // more than the account allows
		if _, err := conn.Write(append(gzipCall(uint32(2*i+5), echo, one), appendReset(nil, uint32(2*i+5), http2.ErrCodeCancel)...)); err != nil {
			break
		}
	}
	eventually(t, "cut", func() bool { return r.of(Unfinished) == 1 })
	eventually(t, "let go", func() bool { return s.account.Held() == 0 })
	for len(calls) > 0 {
		(<-calls).Reply(text("hi"))
	}
}

// turnCounter counts what a connection is charged for, and how often it waits for its turn.
type turnCounter struct {
	net.Conn
	spent, waits atomic.Int64
}

func (c *turnCounter) Spend(n int)   { c.spent.Add(int64(n)) }
func (c *turnCounter) Earn(_, _ int) {}
func (c *turnCounter) Start()        {}
func (c *turnCounter) Leave()        {}
func (c *turnCounter) Enter()        { c.waits.Add(1) }

// Decompressing costs turns: for output, and for input that has none.
func TestDecompressingTakesTurns(t *testing.T) {
	counter := &turnCounter{}
	s := NewInlineServer(Options{Methods: methods()})
	for name, tt := range map[string]struct {
		message      []byte
		spent, waits int64 // at least
	}{
		"a small message": {gzipped([]byte("hi")), inflateCost, 1},
		"a bomb":          {bomb(64 << 20), 8 << 20, 1 << 10},
		"empty members":   {bytes.Repeat(gzipped(nil), 10_000), 4 * 200_000, 200},
	} {
		*counter = turnCounter{}
		c := newConn(s, counter)
		k := c.newCall(1)
		k.gzip, k.complete, k.message, k.received = true, true, compressedFrame(tt.message), int64(prefix+len(tt.message))
		c.mu.Lock()
		_, _ = c.inflate(k)
		c.mu.Unlock()
		spent, waits := counter.spent.Load(), counter.waits.Load()
		if spent < tt.spent || spent > 2*tt.spent+inflateStep || waits < tt.waits {
			t.Errorf("%s: %d spent in %d turns", name, spent, waits)
		}
		c.account.Close()
	}
}
