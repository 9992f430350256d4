package connguard

import (
	"container/heap"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/internal/budget"
)

// Listen bounds the connections that l has open at once. At the bound a new connection takes the place of the one that
// has been silent longest, of those that have not been answered anything if there are any: whoever opens many and says
// nothing crowds out itself, and a busy client is not refused. A client that is refused would let its requests through
// uncounted.
func (s *Surface) Listen(l net.Listener, most int) net.Listener {
	if s == nil {
		return l
	}
	return s.listen(l, most)
}

// ListenInTurn is Listen for servers that tell each connection's calls: connections that bring few are read in turn, see lane.
func (s *Surface) ListenInTurn(l net.Listener, most int) net.Listener {
	if s == nil {
		return l
	}
	in := s.listen(l, most)
	in.lane, in.waited = s.gates.lane, s.gates.waited.WithLabelValues(s.name)
	return in
}

func (s *Surface) listen(l net.Listener, most int) *listener {
	return &listener{Listener: l, surface: s, most: most, gauge: s.gates.open.WithLabelValues(s.name)}
}

type listener struct {
	net.Listener
	surface *Surface
	most    int
	gauge   prometheus.Gauge
	lane    *lane              // nil: nobody waits
	waited  prometheus.Counter // seconds, in the lane
	turn    atomic.Int64       // connections accepted so far: the clock by which silence is told

	last time.Time     // when the connection before came; of the goroutine that accepts
	busy time.Duration // for how long connections have come without a pause; of it, too

	mu   sync.Mutex
	open bySilence // guarded by mu
}

// Accept waits for the next connection.
func (l *listener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, of: l, purse: purse{lane: l.lane}}
	c.credit.Store(earnedFirst)
	c.gone = func() bool { return gone(raw) }
	c.cut = func() { c.Close() }
	c.heard.Store(l.turn.Add(1))
	l.rest()
	l.mu.Lock()
	var silent *conn
	if len(l.open) >= l.most {
		silent = l.open.silent()
		heap.Remove(&l.open, silent.place)
	}
	c.note()
	heap.Push(&l.open, c)
	l.gauge.Set(float64(len(l.open)))
	l.mu.Unlock()
	if silent != nil {
		l.surface.Refuse(Crowded)
		silent.Close()
	}
	return c, nil
}

// In a flood of connections a listener rests for acceptRest after it has accepted for acceptTime without a pause: see lane.
const (
	acceptTime = time.Millisecond
	acceptRest = time.Millisecond / 2
	acceptSoon = 200 * time.Microsecond // after the connection before: there was no pause
)

// rest rests when it is time to.
func (l *listener) rest() {
	if l.lane == nil {
		return
	}
	now := time.Now()
	took := now.Sub(l.last)
	l.last = now
	if took > acceptSoon {
		l.busy = 0
		return
	}
	if l.busy += took; l.busy >= acceptTime {
		l.busy = 0
		time.Sleep(acceptRest)
		l.last = time.Now()
	}
}

// bySilence is a heap of open connections, those first that go first, by what was noted of them. Since then they may only have moved back.
type bySilence []*conn

func (h bySilence) Len() int { return len(h) }
func (h bySilence) Less(i, j int) bool {
	if c, d := h[i], h[j]; c.wasServed != d.wasServed {
		return d.wasServed
	}
	return h[i].wasHeard < h[j].wasHeard
}
func (h bySilence) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push implements heap.Interface.
func (h *bySilence) Push(c any) {
	c.(*conn).place = len(*h)
	*h = append(*h, c.(*conn))
}

// Pop implements heap.Interface.
func (h *bySilence) Pop() any {
	last := len(*h) - 1
	c := (*h)[last]
	(*h)[last] = nil
	*h, c.place = (*h)[:last], nowhere
	return c
}

// silent is the connection that was heard longest ago, one that was answered only if there is no other.
func (h *bySilence) silent() *conn {
	for {
		c := (*h)[0]
		if !c.note() {
			return c
		}
		heap.Fix(h, 0)
	}
}

// conn is one connection. It notes when it was heard by the number of connections accepted by then, which costs no look
// at the clock.
type conn struct {
	net.Conn
	of     *listener
	heard  atomic.Int64
	served atomic.Bool   // a request on it was answered
	meter  *budget.Meter // of an HTTP server's connection; else nil. Set before the first read
	purse

	// What was noted of it when it was put in its place of its listener's open; guarded by the listener's mu.
	wasHeard  int64
	wasServed bool
	place     int // in it, or nowhere
}

// nowhere is the place of a connection that is open no more.
const nowhere = -1

// note notes how c stands, and reports whether that is news.
func (c *conn) note() (news bool) {
	heard, served := c.heard.Load(), c.served.Load()
	news = heard != c.wasHeard || served != c.wasServed
	c.wasHeard, c.wasServed = heard, served
	return news
}

// Answered notes that a request was answered on a connection that a Listener of Listen has accepted; of others it notes nothing.
func Answered(c net.Conn) {
	if c, ok := c.(*conn); ok && !c.served.Load() {
		c.served.Store(true)
	}
}

// Read reads, and waits for c's turn when it has read something.
func (c *conn) Read(b []byte) (int, error) {
	c.Leave()
	n, err := c.Conn.Read(b)
	if n > 0 {
		if c.lane != nil {
			c.Spend(n + costOfRead)
			c.Enter()
		}
		if turn := c.of.turn.Load(); turn != c.heard.Load() {
			c.heard.Store(turn)
		}
	}
	if c.meter != nil {
		if over := c.meter.Read(n); over != nil {
			return 0, over
		}
	}
	return n, err
}

// Enter implements Payer.
func (c *conn) Enter() {
	if d := c.enter(); d > 0 {
		c.of.waited.Add(d.Seconds())
	}
}

// Start implements Payer.
func (c *conn) Start() {
	if c.lane != nil {
		c.of.waited.Add(c.of.surface.gates.starts.await(&c.purse).Seconds())
	}
}

// Write writes. A client that does not read keeps no place.
func (c *conn) Write(b []byte) (int, error) {
	c.Leave()
	return c.Conn.Write(b)
}

// Close closes.
func (c *conn) Close() error {
	if c.lane != nil {
		c.lane.forget(&c.purse)
		c.of.surface.gates.starts.forget(&c.purse)
		c.Leave()
	}
	c.of.mu.Lock()
	if c.place != nowhere {
		heap.Remove(&c.of.open, c.place)
	}
	c.of.gauge.Set(float64(len(c.of.open)))
	c.of.mu.Unlock()
	return c.Conn.Close()
}
