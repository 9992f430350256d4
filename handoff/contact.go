package handoff

import "github.com/keyward/keyward/ring"

// A Machine keeps, for each peer, all times of contact on which decisions depend:
//
//   - peer.confirmedAt: this member's latest heartbeat that the peer confirmed; it keeps this member's ownership valid.
//   - Machine.confirmed: when this member last confirmed each peer; it delays takeovers.
//   - Machine.lastContact: when each peer last sent any message; it determines which members get replicas.
//   - clockOffset.heartbeatAt: when its last heartbeat arrived; only heartbeats compare the clocks.
//
// Package peer has times of its own for each connection: see link.lastRead there.

// silentAfter returns for how long member id may send nothing before the members that have sent something since get
// replicas first.
func (m *Machine) silentAfter(id ring.ID) int64 {
	d := m.opts.Detection
	if p := m.peers[id]; p != nil {
		d = m.pair(p)
	}
	return int64(d.Silence())
}

// Contact records that member id has sent a message.
func (m *Machine) Contact(now int64, id ring.ID) { m.lastContact[id] = now }

// NoReply records that member id has not replied in time to a message that was sent at the given time. If it has sent
// nothing since, it is silent until it does.
func (m *Machine) NoReply(now int64, id ring.ID, sent int64) {
	if m.lastContact[id] <= sent {
		m.lastContact[id] = now - m.silentAfter(id)
	}
}

// IsSilent reports whether member id has sent nothing for two intervals of heartbeats. It is false for a member that
// has had no reason to send anything yet.
func (m *Machine) IsSilent(now int64, id ring.ID) bool {
	t, known := m.lastContact[id]
	return known && t <= now-m.silentAfter(id)
}
