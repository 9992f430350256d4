package owner

import (
	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/ring"
)

// ClockStepped gives up all tokens, because the clock was set or has stood still. They come back when the other members have
// confirmed this one. When Fence returns, no question is decided by the old tokens.
func (n *Node) ClockStepped(now int64) (fx Effects) {
	n.serial.Lock()
	defer n.serial.Unlock()
	n.revokeAll(now, &fx)
	return fx
}

// revokeAll is called with serial held.
func (n *Node) revokeAll(now int64, fx *Effects) {
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		s.now = now
		s.forgetLeases(now)
		s.mu.Unlock()
	}
	fx.Out = append(fx.Out, n.serial.machine.RevokeAll(now)...)
	n.publish(now, fx)
}

// checkClock fences this member if a heartbeat shows that its clock has stood still while those of the others went on. It is
// called with serial held.
func (n *Node) checkClock(now int64, from ring.ID, bootID uint64, msg *handoff.Message, fx *Effects) {
	if fx.ClockStopped = n.serial.machine.ClockStall(now, from, bootID, msg); fx.ClockStopped > 0 {
		n.revokeAll(now, fx)
	}
}
