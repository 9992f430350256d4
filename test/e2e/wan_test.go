package e2e

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// wan is a TCP proxy between a region and a coordinator. It delays what passes in each direction, and can be cut.
type wan struct {
	addr   string
	to     atomic.Value   // string
	oneWay time.Duration  // in each direction
	deaf   [2]atomic.Bool // discard what passes to the coordinator, or back

	mu    sync.Mutex
	conns map[net.Conn]bool // guarded by mu
	down  bool              // guarded by mu
}

func startWAN(t *testing.T, to string, oneWay time.Duration) *wan {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wan{addr: ln.Addr().String(), oneWay: oneWay, conns: map[net.Conn]bool{}}
	w.to.Store(to)
	t.Cleanup(func() {
		ln.Close()
		w.cut(true)
	})
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go w.forward(c)
		}
	}()
	return w
}

// cut ends all connections, and refuses new ones until it is called with false.
func (w *wan) cut(down bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down = down; down {
		for c := range w.conns {
			c.Close()
		}
	}
}

// add registers connections. It returns false if the proxy is cut.
func (w *wan) add(cs ...net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down {
		return false
	}
	for _, c := range cs {
		w.conns[c] = true
	}
	return true
}

func (w *wan) remove(cs ...net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range cs {
		c.Close()
		delete(w.conns, c)
	}
}

func (w *wan) forward(c net.Conn) {
	defer c.Close()
	s, err := net.Dial("tcp", w.to.Load().(string))
	if err != nil {
		return
	}
	defer s.Close()
	if !w.add(c, s) {
		return
	}
	defer w.remove(c, s)
	var both sync.WaitGroup
	both.Go(func() { w.pass(s, c, &w.deaf[0]) })
	both.Go(func() { w.pass(c, s, &w.deaf[1]) })
	both.Wait()
}

// pass copies from one connection to the other, a while later.
func (w *wan) pass(to, from net.Conn, deaf *atomic.Bool) {
	type part struct {
		due  time.Time
		data []byte
	}
	parts := make(chan part, 1<<12)
	go func() {
		defer close(parts)
		for {
			b := make([]byte, 16<<10)
			n, err := from.Read(b)
			if n > 0 && !deaf.Load() {
				parts <- part{time.Now().Add(w.oneWay), b[:n]}
			}
			if err != nil {
				return
			}
		}
	}()
	for p := range parts {
		time.Sleep(time.Until(p.due))
		if _, err := to.Write(p.data); err != nil {
			break
		}
	}
	_ = to.Close()
	_, _ = io.Copy(io.Discard, from)
	for p := range parts { // until the reader has ended
		clear(p.data)
	}
}
