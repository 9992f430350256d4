package peer

import (
	"time"

	"github.com/keyward/keyward/ring"
)

// ClockOffsets is how far each linked member's clock is ahead of this one's, as the metric keyward_peer_skew_seconds has it.
// It may be called concurrently.
func (p *Peer) ClockOffsets() map[ring.ID]time.Duration {
	p.skews.mu.Lock()
	defer p.skews.mu.Unlock()
	ahead := make(map[ring.ID]time.Duration, len(p.skews.m))
	for id, k := range p.skews.m {
		ahead[id] = time.Duration(k.offset())
	}
	return ahead
}
