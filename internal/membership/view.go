// Package membership describes the cluster as one member sees it: who its members are, in which states, and which
// ring they use.
//
// Package cluster builds a View from gossip. All other packages read it and pass it on unchanged.
package membership

import (
	"iter"
	"slices"

	"github.com/keyward/keyward/ring"
)

// View describes the cluster as one member sees it at one time. A View is immutable: a change of the cluster produces
// a new one.
type View struct {
	// Self is this member's name, and BootID the boot that sees the cluster this way.
	Self   ring.ID
	BootID uint64

	// Members are the live members, this one included: the counting members by ID, then the observers.
	Members []Member
	// Ring is the ring that this member uses, made of the active members. The pointer changes only when the ring
	// does.
	Ring *ring.Ring
	// Left are the members, by ID, that completed a graceful leave a short while ago. A new boot of one of them may
	// be live.
	Left []ring.ID

	// NRef is the number of members by which a limit is divided: the largest ring that this member or any other
	// remembers.
	NRef int
	// Joined is false during a cold start, while there may be clusters that have not met yet, journals that no member
	// has loaded yet, or members without a place on the ring.
	Joined bool
	// Missing is the number of journals of the last ring that no live member has loaded. The last ring is the newest
	// one that a member announces in Member.Journals, and is fixed when this member joins. From then on, Missing
	// only falls. It is 0 if no member announces a ring, or if this member has joined a running cluster.
	Missing int
	// Standalone is set when this member runs without gossip.
	Standalone bool
	// Problem states why this member stays off the ring, and Cause the same in one word. Both are empty when nothing
	// is wrong.
	Problem string
	Cause   Cause
}

// Find returns the live counting member with that ID, and reports whether there is one.
func (v *View) Find(id ring.ID) (Member, bool) {
	for i := range v.Members {
		if v.Members[i].ID == id && v.Members[i].Role == RoleMember {
			return v.Members[i], true
		}
	}
	return Member{}, false
}

// SelfMember returns this member as the others see it. It has nothing but its ID and boot ID while another boot has
// its place in Members.
func (v *View) SelfMember() Member {
	for i := range v.Members {
		if m := &v.Members[i]; m.BootID == v.BootID && m.ID == v.Self {
			return *m
		}
	}
	return Member{ID: v.Self, BootID: v.BootID}
}

// Peers returns the other live counting members, by ID. The members belong to the view: they are not to be changed.
func (v *View) Peers() iter.Seq[*Member] {
	return func(yield func(*Member) bool) {
		for i := range v.Members {
			if m := &v.Members[i]; m.Role == RoleMember && m.ID != v.Self && !yield(m) {
				return
			}
		}
	}
}

// Leaving reports whether this member is leaving.
func (v *View) Leaving() bool { return v.SelfMember().State == Leaving }

// DifferingRings returns the number of active members that use another ring than this one.
func (v *View) DifferingRings() int {
	n, own := 0, v.Ring.Fingerprint()
	for i := range v.Members {
		m := &v.Members[i]
		if m.BootID != v.BootID && m.IsActive() && m.Ring != own {
			n++
		}
	}
	return n
}

// OtherRingParameters returns the active members, by ID, that are configured for another kind of ring than this member.
// While there are any, all members use Keyward's own ring.
func (v *View) OtherRingParameters() []ring.ID {
	var ids []ring.ID
	self := v.SelfMember()
	for i := range v.Members {
		if m := &v.Members[i]; m.IsActive() && self.Role == RoleMember && m.RingParameters != self.RingParameters {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// IncompleteMembers returns the number of active members that have not announced that they hold all of their keys on
// this member's ring.
func (v *View) IncompleteMembers() int {
	n, own := 0, v.Ring.Fingerprint()
	for i := range v.Members {
		m := &v.Members[i]
		if m.IsActive() && m.SupportsHandoff() && m.CompleteRing != own {
			n++
		}
	}
	return n
}

// Equal reports whether v and o describe the same cluster. The rings are compared by pointer; o may be nil.
func (v *View) Equal(o *View) bool {
	return o != nil && v.Ring == o.Ring && v.NRef == o.NRef && v.Joined == o.Joined && v.Problem == o.Problem &&
		v.Missing == o.Missing && slices.Equal(v.Members, o.Members) && slices.Equal(v.Left, o.Left)
}

// Cause is the reason why a member stays off the ring, as the label of the metric keyward_off_ring.
type Cause string

// The causes.
const (
	CauseLookup       Cause = "lookup"  // no name to join has ever been resolved
	CauseGossip       Cause = "gossip"  // the addresses to join belong to another cluster, or use another key
	CauseStreams      Cause = "streams" // it and the other members have no streams to each other
	CauseNameConflict Cause = "rival"   // another live member has its name
	CauseFull         Cause = "full"    // the ring has no room
	CauseHost         Cause = "host"    // another live member has its host on the user's ring
	CauseFlapping     Cause = "flaps"   // it has lost all other members again and again
)

// Causes lists all causes.
var Causes = []Cause{CauseLookup, CauseGossip, CauseStreams, CauseNameConflict, CauseFull, CauseHost, CauseFlapping}
