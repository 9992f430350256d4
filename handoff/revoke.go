package handoff

import "github.com/keyward/keyward/internal/protocol"

// checkIsolation reports whether other members may have taken over this member's keys, because no peer confirmed it for
// T_own.
func (m *Machine) checkIsolation(now int64) bool {
	m.unconfirmed = m.view.confirmations.isolated(now) && (m.view.self >= 0 || !m.neverOwned)
	return m.unconfirmed
}

// revokeIfIsolated revokes all ownership at the end of the last confirmation. Tick calls it, and so does everything that
// arrives: after a stop, the messages and views that waited come first, and none of them proves more than what was true
// when it was sent.
func (m *Machine) revokeIfIsolated(now int64) []protocol.Outbound {
	if m.view.confirmations.isolated(now) {
		m.publishConfirmations() // those that arrived since the last Tick
	}
	if was := m.unconfirmed; m.checkIsolation(now) && !was {
		return m.RevokeAll(now)
	}
	return nil
}

// partitioned reports whether enough members have stopped confirming this one that they may have taken over its keys:
// half of N_ref. Fewer are harmless: they are the smaller side, which gives way.
func (m *Machine) partitioned(now int64) bool {
	v := m.view
	gone := v.NRef() - v.ring.Len()
	for i := range v.ring.Len() {
		if id := v.ring.At(i).ID; id != m.opts.Self && m.confirmationExpired(now, m.peers[id]) {
			gone++
		}
	}
	return 2*gone >= v.NRef()
}

// confirmationExpired reports whether p has not confirmed this member for T_own although it should have.
func (m *Machine) confirmationExpired(now int64, p *peer) bool {
	switch {
	case p == nil:
		return true
	case p.NoHandoff:
		return false
	case p.confirmedAt > 0:
		return p.confirmedAt+m.ttl(p) < now
	}
	return m.view.ring.Index(p.ID) >= 0 && m.adoptedAt+m.ttl(p) < now
}

// OwnershipReceived records that the ownership of a single key was transferred to this member (KeyGiven).
func (m *Machine) OwnershipReceived() { m.neverOwned = false }

// RevokeAll revokes all ownership of this member. It regains ownership when every live member has acknowledged the ring
// again. It is called when the clock has jumped, by Tick when this member was isolated or stopped for long, and when
// this member hears again from the larger side of a partition.
func (m *Machine) RevokeAll(now int64) []protocol.Outbound {
	v := *m.view
	m.revokeBase(&v)
	v.steps = []step{{ring: v.ring, self: v.self, released: make([]bool, v.ring.Len())}}
	m.view = &v
	m.startAdoption(now, v.ring)
	for id, p := range m.peers {
		p.restart()
		p.confirmedAt, p.clock = 0, clockOffset{}
		p.sending.restart(v.ring.Index(id) >= 0)
	}
	m.publish()
	return m.pingPeers(now, true)
}

// revokeBase revokes the ownership of v's base, and remembers that ring in case all members with the state of its keys
// are gone.
func (m *Machine) revokeBase(v *OwnershipView) {
	if v.base != nil {
		m.revokedBase = v.base
	}
	v.base, v.baseSelf = nil, -1
}

// forgetConfirmations removes confirmations that no longer matter.
func (m *Machine) forgetConfirmations(now int64) {
	for b, c := range m.confirmed {
		if p := m.peers[b.id]; (p == nil || p.BootID != b.bootID) && now-c.at > 2*c.takeover {
			delete(m.confirmed, b)
		}
	}
}
