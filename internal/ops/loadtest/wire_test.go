package loadtest

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// A server that renews its connections costs no call.
func TestGoAway(t *testing.T) {
	s := &counting{}
	to := serve(t, s, grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: 30 * time.Millisecond, MaxConnectionAgeGrace: time.Second}))
	r := run(t, newLoad(t, Options{Targets: []Target{to}, Conns: 2}), Phase{Inflight: 8}, 300*time.Millisecond)
	if n := int(s.calls.Load()); r.Errors != n/7 || r.OK == 0 {
		t.Errorf("%d calls, %d failed: %v", n, r.Errors, r.Err)
	}
}

// Nor does it cost the first call of a run that begins as the server ends an idle connection.
func TestGoAwayBeforeTheFirstCall(t *testing.T) {
	to := serve(t, &counting{}, grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: 10 * time.Millisecond}))
	l := newLoad(t, Options{Targets: []Target{to}, Conns: 1})
	if err := l.connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := &round{begin: time.Now(), end: time.Now(), open: make(chan struct{})}
	l.conns[0].enter(r)
	for l.conns[0].usable() {
		time.Sleep(time.Millisecond)
	}
	r.calls.Store(1)
	l.conns[0].ask(time.Now(), true)
	<-r.open
	if got := l.conns[0].exit(); got.OK != 1 {
		t.Errorf("%d ok: %v", got.OK, got.Err)
	}
}

// literalServer keeps no header table, and answers in DATA of two frames with padding, after a header block of two frames.
func literalServer(t *testing.T, calls *atomic.Int64) Target {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = bufio.NewReader(&limited{c, len(http2.ClientPreface)}).Discard(len(http2.ClientPreface))
		f := http2.NewFramer(c, c)
		f.ReadMetaHeaders = hpack.NewDecoder(0, nil)
		_ = f.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0}, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 3})
		for {
			in, err := f.ReadFrame()
			if err != nil {
				return
			}
			h, ok := in.(*http2.MetaHeadersFrame)
			if !ok || h.PseudoValue("path") == "" {
				continue
			}
			calls.Add(1)
			answerInPieces(f, h.StreamID)
		}
	}()
	return Target{Addr: ln.Addr().String()}
}

// limited reads no further than n bytes.
type limited struct {
	net.Conn
	n int
}

func (l *limited) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b[:min(len(b), l.n)])
	l.n -= n
	return n, err
}

func answerInPieces(f *http2.Framer, stream uint32) {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	_ = e.WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
	_ = e.WriteField(hpack.HeaderField{Name: "x-long", Value: strings.Repeat("long", 100)})
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: b.Bytes()[:10], PadLength: 7, Priority: http2.PriorityParam{StreamDep: 0, Weight: 1}})
	_ = f.WriteContinuation(stream, true, b.Bytes()[10:])
	_ = f.WritePing(false, [8]byte{1})
	_ = f.WriteDataPadded(stream, false, []byte{0, 0, 0, 0}, make([]byte, 9))
	_ = f.WriteData(stream, false, []byte{2, 8, 2})
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, EndStream: true, EndHeaders: true, BlockFragment: literal("grpc-status", "0")})
}

func literal(name, value string) []byte {
	return slices.Concat([]byte{0, byte(len(name))}, []byte(name), []byte{byte(len(value))}, []byte(value))
}

func TestAnswersInPieces(t *testing.T) {
	var calls atomic.Int64
	l := newLoad(t, Options{Targets: []Target{literalServer(t, &calls)}, Conns: 1})
	r := run(t, l, Phase{Inflight: 5}, 100*time.Millisecond)
	if r.Over == 0 || r.Over != int(calls.Load()) || r.Errors > 0 {
		t.Errorf("%d calls: %+v", calls.Load(), r)
	}
}

func TestNotHTTP2(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		c, err := ln.Accept()
		if err == nil {
			_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"))
			c.Close()
		}
	}()
	_, err = New(t.Context(), Options{Service: RLS(), Targets: []Target{{Addr: ln.Addr().String()}}, Calls: []LoadCall{{}}, Conns: 1})
	if err == nil || !strings.Contains(err.Error(), "does not speak HTTP/2") {
		t.Error(err)
	}
}

// Repeated blocks are not decoded again, and never taken for what an older table meant.
func TestBlockReader(t *testing.T) {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	r := newBlockReader()
	for i := range 200 {
		want := fmt.Sprint(i / 20)
		b.Reset()
		_ = e.WriteField(hpack.HeaderField{Name: "grpc-status", Value: want}) // the newest entry of the table each time: the same index
		var got Reply
		if err := r.read(b.Bytes(), &got); err != nil || got.Code != want {
			t.Fatalf("block %d: %+v, want %s (%v)", i, got, want, err)
		}
		if i%20 > 2 && len(r.known) == 0 {
			t.Fatal("nothing is remembered")
		}
	}
}
