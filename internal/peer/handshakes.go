package peer

import (
	"net"
	"slices"
	"sync"
)

// pendingHandshakes has the connections whose handshake is not complete, oldest first. At maxHandshakes, a new
// connection replaces the oldest. A handshake takes milliseconds, so a client that opens many idle connections replaces
// its own, not those of members.
type pendingHandshakes struct {
	mu    sync.Mutex
	conns []net.Conn // guarded by mu
}

// add adds a connection and returns the one that it replaces, or nil.
func (g *pendingHandshakes) add(c net.Conn) (slow net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.conns) >= maxHandshakes {
		slow, g.conns = g.conns[0], slices.Delete(g.conns, 0, 1)
	}
	g.conns = append(g.conns, c)
	return slow
}

// remove removes a connection, if it is still there.
func (g *pendingHandshakes) remove(c net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.conns, c); i >= 0 {
		g.conns = slices.Delete(g.conns, i, i+1)
	}
}
