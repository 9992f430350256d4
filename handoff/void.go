package handoff

// checkIsolation says whether others may have made self's tokens anew, because nobody has confirmed it for Own.
func (m *Machine) checkIsolation(now int64) bool {
	right, _, _ := m.view.Extent(now)
	m.unconfirmed = right == ExtentNone && (m.view.self >= 0 || !m.neverOwned)
	return m.unconfirmed
}

// partitioned says whether so many members have not confirmed self for Own that they may have made its tokens anew: half of
// N_ref. Fewer can do no harm: as a smaller part they yield.
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

// confirmationExpired says that p has not confirmed self for Own, nor had reason to begin since.
func (m *Machine) confirmationExpired(now int64, p *peer) bool {
	switch {
	case p == nil:
		return true
	case p.NoHandoff:
		return false
	case p.confirmedAt > 0:
		return p.confirmedAt+int64(m.opts.OwnershipTTL) < now
	}
	return m.view.ring.Index(p.ID) >= 0 && m.adoptedAt+int64(m.opts.OwnershipTTL) < now
}

// OwnershipReceived says that a token of a single key has come (Sealed with Given).
func (m *Machine) OwnershipReceived() { m.neverOwned = false }

// RevokeAll gives up all tokens; they come back when every live member has acknowledged the ring anew. It is called when the
// clock has jumped, by Tick when self was cut off or stopped for long, and when self hears again from the larger part
// of a cluster that it was cut off from.
func (m *Machine) RevokeAll(now int64) []Outbound {
	v := *m.view
	m.revokeBase(&v)
	v.steps = []step{{ring: v.ring, self: v.self, released: make([]bool, v.ring.Len())}}
	m.view = &v
	m.seq++
	m.adoptedAt, m.lostExpireAt = now, 0
	for id, p := range m.peers {
		p.restart()
		p.confirmedAt, p.clock = 0, clockOffset{}
		p.sending.restart(v.ring.Index(id) >= 0)
	}
	m.publish()
	return m.pingPeers(now, true)
}

// revokeBase gives the tokens of v's base up, and remembers whose they were in case nobody is left who knows their state.
func (m *Machine) revokeBase(v *OwnershipView) {
	if v.base != nil {
		m.revokedBase = v.base
	}
	v.base, v.baseSelf = nil, -1
}

// forgetConfirmations drops confirmations that no longer matter.
func (m *Machine) forgetConfirmations(now int64) {
	for b, t := range m.confirmedAt {
		if p := m.peers[b.id]; (p == nil || p.BootID != b.bootID) && now-t > 2*int64(m.opts.TakeoverDelay) {
			delete(m.confirmedAt, b)
		}
	}
}
