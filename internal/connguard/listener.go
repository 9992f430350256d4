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

// Listen limits the number of open connections of l. At the limit, a new connection replaces the one that has been
// silent longest, preferably one on which no request was ever answered. So a client that opens many connections and
// sends nothing replaces its own, and busy clients stay connected. A client that is refused would let its requests
// through uncounted.
func (s *Guard) Listen(l net.Listener, most int) net.Listener {
	if s == nil {
		return l
	}
	return s.listen(l, most)
}

// ListenInTurn is Listen for servers that report the calls of each connection. Connections with few calls are read in
// turn: see turnQueue.
func (s *Guard) ListenInTurn(l net.Listener, most int) net.Listener {
	if s == nil {
		return l
	}
	in := s.listen(l, most)
	in.turns, in.waited = s.guards.turns, s.guards.waited.WithLabelValues(s.name)
	return in
}

func (s *Guard) listen(l net.Listener, most int) *listener {
	return &listener{Listener: l, guard: s, limit: most, gauge: s.guards.open.WithLabelValues(s.name)}
}

type listener struct {
	net.Listener
	guard    *Guard
	limit    int
	gauge    prometheus.Gauge
	turns    *turnQueue         // nil: connections do not wait
	waited   prometheus.Counter // seconds spent in the queue
	accepted atomic.Int64       // connections accepted so far: the clock that measures silence

	lastAccept time.Time     // time of the last connection; only used by Accept
	burst      time.Duration // how long connections have arrived without a pause; only used by Accept

	mu   sync.Mutex
	open silenceHeap // guarded by mu
}

// Accept waits for the next connection.
func (l *listener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, listener: l, turnCredit: turnCredit{queue: l.turns}}
	c.credit.Store(initialCredit)
	c.gone = func() bool { return ClientClosed(raw) }
	c.cut = func() { c.Close() }
	c.lastRead.Store(l.accepted.Add(1))
	l.pauseInFlood()
	l.mu.Lock()
	var silent *conn
	if len(l.open) >= l.limit {
		silent = l.open.mostSilent()
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

// In a flood of connections, Accept pauses for acceptRest after it has accepted for acceptTime without a pause: see
// turnQueue.
const (
	acceptTime = time.Millisecond
	acceptRest = time.Millisecond / 2
	acceptSoon = 200 * time.Microsecond // connections that follow each other faster have no pause between them
)

// pauseInFlood pauses if connections arrive in a flood.
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

// silenceHeap orders open connections by when they are replaced, first the one to be replaced next. It uses the noted
// values, which may be older than the current ones: a connection can only have moved back.
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

// mostSilent returns the connection to be replaced: the one that was read longest ago, among those without an answered
// request if there are any.
func (h *silenceHeap) mostSilent() *conn {
	for {
		c := (*h)[0]
		if !c.refresh() {
			return c
		}
		heap.Fix(h, 0)
	}
}

// conn is one connection. It measures the time of its last read in accepted connections, which does not need the
// clock.
type conn struct {
	net.Conn
	listener *listener
	lastRead atomic.Int64
	answered atomic.Bool   // a request on it was answered
	meter    *budget.Meter // set before the first read for connections of an HTTP server; else nil
	turnCredit

	// The values by which the heap is ordered; guarded by the listener's mu.
	notedRead     int64
	notedAnswered bool
	index         int // index in the heap, or notInHeap
}

// notInHeap is the index of a closed connection.
const notInHeap = -1

// refresh updates the noted values of c and reports whether they changed.
func (c *conn) refresh() (news bool) {
	heard, served := c.lastRead.Load(), c.answered.Load()
	news = heard != c.notedRead || served != c.notedAnswered
	c.notedRead, c.notedAnswered = heard, served
	return news
}

// MarkAnswered records that a request was answered on c, if a listener of this package accepted c.
func MarkAnswered(c net.Conn) {
	if c, ok := c.(*conn); ok && !c.answered.Load() {
		c.answered.Store(true)
	}
}

// Read reads, and waits for the connection's turn if it has read something.
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

// Enter implements TurnTaker.
func (c *conn) Enter() {
	if d := c.enter(); d > 0 {
		c.listener.waited.Add(d.Seconds())
	}
}

// Start implements TurnTaker.
func (c *conn) Start() {
	if c.queue != nil {
		c.listener.waited.Add(c.listener.guard.guards.starts.await(&c.turnCredit).Seconds())
	}
}

// Write writes. It gives up the slot first, since the client may be slow to read.
func (c *conn) Write(b []byte) (int, error) {
	c.Leave()
	return c.Conn.Write(b)
}

// Close closes the connection.
func (c *conn) Close() error {
	if c.queue != nil {
		c.queue.cancelWait(&c.turnCredit)
		c.listener.guard.guards.starts.cancelWait(&c.turnCredit)
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
