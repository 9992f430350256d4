package handoff

import (
	"slices"

	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/ring"
)

// A member that leaves sends its keys to their next owners, and replicas of them to the successors of those. If it fails
// before a next owner has its part, a successor may be the only member that has the keys. It may have transferred what it
// had to the next owner before the replicas came. So the next owner asks all members again when the leaver is gone
// (lostHolder), and a member that has replicas of a leaver sends the next owner everything (copiesFrom), not only what
// belonged to another member on the ring before.

// noteCopies records that p, if it is not on the ring, has sent replicas.
func (m *Machine) noteCopies(now int64, p *peer, msg *protocol.Message) {
	if msg.Flags&protocol.SuccessorCopy != 0 && len(msg.Counters) > 0 && m.view.ring.Index(p.ID) < 0 {
		m.copiesFrom[memberBoot{p.ID, p.BootID}] = now
	}
}

// forgetCopies forgets leaving members that have left, and those that failed so long ago that every next owner of their keys
// has noticed it and asked.
func (m *Machine) forgetCopies(now int64) {
	longest := int64(m.LongestDetection().TakeoverDelay())
	for b, at := range m.copiesFrom {
		p := m.peers[b.id]
		switch {
		case p != nil && p.BootID == b.bootID:
			m.copiesFrom[b] = now
		case slices.Contains(m.membership.Left, b.id) || now-at > 2*longest:
			delete(m.copiesFrom, b)
		}
	}
}

// lostHolder reports whether a peer is gone since before, without having left, that may have held keys which this member
// waits for.
func (m *Machine) lostHolder(before map[ring.ID]*peer) bool {
	v := m.view
	if n := len(v.steps); v.self < 0 || n == 0 || v.steps[n-1].allOwned {
		return false
	}
	for id, p := range before {
		q := m.peers[id]
		gone := (q == nil || q.BootID != p.BootID) && !slices.Contains(m.membership.Left, id)
		if gone && !p.acked && !p.NoHandoff && !m.neverPlaced(p) {
			return true
		}
	}
	return false
}

// askAgain makes all members transfer what they have for this member again, and acknowledge it.
func (m *Machine) askAgain(now int64) {
	m.startAdoption(now, m.view.ring)
	for _, p := range m.peers {
		p.restart()
	}
}
