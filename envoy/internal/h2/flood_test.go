package h2

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"runtime/metrics"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// mostMemory is the most memory that the process may use during an attack, including the attackers.
const mostMemory = 64 << 20

// memory returns the memory that this process uses: heap and stacks, including garbage.
func memory() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/unused:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64() + s[1].Value.Uint64() + s[2].Value.Uint64()
}

// watchMemory fails the test if memory rises above the bound before the test ends.
func watchMemory(t *testing.T) {
	runtime.GC() // what other tests have left
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	var most uint64
	done.Go(func() {
		for ctx.Err() == nil {
			most = max(most, memory())
			time.Sleep(2 * time.Millisecond)
		}
	})
	t.Cleanup(func() {
		cancel()
		done.Wait()
		if t.Logf("%d MiB at most", most>>20); most > mostMemory && !raceEnabled {
			t.Error("more than is allowed")
		}
	})
}

// callBlock returns a call's header block that does not change the table.
func callBlock(method string) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for _, f := range append(fields{{":path", method}}, without(":path")...) {
		_ = e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1], Sensitive: true})
	}
	return b.Bytes()
}

func headersFrame(id uint32, flags http2.Flags, block []byte) []byte {
	return append(appendHead(nil, len(block), frameKind{http2.FrameHeaders, flags | http2.FlagHeadersEndHeaders}, id), block...)
}

// attack sends what next returns, up to most bytes, and reads the responses if it reads. It returns the last error of
// RST_STREAM or GOAWAY.
func attack(t *testing.T, l net.Listener, reads bool, most int, next func(i int) []byte) (code http2.ErrCode) {
	t.Helper()
	conn, f := speak(t, l)
	defer conn.Close()
	var done sync.WaitGroup
	if reads {
		done.Go(func() {
			f.SetReuseFrames()
			for {
				frame, err := f.ReadFrame()
				if err != nil {
					return
				}
				switch frame := frame.(type) {
				case *http2.GoAwayFrame:
					code = frame.ErrCode
				case *http2.RSTStreamFrame:
					code = frame.ErrCode
				}
			}
		})
	}
	var out []byte
	for i, sent := 0, 0; sent < most; i++ {
		if out = append(out, next(i)...); len(out) < 32<<10 {
			continue
		}
		_ = conn.SetWriteDeadline(time.Now().Add(20 * time.Second))
		if _, err := conn.Write(out); err != nil {
			if errors.Is(err, io.ErrShortWrite) {
				t.Error(err)
			}
			break
		}
		sent += len(out)
		out = out[:0]
	}
	if reads {
		_ = conn.SetReadDeadline(time.Now().Add(3 * time.Second))
		done.Wait()
	}
	return code
}

// A client that sends endless frames without calls is cut off.
func TestFloods(t *testing.T) {
	_, l, r := start(t, "tcp", Options{})
	watchMemory(t)
	call := callBlock(echo)
	raw := func(t http2.FrameType, flags http2.Flags, id uint32, p string) func(int) []byte {
		b := append(appendHead(nil, len(p), frameKind{t, flags}, id), p...)
		return func(int) []byte { return b }
	}
	after := func(first []byte, then func(int) []byte) func(int) []byte {
		return func(i int) []byte {
			if i == 0 {
				return first
			}
			return then(i)
		}
	}
	id := func(i int) uint32 { return uint32(2*i + 1) }
	for name, next := range map[string]func(int) []byte{
		"PING":          raw(http2.FramePing, 0, 0, "12345678"),
		"PING answers":  raw(http2.FramePing, 1, 0, "12345678"),
		"SETTINGS":      raw(http2.FrameSettings, 0, 0, "\x00\x04\x00\x00\x00\x01"),
		"no SETTINGS":   raw(http2.FrameSettings, 0, 0, ""),
		"SETTINGS acks": raw(http2.FrameSettings, 1, 0, ""),
		"PRIORITY":      raw(http2.FramePriority, 0, 1, "\x00\x00\x00\x05\x01"),
		"WINDOW_UPDATE": raw(http2.FrameWindowUpdate, 0, 0, "\x00\x00\x00\x01"),
		"GOAWAY":        raw(http2.FrameGoAway, 0, 0, "\x00\x00\x00\x00\x00\x00\x00\x00"),
		"unknown":       raw(0xf0, 0, 0, ""),
		"empty DATA":    after(headersFrame(1, 0, call), raw(http2.FrameData, 0, 1, "")),
		"padding":       after(headersFrame(1, 0, call), raw(http2.FrameData, http2.FlagDataPadded, 1, "\x02\x00\x00")),
		"CONTINUATION, empty": after(append(appendHead(nil, len(call), frameKind{http2.FrameHeaders, 0}, 1), call...),
			raw(http2.FrameContinuation, 0, 1, "")),
		"CONTINUATION, long": after(append(appendHead(nil, len(call), frameKind{http2.FrameHeaders, 0}, 1), call...),
			raw(http2.FrameContinuation, 0, 1, string(bytes.Repeat([]byte{0x82}, 16000)))),
		"resets":             func(i int) []byte { return appendReset(headersFrame(id(i), 0, call), id(i), http2.ErrCodeCancel) },
		"calls without end":  func(i int) []byte { return headersFrame(id(i), 0, call) },
		"unknown methods":    func(i int) []byte { return headersFrame(id(i), 1, callBlock("/a.B/C")) },
		"malformed calls":    func(i int) []byte { return headersFrame(id(i), 1, []byte{0x82}) },
		"no messages":        func(i int) []byte { return headersFrame(id(i), 1, call) },
		"DATA after the end": after(headersFrame(1, 1, call), raw(http2.FrameData, 0, 1, "x")),
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

// A client that repeatedly gives up calls being served cannot have more served at once than it may have open.
func TestRapidReset(t *testing.T) {
	var mu sync.Mutex
	var calls []*Stream
	_, l, r := start(t, "tcp", Options{Limits: Limits{Streams: 100}, Methods: map[string]Handler{late: method(func(c *Stream) {
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, c)
	})}})
	watchMemory(t)
	block := callBlock(late)
	code := attack(t, l, true, 4<<20, func(i int) []byte {
		id := uint32(2*i + 1)
		b := headersFrame(id, 0, block)
		b = append(appendHead(b, prefix, frameKind{http2.FrameData, 1}, id), 0, 0, 0, 0, 0)
		return appendReset(b, id, http2.ErrCodeCancel)
	})
	mu.Lock()
	defer mu.Unlock()
	if len(calls) != 100 || code != http2.ErrCodeEnhanceYourCalm || r.of("refused_stream") == 0 {
		t.Errorf("%d calls served, ended by %v, refused %v", len(calls), code, r.n)
	}
	for _, c := range calls {
		c.Reply(text(""))
	}
}

// A client that does not read its responses is limited in bytes, and in time.
func TestUnreadAnswers(t *testing.T) {
	_, l, r := start(t, "tcp", Options{Limits: Limits{WriteTimeout: 300 * time.Millisecond}})
	watchMemory(t)
	for name, m := range map[string]string{"inline": echo, "late": late} {
		block := callBlock(m)
		before := r.of(Cut) + r.of("enhance_your_calm") // more calls than may be open, where late answers are very late
		attack(t, l, false, 1<<30, func(i int) []byte {
			id := uint32(2*i + 1)
			b := appendWindow(headersFrame(id, 0, block), 0, 1<<11)
			return append(appendHead(b, prefix+1000, frameKind{http2.FrameData, 1}, id), append([]byte{0, 0, 0, 1000 >> 8, 1000 & 255}, make([]byte, 1000)...)...)
		})
		eventually(t, name+": cut", func() bool { return r.of(Cut)+r.of("enhance_your_calm") > before })
	}
}

// Header lists that decode to much more than was sent: a field of 4000 bytes in the table, referenced 15,000 times.
func TestHeaderBombs(t *testing.T) {
	_, l, r := start(t, "tcp", Options{})
	watchMemory(t)
	field := append(append([]byte{0x40}, "\x01a\x7f\xa1\x1e"...), bytes.Repeat([]byte{'x'}, 127+0xa1-128+0x1e<<7)...)
	bomb := append(field, bytes.Repeat([]byte{0x80 | 62}, 12000)...)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			attack(t, l, true, 4<<20, func(i int) []byte { return headersFrame(uint32(2*i+1), 1, bomb) })
		})
	}
	all.Wait()
	if r.of("frame_size_error") == 0 { // how many depends on the time that the attackers have
		t.Errorf("refused: %v", r.n)
	}
}

// Incomplete calls: all connections together are limited, and a connection that holds little stays open.
func TestUnfinishedCalls(t *testing.T) {
	_, l, r := start(t, "tcp", Options{})
	watchMemory(t)
	c := client(t, l)
	block := callBlock(echo)
	part := append(appendHead(nil, 16<<10, frameKind{http2.FrameData, 0}, 0), make([]byte, 16<<10)...)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			attack(t, l, true, 64<<20, func(i int) []byte {
				id := uint32(2*i + 1)
				b := append(headersFrame(id, 0, block), part...)
				putHead(b[len(b)-len(part):], 16<<10, frameKind{http2.FrameData, 0}, id)
				copy(b[len(b)-16<<10:], "\x00\x00\x10\x00\x00")
				return b
			})
		})
	}
	for range 100 {
		if out, err := ask(t.Context(), c, echo, "honest"); err != nil || out != "honest" {
			t.Error(out, err)
		}
	}
	all.Wait()
	if r.of(Unfinished) != 4 {
		t.Errorf("%v", r.n)
	}
}

// Any number of connections, each below its share, hold at most twice the limit together.
func TestUnfinishedCallsOfManyConnections(t *testing.T) {
	const bound = 1 << 20
	s, l, r := start(t, "tcp", Options{Limits: Limits{Unfinished: bound}})
	most := int64(0)
	for range 64 {
		conn, f := speak(t, l)
		b := append(headersFrame(1, 0, callBlock(echo)), appendHead(nil, 5, frameKind{http2.FrameData, 0}, 1)...)
		b = append(b, 0, 0, 1, 0, 0)
		for range 5 {
			b = append(append(b, appendHead(nil, 10<<10, frameKind{http2.FrameData, 0}, 1)...), make([]byte, 10<<10)...)
		}
		_, _ = conn.Write(b) // which fails when it was cut already
		_ = f.WritePing(false, [8]byte{1})
		for answered := false; !answered; {
			frame, err := f.ReadFrame()
			ping, is := frame.(*http2.PingFrame)
			answered = err != nil || is && ping.IsAck()
		}
		most = max(most, s.account.Held())
	}
	if t.Logf("%d bytes at most, %d connections cut", most, r.of(Unfinished)); most > 2*bound || r.of(Unfinished) == 0 {
		t.Errorf("%d bytes held, %d connections cut", most, r.of(Unfinished))
	}
}

// Only the usable part of a long message is kept, but its length and completeness are still checked.
func TestKeep(t *testing.T) {
	s, l, r := start(t, "tcp", Options{Limits: Limits{KeepMessage: 1000, Message: 1 << 20}})
	c := client(t, l)
	for n, want := range map[int]int{999: 999, 1000: 1000, 1001: 1000, 100_000: 1000, 1 << 20: 1000} {
		if out, err := ask(t.Context(), c, echo, strings.Repeat("x", n)); err != nil || len(out) != want {
			t.Errorf("%d bytes: %d, %v", n, len(out), err)
		}
	}
	if _, err := ask(t.Context(), c, echo, strings.Repeat("x", 1<<20+1)); status.Code(err) != codes.ResourceExhausted || r.of(TooLarge) != 1 {
		t.Error(err, r.n)
	}
	conn, _ := speak(t, l)
	k := &talk{t: t, conn: conn, Framer: http2.NewFramer(conn, conn), dec: hpack.NewDecoder(4096, nil)}
	k.enc = hpack.NewEncoder(&k.block)
	for i, size := range []int{4999, 5001} {
		id := uint32(2*i + 1)
		k.open(id, false, good)
		body := append([]byte{0, 0, 0, 5000 >> 8, 5000 & 255}, make([]byte, size)...)
		if err := k.WriteData(id, true, body); err != nil {
			t.Fatal(err)
		}
		if got := k.hear(); !strings.Contains(got, "13") {
			t.Errorf("%d of 5000 bytes: %s", size, got)
		}
	}
	if held := heldByCalls(s); held != 0 {
		t.Errorf("%d bytes held", held)
	}
}

// heldByCalls returns the bytes that all connections are charged for calls.
func heldByCalls(s *InlineServer) (n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.mu.conns {
		c.mu.Lock()
		n += c.callBytes
		c.mu.Unlock()
	}
	return n
}

func TestSlowMessage(t *testing.T) {
	_, l, r := start(t, "tcp", Options{Limits: Limits{MessageTimeout: 100 * time.Millisecond}})
	conn, _ := speak(t, l)
	k := &talk{t: t, conn: conn, Framer: http2.NewFramer(conn, conn), dec: hpack.NewDecoder(4096, nil)}
	k.enc = hpack.NewEncoder(&k.block)
	k.open(1, false, good)
	k.message(1, false, "hi")
	k.open(3, false, good)
	k.call(5)
	want := append(answered(5), failed(1, 200, 1, "context canceled"), "RST 1 NO_ERROR", failed(3, 200, 1, "context canceled"), "RST 3 NO_ERROR")
	var got []string
	for range want {
		got = append(got, k.hear())
	}
	if !sameLines(got, want) || r.of(TooSlow) != 2 {
		t.Errorf("%q, counted %v", got, r.n)
	}
	k.call(7)
	if got := k.hear(); got != answered(7)[0] {
		t.Errorf("after that: %s", got)
	}
}

// sameLines reports whether two lists are equal apart from the order between streams.
func sameLines(a, b []string) bool {
	count := map[string]int{}
	for _, s := range a {
		count[s]++
	}
	for _, s := range b {
		count[s]--
	}
	for _, n := range count {
		if n != 0 {
			return false
		}
	}
	return true
}

// Clients that give no window for their responses: the responses wait for a limited time, and are limited in bytes
// before that.
func TestTinyWindows(t *testing.T) {
	_, l, r := start(t, "tcp", Options{Limits: Limits{MessageTimeout: 300 * time.Millisecond}})
	watchMemory(t)
	for name, size := range map[string]byte{"none": 0, "of one": 1} {
		block := callBlock(huge)
		before := r.of("enhance_your_calm")
		first := append(appendHead(nil, 6, frameKind{http2.FrameSettings, 0}, 0), 0, 4, 0, 0, 0, size)
		code := attack(t, l, true, 1<<20, func(i int) []byte {
			id := uint32(2*i + 1)
			b := append(first, headersFrame(id, 0, block)...)
			first = nil
			return append(appendHead(b, prefix+5, frameKind{http2.FrameData, 1}, id), "\x00\x00\x00\x00\x0550000"...)
		})
		if code != http2.ErrCodeEnhanceYourCalm || r.of("enhance_your_calm") == before {
			t.Errorf("%s, much: ended by %v", name, code)
		}
		conn, f := speak(t, l)
		_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(size)})
		k := &talk{t: t, conn: conn, Framer: f, dec: hpack.NewDecoder(4096, nil)}
		k.enc = hpack.NewEncoder(&k.block)
		k.call(1)
		_ = f.WriteWindowUpdate(0, 1)
		got := k.hear()
		for got == answered(1)[0] || got == `DATA 1 "\x00"` {
			got = k.hear()
		}
		if got != "RST 1 CANCEL" {
			t.Errorf("%s, little: %s", name, got)
		}
	}
}

func TestIdleConnectionsGo(t *testing.T) {
	_, l, _ := start(t, "tcp", Options{Limits: Limits{IdleTimeout: 100 * time.Millisecond}})
	conn, f := speak(t, l)
	k := &talk{t: t, conn: conn, Framer: f}
	want := []string{"GOAWAY NO_ERROR", "PING ack=false going"}
	for _, w := range want {
		if got := k.hear(); got != w {
			t.Fatalf("%s, not %s", got, w)
		}
	}
	_ = f.WritePing(true, drainPing)
	if got := k.hear() + ", " + k.hear(); got != "GOAWAY NO_ERROR, end" {
		t.Error(got)
	}
}
