package gate

import (
	"net"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/budget"
)

// Listen bounds the connections that l has open at once. At the bound a new connection takes the place of the one that
// has been silent longest, of those that have not been answered anything if there are any: whoever opens many and says
// nothing crowds out itself, and a busy client is not refused. A client that is refused would let its requests through
// uncounted.
func (s *Surface) Listen(l net.Listener, most int) net.Listener {
	if s == nil {
		return l
	}
	return &listener{Listener: l, surface: s, most: most, open: map[*conn]struct{}{}, gauge: s.gates.open.WithLabelValues(s.name)}
}

type listener struct {
	net.Listener
	surface *Surface
	most    int
	gauge   prometheus.Gauge
	turn    atomic.Int64 // connections accepted so far: the clock by which silence is told

	mu   sync.Mutex
	open map[*conn]struct{} // guarded by mu
}

// Accept waits for the next connection.
func (l *listener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, of: l}
	c.heard.Store(l.turn.Add(1))
	l.mu.Lock()
	var silent *conn
	if len(l.open) >= l.most {
		silent = l.silentLocked()
		delete(l.open, silent)
	}
	l.open[c] = struct{}{}
	l.gauge.Set(float64(len(l.open)))
	l.mu.Unlock()
	if silent != nil {
		l.surface.Refuse(Crowded)
		silent.Close()
	}
	return c, nil
}

// silentLocked is the connection that was heard longest ago, one that was answered only if there is no other.
func (l *listener) silentLocked() (silent *conn) {
	for c := range l.open {
		if silent == nil || c.before(silent) {
			silent = c
		}
	}
	return silent
}

// conn is one connection. It notes when it was heard by the number of connections accepted by then, which costs no look
// at the clock.
type conn struct {
	net.Conn
	of     *listener
	heard  atomic.Int64
	served atomic.Bool   // a request on it was answered
	meter  *budget.Meter // of an HTTP server's connection; else nil. Set before the first read
}

// before says whether c has to go before d.
func (c *conn) before(d *conn) bool {
	if s := c.served.Load(); s != d.served.Load() {
		return !s
	}
	return c.heard.Load() < d.heard.Load()
}

// Answered notes that a request was answered on a connection that a Listener of Listen has accepted; of others it notes nothing.
func Answered(c net.Conn) {
	if c, ok := c.(*conn); ok && !c.served.Load() {
		c.served.Store(true)
	}
}

// Read reads.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
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

// Close closes.
func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.gauge.Set(float64(len(c.of.open)))
	c.of.mu.Unlock()
	return c.Conn.Close()
}
