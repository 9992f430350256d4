package h2

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
)

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
