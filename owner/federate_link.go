package owner

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/keyward/keyward/federation"
)

// authorityLink is the way to one coordinator.
type authorityLink struct {
	mu   sync.Mutex
	link federation.CoordinatorLink // guarded by mu
	away atomic.Bool
	rtt  atomic.Int64 // nanoseconds
}

// do changes the state of the link and publishes it.
func (l *authorityLink) do(change func(*federation.CoordinatorLink) bool) (changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	changed = change(&l.link)
	l.away.Store(l.link.Away())
	l.rtt.Store(int64(l.link.RTT()))
	return changed
}

// isAway reports whether outage policies decide. A coordinator that this member does not know is always away.
func (l *authorityLink) isAway() bool { return l == nil || l.away.Load() }

func (l *authorityLink) roundTrip() time.Duration {
	if l == nil {
		return 0
	}
	return time.Duration(l.rtt.Load())
}
