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
func (s *Guard) Listen(l net.Listener, most int) net.Listener {
	if s == nil {
		return l
	}
	return s.listen(l, most)
}

// ListenInTurn is Listen for servers that tell each connection's calls: connections that bring few are read in turn, see lane.
func (s *Guard) ListenInTurn(l net.Listener, most int) net.Listener {
	if s == nil {
		return l
	}
	in := s.listen(l, most)
	in.turns, in.waited = s.guards.turns, s.guards.waited.WithLabelValues(s.name)
	return in
}

func (s *Guard) listen(l net.Listener, most int) *listener {
	return &listener{Listener: l, guard: s, most: most, gauge: s.guards.open.WithLabelValues(s.name)}
}

type listener struct {
	net.Listener
	guard    *Guard
	most     int
	gauge    prometheus.Gauge
	turns    *turnQueue         // nil: nobody waits
	waited   prometheus.Counter // seconds, in the lane
	accepted atomic.Int64       // connections accepted so far: the clock by which silence is told

	lastAccept time.Time     // when the connection before came; of the goroutine that accepts
	burst      time.Duration // for how long connections have come without a pause; of it, too

	mu   sync.Mutex
	open silenceHeap // guarded by mu
}

// Accept waits for the next connection.
func (l *listener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, listener: l, purse: purse{queue: l.turns}}
	c.credit.Store(initialCredit)
	c.gone = func() bool { return clientClosed(raw) }
	c.cut = func() { c.Close() }
	c.lastRead.Store(l.accepted.Add(1))
	l.pauseInFlood()
	l.mu.Lock()
	var silent *conn
	if len(l.open) >= l.most {
		silent = l.open.silent()
		heap.Remove(&l.open, silent.index)
	}
	c.refresh()
	heap.Push(&l.open, c)
	l.gauge.Set(float64(len(l.open)))
	l.mu.Unlock()
	if silent != nil {
		l.guard.Refuse(CrowdedOut)
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

// pauseInFlood rests when it is time to.
func (l *listener) pauseInFlood() {
	if l.turns == nil {
		return
	}
	now := time.Now()
	took := now.Sub(l.lastAccept)
	l.lastAccept = now
	if took > acceptSoon {
		l.burst = 0
		return
	}
	if l.burst += took; l.burst >= acceptTime {
		l.burst = 0
		time.Sleep(acceptRest)
		l.lastAccept = time.Now()
	}
}

// silenceHeap is a heap of open connections, those first that go first, by what was noted of them. Since then they may only have moved back.
type silenceHeap []*conn

func (h silenceHeap) Len() int { return len(h) }
func (h silenceHeap) Less(i, j int) bool {
	if c, d := h[i], h[j]; c.notedAnswered != d.notedAnswered {
		return d.notedAnswered
	}
	return h[i].notedRead < h[j].notedRead
}
func (h silenceHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *silenceHeap) Push(c any) {
	c.(*conn).index = len(*h)
	*h = append(*h, c.(*conn))
}

// Pop implements heap.Interface.
func (h *silenceHeap) Pop() any {
	last := len(*h) - 1
	c := (*h)[last]
	(*h)[last] = nil
	*h, c.index = (*h)[:last], notInHeap
	return c
}

// silent is the connection that was heard longest ago, one that was answered only if there is no other.
func (h *silenceHeap) silent() *conn {
	for {
		c := (*h)[0]
		if !c.refresh() {
			return c
		}
		heap.Fix(h, 0)
	}
}

// conn is one connection. It notes when it was heard by the number of connections accepted by then, which costs no look
// at the clock.
type conn struct {
	net.Conn
	listener *listener
	lastRead atomic.Int64
	answered atomic.Bool   // a request on it was answered
	meter    *budget.Meter // of an HTTP server's connection; else nil. Set before the first read
	purse

	// What was noted of it when it was put in its place of its listener's open; guarded by the listener's mu.
	notedRead     int64
	notedAnswered bool
	index         int // in it, or nowhere
}

// notInHeap is the place of a connection that is open no more.
const notInHeap = -1

// refresh notes how c stands, and reports whether that is news.
func (c *conn) refresh() (news bool) {
	heard, served := c.lastRead.Load(), c.answered.Load()
	news = heard != c.notedRead || served != c.notedAnswered
	c.notedRead, c.notedAnswered = heard, served
	return news
}

// MarkAnswered notes that a request was answered on a connection that a Listener of Listen has accepted; of others it notes nothing.
func MarkAnswered(c net.Conn) {
	if c, ok := c.(*conn); ok && !c.answered.Load() {
		c.answered.Store(true)
	}
}

// Read reads, and waits for c's turn when it has read something.
func (c *conn) Read(b []byte) (int, error) {
	c.Leave()
	n, err := c.Conn.Read(b)
	if n > 0 {
		if c.queue != nil {
			c.Spend(n + readCost)
			c.Enter()
		}
		if turn := c.listener.accepted.Load(); turn != c.lastRead.Load() {
			c.lastRead.Store(turn)
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
		c.listener.waited.Add(d.Seconds())
	}
}

// Start implements Payer.
func (c *conn) Start() {
	if c.queue != nil {
		c.listener.waited.Add(c.listener.guard.guards.starts.await(&c.purse).Seconds())
	}
}

// Write writes. A client that does not read keeps no place.
func (c *conn) Write(b []byte) (int, error) {
	c.Leave()
	return c.Conn.Write(b)
}

// Close closes.
func (c *conn) Close() error {
	if c.queue != nil {
		c.queue.forget(&c.purse)
		c.listener.guard.guards.starts.forget(&c.purse)
		c.Leave()
	}
	c.listener.mu.Lock()
	if c.index != notInHeap {
		heap.Remove(&c.listener.open, c.index)
	}
	c.listener.gauge.Set(float64(len(c.listener.open)))
	c.listener.mu.Unlock()
	return c.Conn.Close()
}
