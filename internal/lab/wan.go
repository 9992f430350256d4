package lab

import (
	"io"
	"net"
	"sync"
	"time"
)

// WAN is a TCP proxy in front of a distant server: it delays what it passes, and can be cut. It is safe for concurrent
// use.
type WAN struct {
	Addr   string // where the proxy listens
	to     string
	oneWay time.Duration
	ln     net.Listener
	served sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool // guarded by mu
	isCut bool              // guarded by mu
}

// StartWAN starts a proxy in front of the server at the address to, with that delay in each direction.
func StartWAN(to string, oneWay time.Duration) (*WAN, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &WAN{Addr: ln.Addr().String(), to: to, oneWay: oneWay, ln: ln, conns: map[net.Conn]bool{}}
	w.served.Go(w.serve)
	return w, nil
}

// Close ends the proxy and all of its connections.
func (w *WAN) Close() {
	_ = w.ln.Close()
	w.Cut(true)
	w.served.Wait()
}

// Cut ends all connections and refuses new ones, until it is called with false.
func (w *WAN) Cut(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isCut = cut; cut {
		for c := range w.conns {
			_ = c.Close()
		}
	}
}

func (w *WAN) serve() {
	for {
		c, err := w.ln.Accept()
		if err != nil {
			return
		}
		w.served.Go(func() { w.forward(c) })
	}
}

// add registers a connection. It returns false if the proxy is cut.
func (w *WAN) add(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.isCut {
		w.conns[c] = true
	}
	return !w.isCut
}

func (w *WAN) remove(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = c.Close()
	delete(w.conns, c)
}

func (w *WAN) forward(c net.Conn) {
	defer w.remove(c)
	if !w.add(c) {
		return
	}
	s, err := net.Dial("tcp", w.to)
	if err != nil {
		return
	}
	defer w.remove(s)
	if !w.add(s) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { w.pass(s, c) })
	both.Go(func() { w.pass(c, s) })
	both.Wait()
}

// delayed is data that is due at its destination at a time.
type delayed struct {
	due  time.Time
	data []byte
}

// pass copies from one connection to the other, oneWay later. At the end it closes both.
func (w *WAN) pass(to, from net.Conn) {
	parts := make(chan delayed, 1<<12)
	go func() {
		defer close(parts)
		for {
			b := make([]byte, 16<<10)
			n, err := from.Read(b)
			if n > 0 {
				parts <- delayed{time.Now().Add(w.oneWay), b[:n]}
			}
			if err != nil {
				return
			}
		}
	}()
	broken := false
	for p := range parts {
		if broken {
			continue // until the reader has ended
		}
		time.Sleep(time.Until(p.due))
		if _, err := to.Write(p.data); err != nil {
			broken = true
			_ = from.Close()
		}
	}
	_ = to.Close()
	_, _ = io.Copy(io.Discard, from)
}
