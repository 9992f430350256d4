package h2

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/keyward/keyward/internal/budget"
)

// keyed returns a header block with a value of n bytes for x-a, which does not fit into the table.
func keyed(method string, n int) []byte {
	return append(callBlock(method), literal("x-a", strings.Repeat("a", n))...)
}

// literal returns a field that is not added to the table.
func literal(name, value string) []byte {
	b := appendLength([]byte{0x10}, len(name))
	b = appendLength(append(b, name...), len(value))
	return append(b, value...)
}

// blockFrames returns a header block in as many frames as it needs.
func blockFrames(id uint32, flags http2.Flags, block []byte) []byte {
	n := min(len(block), minFrame)
	if n < len(block) {
		b := append(appendHead(nil, n, frameKind{http2.FrameHeaders, flags}, id), block[:n]...)
		for block = block[n:]; len(block) > minFrame; block = block[minFrame:] {
			b = append(appendHead(b, minFrame, frameKind{http2.FrameContinuation, 0}, id), block[:minFrame]...)
		}
		return append(appendHead(b, len(block), frameKind{http2.FrameContinuation, http2.FlagContinuationEndHeaders}, id), block...)
	}
	return headersFrame(id, flags, block)
}

// heard sends a PING and waits for its acknowledgement, so that everything before it is processed. It returns false
// if the connection ended.
func heardPing(t *testing.T, f *http2.Framer) bool {
	t.Helper()
	_ = f.WritePing(false, [8]byte{1})
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return false
		}
		if ping, is := frame.(*http2.PingFrame); is && ping.IsAck() {
			return true
		}
	}
}

// A call is charged for the headers that it keeps, and keeps at most KeptHeader.Max bytes of each.
func TestHeadersAreCharged(t *testing.T) {
	s, l, _ := start(t, "tcp", Options{Headers: []KeptHeader{{Name: "x-a"}, {Name: "x-b", Max: 16}}})
	conn, f := speak(t, l)
	base := func() int64 { heardPing(t, f); return heldByCalls(s) }
	for i, tt := range []struct{ a, b int }{{0, 0}, {1000, 0}, {100_000, 0}, {0, 16}, {0, 17}, {0, 60_000}, {50_000, 50_000}} {
		id := uint32(2*i + 1)
		before := base()
		_, _ = conn.Write(blockFrames(id, 0, append(keyed(echo, tt.a), literal("x-b", strings.Repeat("b", tt.b))...)))
		want := int64(callSize + tt.a + min(tt.b, 17))
		if got := base() - before; got < want || got > want+keepMessageSize {
			t.Errorf("%+v: %d bytes charged, not %d", tt, got, want)
		}
		_ = f.WriteRSTStream(id, http2.ErrCodeCancel)
		if after := base(); after != before {
			t.Errorf("%+v: %d bytes charged after its end, %d before", tt, after, before)
		}
	}
}

// Incomplete calls with long headers end the connection before they take much memory.
func TestCallsWithLongHeaders(t *testing.T) {
	_, l, r := start(t, "tcp", Options{Headers: []KeptHeader{{Name: "x-a"}}, Limits: Limits{Unfinished: 8 << 20}})
	watchMemory(t)
	block := keyed(echo, 126_000)
	attack(t, l, true, 400<<20, func(i int) []byte { return blockFrames(uint32(2*i+1), 0, block) })
	if r.of(Unfinished) != 1 {
		t.Errorf("%v", r.n)
	}
}

// Complete calls that stay open because their response does not end are charged, too.
func TestStreamsAreCharged(t *testing.T) {
	s, l, r := start(t, "tcp", Options{Headers: []KeptHeader{{Name: "x-a"}}, Limits: Limits{Unfinished: 4 << 20}, Methods: map[string]Handler{
		echo: method(func(k *Stream) {
			go func() {
				_ = k.Send(text("first"))
				<-k.Done()
				k.End()
			}()
		}),
	}})
	watchMemory(t)
	block := keyed(echo, 30_000)
	attack(t, l, true, 100<<20, func(i int) []byte {
		id := uint32(2*i + 1)
		return append(appendHead(blockFrames(id, 0, block), prefix, frameKind{http2.FrameData, http2.FlagDataEndStream}, id), 0, 0, 0, 0, 0)
	})
	eventually(t, "cut", func() bool { return r.of(Unfinished) == 1 })
	eventually(t, "let go", func() bool { return s.account.Held() == 0 })
}

// A header block or frame that is not complete in time ends the connection; other slow calls do not.
func TestStalled(t *testing.T) {
	const patience = 300 * time.Millisecond
	call := callBlock(echo)
	data := append(appendHead(nil, prefix+100, frameKind{http2.FrameData, 0}, 1), 0, 0, 0, 0, 200)
	open := append(appendHead(nil, len(call), frameKind{http2.FrameHeaders, 0}, 1), call...)
	more := append(appendHead(nil, 4, frameKind{http2.FrameContinuation, 0}, 1), "\x00\x01a\x00"...)
	for name, tt := range map[string]struct {
		say   [][]byte // with a third of the patience between
		ended bool
	}{
		"half a frame's head":                   {[][]byte{{0, 0}}, true},
		"half a frame":                          {[][]byte{append(headersFrame(1, 0, call), data...)}, true},
		"a frame that trickles":                 {[][]byte{data[:10], data[10:11], data[11:12], data[12:13], data[13:14]}, true},
		"a block without an end":                {[][]byte{open}, true},
		"a block without an end, that trickles": {[][]byte{open, more, more, more, more, more}, true},
		"a call without an end":                 {[][]byte{headersFrame(1, 0, call)}, false},
		"frames that come in halves": {[][]byte{
			append(headersFrame(1, 0, call), 0, 0), append(headersFrame(1, 1, call)[2:], 0, 0), append(headersFrame(3, 1, call)[2:], 0, 0), append(headersFrame(5, 1, call)[2:], 0, 0), append(headersFrame(7, 1, call)[2:], 0, 0), headersFrame(9, 1, call)[2:],
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &refusals{}
				s := NewInlineServer(Options{Methods: methods(), Refuse: r.add, Limits: Limits{StallTimeout: patience}})
				near, far := net.Pipe()
				s.start(far)
				var ended atomic.Bool
				go func() {
					_, _ = io.Copy(io.Discard, near)
					ended.Store(true)
				}()
				hello(t, near)
				for _, b := range tt.say {
					_, _ = near.Write(b)
					time.Sleep(patience / 3)
				}
				time.Sleep(2 * patience)
				synctest.Wait()
				if ended.Load() != tt.ended || (r.of(Stalled) == 1) != tt.ended {
					t.Errorf("ended: %v, counted: %v", ended.Load(), r.n)
				}
				near.Close()
				if s.gone.Wait(); s.account.Held() != 0 {
					t.Errorf("%d bytes held", s.account.Held())
				}
			})
		})
	}
}

// Many connections that stop in the middle of a header block keep a limited amount together.
func TestBlocksWithoutEnd(t *testing.T) {
	const bound = 2 << 20
	s, l, r := start(t, "tcp", Options{Limits: Limits{Unfinished: bound, StallTimeout: time.Second}})
	block := bytes.Repeat([]byte("\x00\x01a\x00"), 4000)
	say := append(append([]byte{}, settingsFrame...), append(appendHead(nil, len(block), frameKind{http2.FrameHeaders, 0}, 1), block...)...)
	for range 4 {
		say = append(append(say, appendHead(nil, len(block), frameKind{http2.FrameContinuation, 0}, 1)...), block...)
	}
	var most int64
	for range 300 {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, http2.ClientPreface+string(say))
		most = max(most, s.account.Held())
	}
	eventually(t, "all ended", func() bool {
		most = max(most, s.account.Held())
		return r.of(Stalled)+r.of(Unfinished) == 300
	})
	if t.Logf("%d bytes at most, %v", most, r.n); most > 2*bound+1<<20 || r.of(Stalled) == 0 || r.of(Unfinished) == 0 {
		t.Errorf("%d bytes held at most, %v", most, r.n)
	}
}

// Spare memory is released when a connection is idle, and not kept where others need the room.
func TestBuffersShrink(t *testing.T) {
	s, l, _ := start(t, "tcp", Options{})
	c := newRawClient(t, l.Addr().String())
	c.calls(t, 5000, 1000)
	if s.account.Held() < 16<<10 {
		t.Fatalf("%d bytes held after a burst", s.account.Held())
	}
	eventually(t, "shrunk", func() bool { return s.account.Held() < 2<<10 })
	c.calls(t, 100, 10)
}

func TestFullAccountKeepsBuffersSmall(t *testing.T) {
	all := budget.New(1<<20, 8<<10)
	other := all.Open()
	other.Charge(1 << 20) // by another connection
	s, l, r := start(t, "tcp", Options{Account: all})
	c := newRawClient(t, l.Addr().String())
	for range 10 {
		c.calls(t, 1000, 500)
	}
	if held := s.account.Held(); held > 64<<10 || len(r.n) > 0 {
		t.Errorf("%d bytes held, refused %v", held, r.n)
	}
	other.Close()
}

// A header list that decodes to a large size is not kept after its call.
func TestLargeListsAreForgotten(t *testing.T) {
	var h headers
	h.init(&Options{Limits: Limits{}.withDefaults()})
	if _, err := h.unpack(append(callBlock(echo), literal("x-bin", strings.Repeat("!", 100_000))...)); err != nil {
		t.Fatal(err)
	}
	if h.forget(); h.current.invalid != "" || h.current.rejection.message != "" {
		t.Errorf("%d bytes are kept", len(h.current.invalid)+len(h.current.rejection.message))
	}
	enc, list := hpack.NewEncoder(new(bytes.Buffer)), hpack.HeaderField{Name: "x", Value: strings.Repeat("x", 4000)}
	_ = enc.WriteField(list)
	_, _ = h.unpack(append([]byte("\x40\x01x\x7f\xa1\x1e"), strings.Repeat("x", 4000)...))
	_, _ = h.unpack([]byte{0x80 | 62, 0x80 | 62})
	for i := range h.cache {
		if h.cache[i].request.size > cachedListSize {
			t.Errorf("a list of %d bytes is remembered", h.cache[i].request.size)
		}
	}
}

// An integer that is longer than this package decodes may change the table: its block is decoded each time.
func TestOverlongIntegers(t *testing.T) {
	for n := range 9 {
		b := append([]byte{0x0f}, bytes.Repeat([]byte{0x80}, n)...) // a field named by place 15, not put into the table
		b = append(b, 0, 1, 'v', 0x40, 1, 'n', 1, 'v')              // and one that is
		h := headers{}
		h.init(&Options{Limits: Limits{}.withDefaults()})
		if _, err := h.unpack(b); err != nil {
			t.Fatal(n, err)
		}
		if keepsTable(b) {
			t.Errorf("%d bytes continue an integer: it is said to leave the table", n)
		}
	}
	// 0x0f and an index of that many bytes, whose value hides what looks like a field for the table.
	b := append(append([]byte{0x0f}, bytes.Repeat([]byte{0x80}, maxIntegerBytes-1)...), 0, 1, 'v')
	if !keepsTable(b) {
		t.Error("a block that leaves the table is said to change it")
	}
}

// The status of a message with invalid UTF-8 fits into a frame.
func TestLongStatusMessages(t *testing.T) {
	for _, s := range []string{"\xff", "%", "x", "\u20ac", "\U0001F600"} {
		b := appendStatus(nil, 13, strings.Repeat(s, 5000))
		if len(b) > minFrame-100 || len(b) < maxStatusMessage {
			t.Errorf("%q: %d bytes", s, len(b))
		}
	}
}

// A connection counts as served when a call on it has succeeded.
func TestFailuresAreNotServed(t *testing.T) {
	var served atomic.Int32
	_, l, _ := start(t, "tcp", Options{Served: func(net.Conn) { served.Add(1) }})
	conn, f := speak(t, l)
	say := func(id uint32, path string) {
		b := append(headersFrame(id, 0, callBlock(path)), appendHead(nil, prefix+2, frameKind{http2.FrameData, 1}, id)...)
		_, _ = conn.Write(append(b, 0, 0, 0, 0, 2, 'h', 'i'))
		heardPing(t, f)
	}
	for i, path := range []string{fails, "/none/none", fails} {
		if say(uint32(2*i+1), path); served.Load() != 0 {
			t.Errorf("served by %s", path)
		}
	}
	say(99, echo)
	say(101, echo)
	if served.Load() != 1 {
		t.Errorf("served %d times", served.Load())
	}
}

// Late frames are ignored even for more early-answered calls than closedStreams remembers.
func TestManyEarlyAnswers(t *testing.T) {
	_, l, _ := start(t, "tcp", Options{})
	conn, f := speak(t, l)
	var b []byte
	for i := range 200 {
		b = append(b, headersFrame(uint32(2*i+1), 0, callBlock("/a.B/C"))...)
	}
	for i := range 200 { // trailers, and parts of messages
		id := uint32(2*i + 1)
		if i%2 == 0 {
			b = append(b, headersFrame(id, 1, []byte("\x00\x01x\x01y"))...)
		} else {
			b = append(appendHead(b, 4, frameKind{http2.FrameData, 1}, id), "late"...)
		}
	}
	_, _ = conn.Write(b)
	if !heardPing(t, f) {
		t.Error("the connection ended")
	}
}

// An invalid PRIORITY does not affect the call that follows it.
func TestPriorityOfAnIdleStream(t *testing.T) {
	_, l, _ := start(t, "tcp", Options{})
	conn, f := speak(t, l)
	b := binary.BigEndian.AppendUint32(appendHead(nil, 5, frameKind{http2.FramePriority, 0}, 3), 3)
	b = append(append(b, 1), headersFrame(3, 0, callBlock(echo))...)
	_, _ = conn.Write(append(append(b, appendHead(nil, prefix+2, frameKind{http2.FrameData, 1}, 3)...), 0, 0, 0, 0, 2, 'h', 'i'))
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			t.Fatal("not answered: ", err)
		}
		if d, is := frame.(*http2.DataFrame); is && strings.HasSuffix(string(d.Data()), "hi") {
			return
		}
	}
}
