package h2

import (
	"context"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// ended is a Watcher that passes on what it hears.
type ended chan bool

func (e ended) Ended(_ time.Time, byClient bool) { e <- byClient }

// watched serves a method that watches its connection and makes it ping.
func watched(t *testing.T, o Options) (*InlineServer, net.Listener, ended) {
	e := make(ended, 2)
	o.Methods = map[string]Handler{echo: method(func(k *Stream) {
		for range 2 {
			k.Watch(1, func(_ time.Time, p Pinger) Watcher {
				p.Ping()
				return e
			})
		}
		k.Reply(text(k.Message()))
	})}
	s, l, _ := start(t, "tcp", o)
	return s, l, e
}

// speakWatched opens a connection by hand and makes one call on it. answers is called with each ping.
func speakWatched(t *testing.T, l net.Listener, answers func(f *http2.Framer, p *http2.PingFrame)) net.Conn {
	raw, f := speak(t, l)
	k := &talk{t: t, conn: raw, Framer: f}
	k.enc = hpack.NewEncoder(&k.block)
	k.call(1)
	answered := make(chan struct{})
	go func() {
		for {
			got, err := f.ReadFrame()
			if err != nil {
				return
			}
			switch got := got.(type) {
			case *http2.DataFrame:
				close(answered)
			case *http2.PingFrame:
				answers(f, got)
			}
		}
	}()
	<-answered
	return raw
}

func TestWatchersHearOfTheClientsEnd(t *testing.T) {
	pong := func(f *http2.Framer, p *http2.PingFrame) { _ = f.WritePing(true, p.Data) }
	t.Run("closed", func(t *testing.T) {
		_, l, e := watched(t, Options{})
		speakWatched(t, l, pong).Close()
		if !<-e {
			t.Error("not by the client")
		}
	})
	t.Run("reset", func(t *testing.T) {
		_, l, e := watched(t, Options{})
		raw := speakWatched(t, l, pong)
		raw.(*net.TCPConn).SetLinger(0)
		raw.Close()
		if !<-e {
			t.Error("not by the client")
		}
	})
	t.Run("silent", func(t *testing.T) {
		_, l, e := watched(t, Options{PingInterval: 10 * time.Millisecond})
		speakWatched(t, l, func(*http2.Framer, *http2.PingFrame) {})
		if !<-e {
			t.Error("not by the client")
		}
	})
	t.Run("alive", func(t *testing.T) {
		_, l, e := watched(t, Options{PingInterval: 250 * time.Millisecond}) // the client has as long to answer, on any machine
		pings := make(chan struct{}, 1)
		raw := speakWatched(t, l, func(f *http2.Framer, p *http2.PingFrame) {
			pong(f, p)
			select {
			case pings <- struct{}{}:
			default:
			}
		})
		for range 4 {
			select {
			case <-pings:
			case <-e:
				t.Fatal("a client that answers pings was cut off")
			}
		}
		raw.Close()
		<-e
	})
	t.Run("shut down", func(t *testing.T) {
		s, l, e := watched(t, Options{})
		speakWatched(t, l, pong)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		s.Shutdown(ctx)
		if <-e {
			t.Error("this side has ended it")
		}
	})
	t.Run("aged", func(t *testing.T) {
		_, l, e := watched(t, Options{MaxAge: 20 * time.Millisecond})
		speakWatched(t, l, pong)
		if <-e {
			t.Error("this side has announced it")
		}
	})
}
