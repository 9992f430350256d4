package h2

import (
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

func TestPace(t *testing.T) {
	var p pace
	now, scale := time.Now(), time.Duration(runtime.GOMAXPROCS(0))
	if d := p.wait(now, scale*time.Millisecond); d != 4*time.Millisecond {
		t.Errorf("the first waits %v", d)
	}
	if d := p.wait(now, scale*time.Millisecond); d != 8*time.Millisecond {
		t.Errorf("who comes at the same time does not wait until after it: %v", d)
	}
	if d := p.wait(now.Add(time.Second), scale*time.Millisecond); d != 4*time.Millisecond {
		t.Errorf("time that nobody used is kept against others: %v", d)
	}
	for range 1000 {
		p.wait(now, time.Second)
	}
	if d := p.wait(now, 0); d > longestPace {
		t.Errorf("waits %v", d)
	}
}

func TestSpending(t *testing.T) {
	s := spending{earned: time.Millisecond}
	s.spent = 700 * time.Microsecond
	if d := s.settleUp(); d != 0 || s.earned != 300*time.Microsecond {
		t.Errorf("%v is owed, %v left", d, s.earned)
	}
	s.spent = time.Millisecond
	if !s.much() {
		t.Error("that is much")
	}
	if d := s.settleUp(); d != 700*time.Microsecond || s.earned != 0 || s.much() {
		t.Errorf("%v is owed, %v left", d, s.earned)
	}
	s.spent = worthAWait - 1
	if d := s.settleUp(); d != 0 || s.spent == 0 {
		t.Errorf("%v is owed, and %v is not forgotten", d, s.spent)
	}
	for range 1000 {
		s.earn()
	}
	if s.earned != earnedMost {
		t.Errorf("%v earned", s.earned)
	}
}

// A stranger on many connections, who always has something to say that is no call, is heard as fast as a quarter of the processors allow;
// a client that calls does not wait at all.
func TestStrangersArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(Options{Methods: methods(), Bounds: Bounds{Noise: 1 << 30}})
		pings := settingsFrame[:9:9]
		for range 1000 {
			pings = append(append(pings, "\x00\x00\x08\x06\x00\x00\x00\x00\x00"...), leavePing[:]...)
		}
		var said atomic.Int64
		var conns []net.Conn
		var gone sync.WaitGroup
		for range 20 {
			conn := dialPipe(s)
			conns = append(conns, conn)
			gone.Go(func() {
				_, err := conn.Write([]byte(http2.ClientPreface))
				for n := 0; err == nil; said.Add(int64(n)) {
					n, err = conn.Write(pings)
				}
			})
		}
		honest := dialPipe(s)
		conns = append(conns, honest)
		_, _ = honest.Write(append([]byte(http2.ClientPreface), settingsFrame...))
		time.Sleep(longestPace) // until it is let in
		begin, before := time.Now(), said.Load()
		for i := range 2000 {
			_, _ = honest.Write(append(headersFrame(uint32(2*i+1), 0, callBlock(echo)), "\x00\x00\x07\x00\x01"...))
			var id [4]byte
			id[2], id[3] = byte((2*i+1)>>8), byte(2*i+1)
			_, _ = honest.Write(append(id[:], "\x00\x00\x00\x00\x02hi"...))
		}
		if d := time.Since(begin); d != 0 {
			t.Errorf("2,000 calls of an honest client waited for %v", d)
		}
		time.Sleep(time.Second - time.Since(begin))
		said.Store(said.Load() - before)
		// A ping costs 17 bytes and its noise.
		cost := time.Duration(said.Load()/17) * (17*costOfByte + costOfNoise)
		most := time.Duration(runtime.GOMAXPROCS(0))*time.Second/4 + 20*2*muchAtOnce
		if t.Logf("pings that cost %v were heard in a second", cost); cost > most || cost < most/4 {
			t.Errorf("pings that cost %v were heard in a second, of which %v is allowed", cost, most)
		}
		for _, c := range conns {
			c.Close()
		}
		gone.Wait()
		s.gone.Wait()
	})
}

// dialPipe opens a connection whose answers are read and dropped.
func dialPipe(s *Server) net.Conn {
	near, far := net.Pipe()
	s.start(far)
	go func() {
		b := make([]byte, 1<<16)
		for {
			if _, err := near.Read(b); err != nil {
				return
			}
		}
	}()
	return near
}
