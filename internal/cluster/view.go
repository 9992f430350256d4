package cluster

import (
	"cmp"
	"slices"

	"github.com/keyward/keyward/ring"
)

// View is the cluster as one member sees it at one moment. It is immutable; a changed cluster is a new View.
type View struct {
	Self       ring.ID
	Members    []Member   // live ones, self included, by ID; observers after the counting members
	Ring       *ring.Ring // of the active members; the same pointer as long as the ring is the same
	NRef       int        // members that shares of a limit are divided by: the largest ring remembered, also by others
	Joined     bool       // false while a cold start may still have clusters that have not met, or members without their place
	Standalone bool       // no gossip at all
	Problem    string     // why self stays off the ring; empty when nothing is wrong
	Cause      Cause      // of Problem
	BootID     uint64     // self's boot
	Left       []ring.ID  // members that went a short while ago having handed all over, by ID; a new boot of one may be live
}

// Find is the live member of that ID.
func (v *View) Find(id ring.ID) (Member, bool) {
	for i := range v.Members {
		if v.Members[i].ID == id && v.Members[i].Role == RoleMember {
			return v.Members[i], true
		}
	}
	return Member{}, false
}

// SelfMember is self as the others see it.
func (v *View) SelfMember() Member {
	for i := range v.Members {
		if v.Members[i].BootID == v.BootID {
			return v.Members[i]
		}
	}
	return Member{ID: v.Self, BootID: v.BootID} // a rival stands in its place
}

// DifferingRings is the number of members on the ring that go by another ring than self.
func (v *View) DifferingRings() int {
	n, mine := 0, v.Ring.Fingerprint()
	for i := range v.Members {
		m := &v.Members[i]
		if m.BootID != v.BootID && m.Role == RoleMember && m.State == Active && m.Ring != mine {
			n++
		}
	}
	return n
}

// IncompleteMembers is the number of members on the ring that have not taken over all that is theirs on it, as far as they tell.
func (v *View) IncompleteMembers() int {
	n, mine := 0, v.Ring.Fingerprint()
	for i := range v.Members {
		m := &v.Members[i]
		if m.Role == RoleMember && m.State == Active && m.SupportsHandoff() && m.CompleteRing != mine {
			n++
		}
	}
	return n
}

// equal says whether two views would tell their readers the same.
func (v *View) equal(o *View) bool {
	return o != nil && v.Ring == o.Ring && v.NRef == o.NRef && v.Joined == o.Joined && v.Problem == o.Problem &&
		slices.Equal(v.Members, o.Members) && slices.Equal(v.Left, o.Left)
}

// samePlace says whether two boots ran at the same place, so that the newer must have replaced the older.
func samePlace(a, b *Member) bool {
	return a.Pod != 0 && a.Pod == b.Pod || a.Gossip != "" && a.Gossip == b.Gossip
}

// supersedes says which of two boots of one ID stands. At the same place the newer one does: it is a restart. Else both
// may be alive, and whoever already counts stays, then the older; the clocks of two machines decide only between equals.
func supersedes(a, b *Member) bool {
	if samePlace(a, b) {
		return cmp.Or(cmp.Compare(a.StartedAt, b.StartedAt), cmp.Compare(a.BootID, b.BootID)) > 0
	}
	if x, y := a.State != Joining, b.State != Joining; x != y {
		return x
	}
	return cmp.Or(cmp.Compare(a.StartedAt, b.StartedAt), cmp.Compare(a.BootID, b.BootID)) < 0
}

// resolveNames picks one boot an ID out of all, and orders them: counting members by ID, then observers. The rival is
// the boot that stands in self's place, if any.
func resolveNames(self *Member, others []Member) (members []Member, rival *Member) {
	all := append(append(make([]Member, 0, len(others)+1), others...), *self)
	slices.SortFunc(all, func(a, b Member) int {
		return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.ID, b.ID), cmp.Compare(a.BootID, b.BootID))
	})
	members = make([]Member, 0, len(all))
	for _, m := range all {
		last := len(members) - 1
		if last < 0 || members[last].ID != m.ID || members[last].Role != m.Role {
			members = append(members, m)
		} else if supersedes(&m, &members[last]) {
			members[last] = m
		}
	}
	for i := range members {
		if m := &members[i]; self.Role == RoleMember && m.Role == RoleMember && m.ID == self.ID && m.BootID != self.BootID {
			rival = m
		}
	}
	return members, rival
}

// wantedRing is the ring that members ask for: the active ones, and of those, should joins have raced past the capacity,
// the oldest that fit. All members compute the same from the same announcements.
func wantedRing(members []Member, capacity int) []ring.Member {
	active := make([]*Member, 0, len(members))
	for i := range members {
		if m := &members[i]; m.Role == RoleMember && m.State == Active {
			active = append(active, m)
		}
	}
	slices.SortFunc(active, func(a, b *Member) int { return cmp.Or(cmp.Compare(a.StartedAt, b.StartedAt), cmp.Compare(a.ID, b.ID)) })
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
