package handoff

import (
	"time"

	"github.com/keyward/keyward/ring"
)

// A Machine keeps, for each peer, all times of contact on which decisions depend:
//
//   - peer.confirmedAt: this member's latest heartbeat that the peer confirmed; it keeps this member's ownership valid.
//   - Machine.confirmed: when this member last confirmed each peer; it delays takeovers.
//   - Machine.lastContact: when each peer last sent any message; it determines which members get replicas.
//   - clockOffset.heartbeatAt: when its last heartbeat arrived; only heartbeats compare the clocks.
//
// Package peer has times of its own for each connection: see link.lastRead there.

// silentAfter is for how long a member that sends nothing gets replicas before those that have sent something since.
const silentAfter = int64(time.Second)

// Contact records that member id has sent a message.
func (m *Machine) Contact(now int64, id ring.ID) { m.lastContact[id] = now }

// NoReply records that member id has not replied in time to a message that was sent at the given time. If it has sent
// nothing since, it is silent until it does.
func (m *Machine) NoReply(now int64, id ring.ID, sent int64) {
	if m.lastContact[id] <= sent {
		m.lastContact[id] = now - silentAfter
	}
}

// IsSilent reports whether member id has sent nothing for a second. It is false for a member that has had no reason to
// send anything yet.
func (m *Machine) IsSilent(now int64, id ring.ID) bool {
	t, known := m.lastContact[id]
	return known && t <= now-silentAfter
}
