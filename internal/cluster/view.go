package cluster

import (
	"cmp"
	"slices"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// samePlace says whether two boots ran at the same place, so that the newer must have replaced the older.
func samePlace(a, b *membership.Member) bool {
	return a.Pod != 0 && a.Pod == b.Pod || a.Gossip != "" && a.Gossip == b.Gossip
}

// supersedes says which of two boots of one ID stands. At the same place the newer one does: it is a restart. Else both
// may be alive, and whoever already counts stays, then the older; the clocks of two machines decide only between equals.
func supersedes(a, b *membership.Member) bool {
	if samePlace(a, b) {
		return cmp.Or(cmp.Compare(a.StartedAt, b.StartedAt), cmp.Compare(a.BootID, b.BootID)) > 0
	}
	if x, y := a.State != membership.Joining, b.State != membership.Joining; x != y {
		return x
	}
	return cmp.Or(cmp.Compare(a.StartedAt, b.StartedAt), cmp.Compare(a.BootID, b.BootID)) < 0
}

// resolveNames picks one boot an ID out of all, and orders them: counting members by ID, then observers. The rival is
// the boot that stands in self's place, if any.
func resolveNames(self *membership.Member, others []membership.Member) (members []membership.Member, rival *membership.Member) {
	all := append(append(make([]membership.Member, 0, len(others)+1), others...), *self)
	slices.SortFunc(all, func(a, b membership.Member) int {
		return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.ID, b.ID), cmp.Compare(a.BootID, b.BootID))
	})
	members = make([]membership.Member, 0, len(all))
	for _, m := range all {
		last := len(members) - 1
		if last < 0 || members[last].ID != m.ID || members[last].Role != m.Role {
			members = append(members, m)
		} else if supersedes(&m, &members[last]) {
			members[last] = m
		}
	}
	for i := range members {
		if m := &members[i]; self.Role == membership.RoleMember && m.Role == membership.RoleMember && m.ID == self.ID && m.BootID != self.BootID {
			rival = m
		}
	}
	return members, rival
}

// wantedRing is the ring that members ask for: the active ones, and of those, should joins have raced past the capacity,
// the oldest that fit. All members compute the same from the same announcements.
func wantedRing(members []membership.Member, capacity int) []ring.Member {
	active := make([]*membership.Member, 0, len(members))
	for i := range members {
		if m := &members[i]; m.Role == membership.RoleMember && m.State == membership.Active {
			active = append(active, m)
		}
	}
	slices.SortFunc(active, func(a, b *membership.Member) int {
		return cmp.Or(cmp.Compare(a.StartedAt, b.StartedAt), cmp.Compare(a.ID, b.ID))
	})
	room := capacity - 1 // one place stays with the void locality
	out := make([]ring.Member, 0, len(active))
	for _, m := range active {
		if room -= int(m.Weight); room < 0 {
			break
		}
		out = append(out, m.RingMember())
	}
	slices.SortFunc(out, func(a, b ring.Member) int { return cmp.Compare(a.ID, b.ID) })
	return out
}
