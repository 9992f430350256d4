package cluster

import (
	"cmp"
	"slices"

	"github.com/keyward/keyward/internal/membership"
)

// resolveNames returns one boot for each name: the counting members by ID, then the observers. The conflict is the
// boot that takes precedence over this one under its name, or nil.
func resolveNames(
	self *membership.Member, others []membership.Member,
) (members []membership.Member, conflict *membership.Member) {
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
		m := &members[i]
		if self.Role == membership.RoleMember && m.Role == membership.RoleMember && m.ID == self.ID &&
			m.BootID != self.BootID {
			conflict = m
		}
	}
	return members, conflict
}

// supersedes reports whether boot a takes precedence over boot b of the same name. In the same place, the newer one
// does: it is a restart. Otherwise both may be alive, and the one that is already on the ring does, then the older
// one. The clocks of two machines decide only between equals.
func supersedes(a, b *membership.Member) bool {
	if samePlace(a, b) {
		return cmp.Or(cmp.Compare(a.StartedAt, b.StartedAt), cmp.Compare(a.BootID, b.BootID)) > 0
	}
	if x, y := a.State != membership.Joining, b.State != membership.Joining; x != y {
		return x
	}
	return cmp.Or(cmp.Compare(a.StartedAt, b.StartedAt), cmp.Compare(a.BootID, b.BootID)) < 0
}

// samePlace reports whether two boots have run in the same pod or at the same address, so that the newer must have
// replaced the older.
func samePlace(a, b *membership.Member) bool {
	return a.Pod != 0 && a.Pod == b.Pod || a.Gossip != "" && a.Gossip == b.Gossip
}
