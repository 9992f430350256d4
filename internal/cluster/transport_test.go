package cluster

import (
	"bytes"
	"context"
	"io"
	"log"
	"net"
	"strconv"
	"testing"
)

// Packets are delivered separately, complete, and in memory of their own size, whatever family the sender's address
// has.
func TestPackets(t *testing.T) {
	for name, host := range map[string]string{"IPv4": "127.0.0.1", "every address": ""} {
		t.Run(name, func(t *testing.T) {
			open := func() *transport {
				p, err := openTransport(context.Background(), transportConfig{host: host, log: log.New(io.Discard, "", 0)})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = p.Shutdown() })
				return p
			}
			a, b := open(), open()
			to := net.JoinHostPort("127.0.0.1", strconv.Itoa(b.port()))
			sent := [][]byte{bytes.Repeat([]byte("x"), 40), bytes.Repeat([]byte("y"), 40), bytes.Repeat([]byte("z"), 60_000)}
			var got [][]byte
			for _, m := range sent {
				if _, err := a.WriteTo(m, to); err != nil {
					t.Fatal(err)
				}
				p := <-b.PacketCh()
				got = append(got, p.Buf)
				if want := net.JoinHostPort("127.0.0.1", strconv.Itoa(a.port())); p.From.String() != want ||
					p.Timestamp.IsZero() {
					t.Errorf("a packet from %v at %v, want %v", p.From, p.Timestamp, want)
				}
			}
			for i, m := range sent {
				if !bytes.Equal(got[i], m) || cap(got[i]) > 2*len(m) {
					t.Errorf("packet %d of %d bytes came as %d in %d", i, len(m), len(got[i]), cap(got[i]))
				}
			}
		})
	}
}

// A transport whose packets and streams are not read shuts down, more than once, and releases the port.
func TestShutdownDoesNotWait(t *testing.T) {
	out := log.New(io.Discard, "", 0)
	a, err := openTransport(context.Background(), transportConfig{host: "127.0.0.1", log: out})
	if err != nil {
		t.Fatal(err)
	}
	at := net.JoinHostPort("127.0.0.1", strconv.Itoa(a.port()))
	for range 3 {
		if _, err := a.WriteTo([]byte("to itself"), at); err != nil {
			t.Error(err)
		}
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	for range 2 {
		if err := a.Shutdown(); err != nil {
			t.Error(err)
		}
	}
	b, err := openTransport(context.Background(), transportConfig{host: "127.0.0.1", port: uint16(a.port()), log: out})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Shutdown(); err != nil {
		t.Error(err)
	}
}
