package cluster

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// ringChange is the difference between two rings.
type ringChange struct {
	joined, left, died []ring.ID
	replaced           []ring.ID // on both rings, with another boot or another weight
	crashed            int       // boots that ended without a graceful leave, even if a newer boot is on the ring
}

// onlyJoins reports whether the change adds members and removes none.
func (c *ringChange) onlyJoins() bool { return len(c.left)+len(c.died)+len(c.replaced) == 0 }

// adoptRing replaces the ring by the one that the members want. A loss takes effect at once, because the keys of a
// lost member have no owner. A change that only adds members waits for Timing.JoinDelay, so that members which start
// together make one new ring.
func (m *machine) adoptRing(now time.Time, s *situation, o *outcome) {
	want, parameters := wantedRing(s.members, m.capacity)
	if m.usesRing(want, parameters) {
		m.joinWaitingSince = time.Time{}
		return
	}
	c := m.compareRings(want, s)
	if m.ring != nil && len(m.ringMembers) > 0 && c.onlyJoins() {
		if m.joinWaitingSince.IsZero() {
			m.joinWaitingSince = now
		}
		if rest := m.timing.JoinDelay - now.Sub(m.joinWaitingSince); rest > 0 {
			o.wakeWithin(rest)
			return
		}
	}
	m.joinWaitingSince = time.Time{}
	m.flaps.alone = m.flaps.alone || len(c.died) > 0 && len(want) == 1 && want[0].BootID == o.self.BootID
	m.ringMembers, m.ring, m.ringAdoptedAt = want, m.buildRing(want, parameters, s.members), now
	o.ringChanged, o.ringChange = true, c
	m.nref.ringChanged(now, len(want), len(c.left), len(c.died))
	for _, id := range c.died {
		delete(m.left, id)
	}
}

// buildRing builds the ring of want. It leaves room in the new ring's memory for the members that are about to join
// it.
func (m *machine) buildRing(want []ring.Member, p ring.Parameters, members []membership.Member) *ring.Ring {
	if m.newRing != nil && !p.Envoy {
		return m.newRing(want)
	}
	var soon []ring.Member
	for i := range members {
		if x := &members[i]; x.Role == membership.RoleMember && x.State == membership.Joining {
			soon = append(soon, x.RingMember())
		}
	}
	return p.Next(cmp.Or(m.ring, &ring.Ring{}), want, soon)
}

// usesRing reports whether the current ring is the one of these members with these parameters.
func (m *machine) usesRing(members []ring.Member, p ring.Parameters) bool {
	return m.ring != nil && m.ring.Parameters() == p && slices.Equal(members, m.ringMembers)
}

// compareRings compares the ring with the one wanted. A boot that was replaced by a newer one has crashed unless it
// left gracefully. The member has not died, because N_ref counts members.
func (m *machine) compareRings(want []ring.Member, s *situation) (c ringChange) {
	wanted := make(map[ring.ID]ring.Member, len(want))
	for _, w := range want {
		wanted[w.ID] = w
	}
	live := make(map[uint64]bool, len(s.members))
	for i := range s.members {
		live[s.members[i].BootID] = s.members[i].Role == membership.RoleMember
	}
	for _, old := range m.ringMembers {
		w, ok := wanted[old.ID]
		delete(wanted, old.ID)
		if ok && w == old {
			continue
		}
		// A member that is leaving, or off the ring by its own decision, is still live.
		graceful := live[old.BootID] || s.departed[old.BootID].graceful
		if !graceful {
			c.crashed++
		}
		switch {
		case ok:
			c.replaced = append(c.replaced, old.ID)
		case graceful:
			c.left = append(c.left, old.ID)
		default:
			c.died = append(c.died, old.ID)
		}
	}
	c.joined = slices.Sorted(maps.Keys(wanted))
	return c
}

// wantedRing returns the ring that the announcements of all members ask for: the active members. If more have joined
// at once than fit, it has the oldest that fit, and of members with one host, it has the oldest. Its parameters are
// those that all active members are configured for. If they differ, as during a rolling update, it is Keyward's own
// ring. All members compute the same ring from the same announcements.
func wantedRing(members []membership.Member, capacity int) ([]ring.Member, ring.Parameters) {
	active := make([]*membership.Member, 0, len(members))
	for i := range members {
		if m := &members[i]; m.IsActive() {
			active = append(active, m)
		}
	}
	slices.SortFunc(active, func(a, b *membership.Member) int {
		return cmp.Or(cmp.Compare(a.StartedAt, b.StartedAt), cmp.Compare(a.ID, b.ID))
	})
	p := agreedParameters(active)
	room := capacity - 1 // Envoy's empty locality takes one place
	out := make([]ring.Member, 0, len(active))
	for _, m := range active {
		if p.Envoy && slices.ContainsFunc(out, func(x ring.Member) bool { return x.Host == m.RingHost }) {
			continue
		}
		if room -= int(m.Weight); room < 0 {
			break
		}
		out = append(out, m.RingMember())
	}
	slices.SortFunc(out, func(a, b ring.Member) int { return cmp.Compare(a.ID, b.ID) })
	return out, p
}

// agreedParameters returns the parameters that all active members are configured for, or those of Keyward's own ring.
func agreedParameters(active []*membership.Member) ring.Parameters {
	if len(active) == 0 {
		return ring.Parameters{}
	}
	p := active[0].RingParameters
	differs := func(m *membership.Member) bool { return m.RingParameters != p }
	if p.Validate() != nil || slices.ContainsFunc(active, differs) {
		return ring.Parameters{}
	}
	return p
}
