package peer

import (
	"net"
	"slices"
	"sync"
)

// pendingHandshakes holds the connections whose handshake is under way, the oldest first. At the bound a new one takes the place of
// the oldest: a handshake is over in milliseconds, so whoever opens many and says nothing crowds out itself, and not a member.
type pendingHandshakes struct {
	mu    sync.Mutex
	conns []net.Conn // guarded by mu
}

// add adds a connection, and returns the one that has to go for it.
func (g *pendingHandshakes) add(c net.Conn) (slow net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.conns) >= maxHandshakes {
		slow, g.conns = g.conns[0], slices.Delete(g.conns, 0, 1)
	}
	g.conns = append(g.conns, c)
	return slow
}

// remove removes it, if it is still there.
func (g *pendingHandshakes) remove(c net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.conns, c); i >= 0 {
		g.conns = slices.Delete(g.conns, i, i+1)
	}
}
