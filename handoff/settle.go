package handoff

import (
	"slices"

	"github.com/keyward/keyward/ring"
)

// advance draws what follows from the acknowledgements: arcs that have come, keys that nobody else can hold any more, and
// at last a complete ring.
func (m *Machine) advance(now int64) {
	v := m.view
	if m.seq == 0 || !m.membership.Joined {
		return
	}
	if v.self < 0 && m.neverOwned {
		m.completeRing() // nothing to take over, nothing to give
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

// completeRing makes the present ring the base.
func (m *Machine) completeRing() {
	if m.view.Steady() {
		return
	}
	v := m.publish()
	v.base, v.baseSelf, v.steps = v.ring, v.self, nil
	m.revokedBase = nil
	m.neverOwned = m.neverOwned && v.self < 0
}

// acceptProofs takes over the arcs whose holder has released them, if nobody but that holder can have held them: every member
// that was not on the holder's base, and so may come from a ring on which it owned them, has released its own.
func (m *Machine) acceptProofs() {
	for _, p := range m.sortedPeers {
		if !p.acked || p.counters.proof.ring == nil || !m.isNewProof(p.counters.proof) || !m.othersReleased(p.counters.proof.ring) {
			continue
		}
		v := m.publish()
		last := &v.steps[len(v.steps)-1]
		last.proofs = append(slices.Clone(last.proofs), p.counters.proof)
		m.neverOwned = false
	}
}

// isNewProof says whether x can tell of arcs that have not come yet. Its sender may go by a ring that self has left and come back to:
// then it repeats what it gave for the first time, and self may have passed that on since.
func (m *Machine) isNewProof(x proof) bool {
	v := m.view
	known := v.base != nil && v.base.Fingerprint() == x.ring.Fingerprint()
	for i := range v.steps {
		s := &v.steps[i]
		if slices.ContainsFunc(s.proofs, func(y proof) bool { return y.from == x.from && y.ring.Fingerprint() == x.ring.Fingerprint() }) {
			return false
		}
		known = known || s.ring.Fingerprint() == x.ring.Fingerprint()
	}
	return known
}

// othersReleased says whether all members that are not on x have acknowledged, of those that have a place on the present ring, or had
// one since the base.
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
		case !slices.Contains(m.membership.Left, a.ID): // those have handed over
			return false
		}
	}
	return true
}

// noOtherOwner says whether nobody else can hold a token of self's keys: all that live have released theirs, and those that
// are lost have had no confirmation for so long that they do not use theirs.
func (m *Machine) noOtherOwner(now int64) bool {
	for _, p := range m.peers {
		switch {
		case p.NoHandoff:
			if now < m.adoptedAt+int64(m.opts.TakeoverDelay) {
				return false
			}
		case !m.wasPlaced(p) && (p.State == Joining || p.reported && p.neverOwned): // it has no place, and never held a token
		case !p.acked:
			return false
		}
	}
	if now < m.lostExpireAt {
		return false
	}
	for b, t := range m.confirmedAt {
		if m.unreachable(b) && now < t+int64(m.opts.TakeoverDelay) {
			return false
		}
	}
	return true
}

// wasPlaced says whether this boot of p is on one of the rings since the base. The one before it may be: it is gone, and
// p never held its tokens.
func (m *Machine) wasPlaced(p *peer) bool {
	if m.view.base != nil && placeOf(m.view.base, p.ID, p.BootID) >= 0 {
		return true
	}
	return slices.ContainsFunc(m.view.steps, func(s step) bool { return placeOf(s.ring, p.ID, p.BootID) >= 0 })
}

// takeOver makes all of self's keys on the present ring self's.
func (m *Machine) takeOver(now int64) {
	l, any := m.currentLoss(now)
	v := m.publish()
	v.steps[len(v.steps)-1].allOwned = true
	m.neverOwned = false
	if any {
		v.losses = insertLoss(v.losses, l)
	}
}

// receiversPending is the number of members on the ring that have not said that they have what self owes them.
func (m *Machine) receiversPending() int {
	n := 0
	for id, p := range m.peers {
		if m.view.ring.Index(id) >= 0 && !p.NoHandoff && !p.sending.ackReceived {
			n++
		}
	}
	return n
}

// RingProgress is how far a change of the ring has come.
type RingProgress struct {
	RingVersion uint64 // fingerprint of the ring adopted last
	Complete    bool   // every key that is self's on it is held, and everything else was given away
	Prefetched  bool   // a joiner has the copies of all active members
	HandedOff   bool   // a leaver holds nothing any more
	Unconfirmed int    // members that have not confirmed what was sent to them
	MissingAcks int    // members whose acknowledgement is missing
}

// hasJoiner says whether somebody is about to take a place on the ring.
func (m *Machine) hasJoiner() bool {
	for _, p := range m.peers {
		if p.State == Joining {
			return true
		}
	}
	return false
}

// sendsCopies says whether heirs may still lack copies.
func (m *Machine) sendsCopies() bool {
	for _, p := range m.peers {
		if p.sending.stage == sendingCopies || p.sending.stage == ackSent && !p.sending.prefetch {
			return true
		}
	}
	return false
}

// Progress is how far self is.
func (m *Machine) Progress() RingProgress {
	v := m.view
	p := RingProgress{RingVersion: v.ring.Fingerprint(), Complete: v.self >= 0 && v.Steady(), Unconfirmed: m.receiversPending(), Prefetched: true}
	for _, x := range m.peers {
		if x.NoHandoff || x.State == Joining {
			continue
		}
		if !x.acked && v.self >= 0 {
			p.MissingAcks++
		}
		if x.State == Active && !x.prefetched {
			p.Prefetched = false
		}
	}
	if v.Steady() {
		p.Unconfirmed = 0
	}
	p.HandedOff = v.self < 0 && (m.neverOwned || p.Unconfirmed == 0 && !m.sendsCopies() && (v.ring.Len() > 0 || !m.hasJoiner()))
	return p
}
