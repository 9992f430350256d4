package h2

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/net/http2"
)

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
