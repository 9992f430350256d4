package handoff

import (
	"slices"

	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/ring"
)

// maxLosses is the number of losses that are remembered, newest first.
const maxLosses = 8

// loss is a Loss with its ring built, for lookups.
type loss struct {
	foundAt int64
	ring    *ring.Ring
	dead    []bool // by index in ring
}

// covers reports whether all members with the state of the key at h have failed: its owner, its successor, and the
// member with its zone replica, if there is one.
func (l *loss) covers(h uint64) bool {
	failed := func(i int) bool { return i < 0 || l.dead[i] }
	o := l.ring.Owner(h)
	return o >= 0 && l.dead[o] && failed(l.ring.Successor(h)) && failed(l.ring.ZoneReplica(h))
}

// same reports whether l and b describe the same ring and the same failed members.
func (l *loss) same(b *loss) bool {
	return l.ring.Fingerprint() == b.ring.Fingerprint() && slices.Equal(l.dead, b.dead)
}

// describes reports whether l describes the same members as x, which are sorted by ID.
func (l *loss) describes(x *protocol.Loss) bool {
	if l.ring.Parameters() != x.Parameters || l.ring.Len() != len(x.Members) {
		return false
	}
	for i, m := range x.Members {
		own := l.ring.At(i)
		if own.Zone = m.Zone; own != m || l.dead[i] != slices.Contains(x.Dead, m.ID) {
			return false
		}
	}
	return true
}

// Lost reports whether the state of the key at h was lost because all members that had it failed, and when.
func (v *OwnershipView) Lost(h uint64) (at int64, lost bool) {
	for i := range v.losses {
		if l := &v.losses[i]; l.covers(h) {
			return l.foundAt, true
		}
	}
	return 0, false
}

// currentLoss returns the loss caused by the members of the last base that failed, or false if none did. Its time does
// not change until another member fails: later charges are known to the members that took the keys over.
func (m *Machine) currentLoss(now int64) (l loss, any bool) {
	base := m.lossRing()
	if base == nil {
		return l, false
	}
	l = loss{ring: base, dead: make([]bool, base.Len())}
	for i := range l.dead {
		l.dead[i] = m.isMissing(base.At(i))
		any = any || l.dead[i]
	}
	last := int64(0)
	for _, at := range m.missingSince {
		last = max(last, at)
	}
	longest := m.LongestDetection().TakeoverDelay()
	l.foundAt = min(now, last+int64(longest)) // by then every failed member has stopped deciding
	return l, any
}

// lastBase returns the base, or the last one whose ownership was revoked, or nil.
func (m *Machine) lastBase() *ring.Ring {
	if m.view.base != nil {
		return m.view.base
	}
	return m.revokedBase
}

// lossRing returns the last base without the members that have left since, or nil without a base. They have transferred
// their keys, and the other keys have replicas on the members that are next without them: all state is where that ring
// has it. The membership remembers only for a while that a member has left, so the ring is kept.
func (m *Machine) lossRing() *ring.Ring {
	base := m.lastBase()
	if base != m.stayed.base {
		m.stayed.base, m.stayed.ring = base, base
	}
	if base == nil {
		return nil
	}
	if len(m.membership.Left) == 0 {
		return m.stayed.ring
	}
	r := m.stayed.ring
	var stay []ring.Member
	for i := range r.Len() {
		if a := r.At(i); !m.hasLeft(a) {
			stay = append(stay, a)
		}
	}
	if len(stay) < r.Len() {
		m.stayed.ring = base.Parameters().New(stay)
	}
	return m.stayed.ring
}

// updateMissing records since when failed members are missing, before r is adopted. It covers members that were on a
// ring since the base and members that N_ref may still count.
func (m *Machine) updateMissing(now int64, r *ring.Ring) {
	next := map[memberBoot]int64{}
	note := func(a ring.Member, at int64) {
		if !m.isMissing(a) {
			return
		}
		b := memberBoot{a.ID, a.BootID}
		if was, known := m.missingSince[b]; known {
			at = was
		}
		next[b] = at
	}
	all := func(r *ring.Ring) {
		for i := range r.Len() {
			note(r.At(i), now)
		}
	}
	if base := m.lossRing(); base != nil {
		all(base)
	}
	for i := range m.view.steps {
		all(m.view.steps[i].ring)
	}
	all(r)
	if m.membership.NRef > r.Len() {
		for b, at := range m.missingSince {
			note(ring.Member{ID: b.id, BootID: b.bootID}, at)
		}
	}
	m.missingSince = next
}

// isMissing reports whether that boot of another member is gone without having left.
func (m *Machine) isMissing(a ring.Member) bool {
	return a.ID != m.opts.Self && !m.isLive(a) && !m.hasLeft(a)
}

// hasLeft reports whether that boot of another member is gone and has left.
func (m *Machine) hasLeft(a ring.Member) bool {
	return a.ID != m.opts.Self && !m.isLive(a) && slices.Contains(m.membership.Left, a.ID)
}

// missingCounted reports whether N_ref may count a failed member that is not on r.
func (m *Machine) missingCounted(r *ring.Ring) bool {
	for b := range m.missingSince {
		if r.Index(b.id) < 0 {
			return true
		}
	}
	return false
}

// Losses returns the lost state that a member must know when ownership is transferred to it, newest first. It includes
// state lost with currently missing members, even if this member has not taken over any of their keys yet.
func (m *Machine) Losses(now int64) []protocol.Loss {
	list := m.view.losses
	if l, any := m.currentLoss(now); any {
		list = insertLoss(list, l)
	}
	var out []protocol.Loss
	for i := range list {
		l := &list[i]
		x := protocol.Loss{FoundAt: l.foundAt, Parameters: l.ring.Parameters()}
		for i := range l.ring.Len() {
			a := l.ring.At(i)
			if x.Members = append(x.Members, a); l.dead[i] {
				x.Dead = append(x.Dead, a.ID)
			}
		}
		out = append(out, x)
	}
	return out
}

// insertLoss adds a loss to before. Earlier losses stay: a lost key may have been assigned to a member that failed
// before it took the key over, and on that ring its successor never had a replica.
func insertLoss(before []loss, l loss) []loss {
	before = slices.DeleteFunc(slices.Clone(before), func(b loss) bool { return l.same(&b) })
	i := slices.IndexFunc(before, func(b loss) bool { return b.foundAt < l.foundAt })
	if i < 0 {
		i = len(before)
	}
	after := slices.Insert(before, i, l)
	return after[:min(len(after), maxLosses)]
}

// dropRecovered removes members that are live again from the losses. They still have their state.
func (m *Machine) dropRecovered(losses []loss) []loss {
	var out []loss
	for _, l := range losses {
		l.dead = slices.Clone(l.dead)
		for i := range l.dead {
			l.dead[i] = l.dead[i] && !m.isLive(l.ring.At(i))
		}
		if slices.Contains(l.dead, true) {
			out = append(out, l)
		}
	}
	return out
}

// isLive reports whether that boot of a member is this member or a live peer.
func (m *Machine) isLive(a ring.Member) bool {
	if a.ID == m.opts.Self {
		return a.BootID == m.opts.BootID
	}
	p := m.peers[a.ID]
	return p != nil && p.BootID == a.BootID
}

// AddLosses merges the losses known to a member that transferred ownership.
func (m *Machine) AddLosses(losses []protocol.Loss) {
	list := m.view.losses
	for i := range losses {
		x := &losses[i]
		if slices.ContainsFunc(list, func(b loss) bool { return b.foundAt >= x.FoundAt && b.describes(x) }) {
			continue // usually the loss is known; building its ring would cost more than the rest of an Ack
		}
		l := loss{foundAt: x.FoundAt, ring: x.Parameters.New(x.Members)}
		if own := m.ringOf(l.ring.Fingerprint()); own != nil {
			l.ring = own // with the zones, which a sender of an earlier build does not know
		}
		l.dead = make([]bool, l.ring.Len())
		for i := range l.dead {
			l.dead[i] = slices.Contains(x.Dead, l.ring.At(i).ID)
		}
		list = insertLoss(list, l)
	}
	list = m.dropRecovered(list)
	if !slices.EqualFunc(list, m.view.losses, func(a, b loss) bool { return a.foundAt == b.foundAt && a.same(&b) }) {
		m.publish().losses = list
	}
}
