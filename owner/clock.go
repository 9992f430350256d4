package owner

// ClockStepped revokes this member's ownership of all keys, because its clock was set or has stood still. The
// ownership returns when the other members have confirmed this one. When ClockStepped returns, no request is decided
// by the revoked ownership.
func (n *Node) ClockStepped(now int64) (fx Ready) {
	n.serial.Lock()
	defer n.serial.Unlock()
	n.revokeAll(now, &fx)
	n.finish(&fx)
	return fx
}

// revokeAll revokes the ownership of all keys. serial is locked.
func (n *Node) revokeAll(now int64, fx *Ready) {
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		s.now = now
		s.leases.ClockStepped(now)
		s.dropPools(true)
		s.mu.Unlock()
	}
	fx.Messages = append(fx.Messages, n.serial.machine.RevokeAll(now)...)
	n.publish(now, fx)
}
