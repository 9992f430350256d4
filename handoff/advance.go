package handoff

import (
	"slices"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// advance applies what follows from the Acks: arcs that arrived, keys that no other member can own any more, and
// finally a complete ring.
func (m *Machine) advance(now int64) {
	v := m.view
	if m.seq == 0 || !m.membership.Joined {
		return
	}
	if v.self < 0 && m.neverOwned {
		m.completeRing() // nothing to receive and nothing to transfer
		return
	}
	n := len(v.steps)
	if n == 0 {
		return
	}
	if v.self >= 0 && !v.steps[n-1].allOwned {
		m.acceptProofs()
		if m.noOtherOwner(now) {
			m.takeOver(now)
		}
	}
	if m.view.self >= 0 && m.view.steps[n-1].allOwned && m.receiversPending() == 0 {
		m.completeRing()
	}
}

// completeRing makes the current ring the base.
func (m *Machine) completeRing() {
	if m.view.Steady() {
		return
	}
	v := m.publish()
	v.base, v.baseSelf, v.steps = v.ring, v.self, nil
	m.revokedBase = nil
	if v.self >= 0 {
		m.neverOwned, m.completeVersion = false, v.ring.Fingerprint()
	}
}

// acceptProofs takes ownership of the arcs that their owner has released, if no other member can have owned them: every
// member that was not on that owner's base, and so may come from a ring on which it owned them, has released its keys.
func (m *Machine) acceptProofs() {
	for _, p := range m.sortedPeers {
		x := p.counters.proof
		if !p.acked || x.ring == nil || !m.isNewProof(x) || !m.othersReleased(x.ring) {
			continue
		}
		v := m.publish()
		last := &v.steps[len(v.steps)-1]
		last.proofs = append(slices.Clone(last.proofs), x)
		m.neverOwned = false
	}
}

// isNewProof reports whether x can prove the release of arcs that were not received before. Its sender may use a ring
// that this member has left and adopted again. Then it repeats its first release, and this member may have passed on
// those keys since.
func (m *Machine) isNewProof(x proof) bool {
	v := m.view
	known := v.base != nil && v.base.Fingerprint() == x.ring.Fingerprint()
	for i := range v.steps {
		s := &v.steps[i]
		if slices.ContainsFunc(s.proofs, x.same) {
			return false
		}
		known = known || s.ring.Fingerprint() == x.ring.Fingerprint()
	}
	return known
}

// othersReleased reports whether all members that are not on x have sent their Ack, among the members of the current
// ring and of those since the base.
func (m *Machine) othersReleased(x *ring.Ring) bool {
	for i := range m.view.steps {
		if !m.othersReleasedOn(m.view.steps[i].ring, x) {
			return false
		}
	}
	return true
}

func (m *Machine) othersReleasedOn(r, x *ring.Ring) bool {
	for i := range r.Len() {
		a := r.At(i)
		switch {
		case a.ID == m.opts.Self || placeOf(x, a.ID, a.BootID) >= 0:
		case m.isLive(a):
			if !m.peers[a.ID].acked {
				return false
			}
		case !slices.Contains(m.membership.Left, a.ID): // members that left have transferred their keys
			return false
		}
	}
	return true
}

// noOtherOwner reports whether no other member can own this member's keys: all live members have released them, and
// failed members have been unconfirmed for so long that they have stopped deciding.
func (m *Machine) noOtherOwner(now int64) bool {
	for _, p := range m.peers {
		switch {
		case p.NoHandoff:
			if now < m.adoptedAt+m.takeoverOf(p) {
				return false
			}
		case m.neverPlaced(p):
		case !p.acked:
			return false
		}
	}
	if now < m.lostExpireAt {
		return false
	}
	for b, c := range m.confirmed {
		if m.unreachable(b) && now < c.at+c.takeover {
			return false
		}
	}
	return true
}

// neverPlaced reports whether p has never been on a ring, and so never owned a key.
func (m *Machine) neverPlaced(p *peer) bool {
	return !m.wasPlaced(p) && (p.State == membership.Joining || p.reported && p.neverOwned)
}

// wasPlaced reports whether this boot of p is on one of the rings since the base. An earlier boot may be on one: it is
// gone, and p never owned its keys.
func (m *Machine) wasPlaced(p *peer) bool {
	if m.view.base != nil && placeOf(m.view.base, p.ID, p.BootID) >= 0 {
		return true
	}
	return slices.ContainsFunc(m.view.steps, func(s step) bool { return placeOf(s.ring, p.ID, p.BootID) >= 0 })
}

// takeOver makes this member the owner of all its keys on the current ring.
func (m *Machine) takeOver(now int64) {
	l, any := m.currentLoss(now)
	v := m.publish()
	v.steps[len(v.steps)-1].allOwned = true
	m.neverOwned = false
	if any {
		v.losses = insertLoss(v.losses, l)
	}
}

// receiversPending returns the number of members on the ring that have not confirmed their transfer from this member.
func (m *Machine) receiversPending() int {
	n := 0
	for id, p := range m.peers {
		if m.view.ring.Index(id) >= 0 && !p.NoHandoff && !p.sending.ackReceived {
			n++
		}
	}
	return n
}

// hasJoiner reports whether a live member is joining.
func (m *Machine) hasJoiner() bool {
	for _, p := range m.peers {
		if p.State == membership.Joining {
			return true
		}
	}
	return false
}

// sendsCopies reports whether a successor may still lack replicas.
func (m *Machine) sendsCopies() bool {
	for _, p := range m.peers {
		if p.sending.stage == sendingCopies || p.sending.stage == ackSent && !p.sending.prefetch {
			return true
		}
	}
	return false
}

// Progress returns the progress of the current ring change.
func (m *Machine) Progress() membership.Progress {
	v := m.view
	p := membership.Progress{
		Ring:         v.ring.Fingerprint(),
		CompleteRing: m.completeVersion,
		Unconfirmed:  m.receiversPending(),
		Prefetched:   true,
	}
	for _, x := range m.peers {
		if x.NoHandoff || x.State == membership.Joining {
			continue
		}
		if !x.acked && v.self >= 0 {
			p.MissingAcks++
		}
		if x.State == membership.Active && !x.prefetched {
			p.Prefetched = false
		}
	}
	if v.Steady() {
		p.Unconfirmed = 0
	}
	delivered := p.Unconfirmed == 0 && !m.sendsCopies() && (v.ring.Len() > 0 || !m.hasJoiner())
	p.HandedOff = v.self < 0 && (m.neverOwned || delivered)
	return p
}
