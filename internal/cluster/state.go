package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// Planned changes of the ring, joins and leaves, happen one after the other: each waits until all members have taken
// over the keys that the previous one gave them. This only makes them faster, for handoff tolerates overlapping
// changes. So every wait has a limit, after which the change happens anyway.

// handoffStatus describes this member's handoff and streams, as the caller has reported them; see Options.Handoff.
type handoffStatus struct {
	progress      membership.Progress
	draining      bool // it is to leave
	drainingSince time.Time
	streams       Streams
}

// offRingReason states why this member stays off the ring. The zero value means that nothing keeps it off.
type offRingReason struct {
	cause membership.Cause
	text  string
}

// desiredState returns the state that this member should have, and what keeps it off the ring.
func (m *machine) desiredState(now time.Time, s *situation, o *outcome) (membership.MemberState, offRingReason) {
	self := &s.self
	switch {
	case self.State == membership.Leaving:
		return membership.Leaving, offRingReason{}
	case s.status.draining && !m.standalone && m.mayLeave(now, s):
		return membership.Leaving, offRingReason{}
	case s.conflict != nil:
		text := fmt.Sprintf("another live member is called %q: it is at %s, this one at %s",
			self.ID, s.conflict.Gossip, self.Gossip)
		return membership.Joining, offRingReason{membership.CauseNameConflict, text}
	case self.Role == membership.RoleObserver:
		return membership.Active, m.reportable(now, s.lost, o)
	case !m.joined:
		return membership.Joining, m.reportable(now, s.lost, o)
	case now.Before(m.flaps.until):
		m.joinedAt = now // replicas from before are out of date
		o.wakeWithin(m.flaps.until.Sub(now))
		text := "lost all other members and met them again; staying off their ring for a moment"
		return membership.Joining, offRingReason{membership.CauseFlapping, text}
	case !m.hasRoom(s):
		text := fmt.Sprintf("the ring is full: the sum of weights may be at most %d; raise --ring-capacity on all members",
			m.capacity-1)
		return membership.Joining, offRingReason{membership.CauseFull, text}
	case s.hostTaken() != "":
		text := fmt.Sprintf("--ring-host %s is the one of member %q, too: Envoy needs a host for each member",
			self.RingHost, s.hostTaken())
		return membership.Joining, offRingReason{membership.CauseHost, text}
	case self.State == membership.Active:
		return m.keepPlace(now, s)
	}
	return m.takePlace(now, s, o)
}

// takePlace returns the state of a member that is off the ring and may join it: active as soon as it has streams and
// its turn has come.
func (m *machine) takePlace(now time.Time, s *situation, o *outcome) (membership.MemberState, offRingReason) {
	if off, rest := m.disconnected(now, s); off.cause != "" {
		if rest > 0 {
			o.wakeWithin(rest)
			m.readySince = time.Time{}
			off = offRingReason{}
		}
		return membership.Joining, off
	}
	may, wait := m.mayTakeTurn(now, s)
	o.wakeWithin(wait)
	if may {
		return membership.Active, offRingReason{}
	}
	return membership.Joining, offRingReason{}
}

// hasRoom reports whether the ring has room for this member if it is joining, or a place for it if it is active.
func (m *machine) hasRoom(s *situation) bool {
	if s.self.State == membership.Active {
		want, _ := wantedRing(s.members, m.capacity)
		return slices.Contains(want, s.self.RingMember()) || s.hostTaken() != ""
	}
	sum := int(s.self.Weight)
	for i := range s.members {
		if x := &s.members[i]; x.IsActive() && x.ID != s.self.ID {
			sum += int(x.Weight)
		}
	}
	return sum <= m.capacity-1
}

// hostTaken returns the live member that has this member's host on a ring with Envoy's parameters and takes precedence,
// or "". An active member takes precedence over a joining one, then the one that started earlier.
func (s *situation) hostTaken() ring.ID {
	if !s.self.RingParameters.Envoy {
		return ""
	}
	for i := range s.members {
		x := &s.members[i]
		if x.Role != membership.RoleMember || x.State == membership.Leaving || x.ID == s.self.ID ||
			x.RingHost != s.self.RingHost {
			continue
		}
		if a, b := x.IsActive(), s.self.IsActive(); a != b && a || a == b && startedEarlier(x, &s.self) {
			return x.ID
		}
	}
	return ""
}

// clusterRunning reports whether another member is established on the ring. Without one there is nothing to take
// over, so members that start together do not wait for each other.
func clusterRunning(self *membership.Member, members []membership.Member) bool {
	return slices.ContainsFunc(members, func(x membership.Member) bool {
		return x.IsActive() && x.Established && x.BootID != self.BootID
	})
}

// lastChangeComplete reports whether the last change of the ring is over: no other ring is wanted, and all members
// hold all of their keys on this one.
func (m *machine) lastChangeComplete(members []membership.Member) bool {
	if want, parameters := wantedRing(members, m.capacity); !m.usesRing(want, parameters) {
		return false
	}
	fingerprint := m.ring.Fingerprint()
	return !slices.ContainsFunc(members, func(x membership.Member) bool {
		complete := x.CompleteRing == fingerprint && x.Ring == fingerprint
		return x.IsActive() && x.SupportsHandoff() && !complete
	})
}

// mayTakeTurn reports whether this member, which is otherwise fit to, may go onto the ring now. If not, it returns
// the time after which to try again at the latest, or 0.
func (m *machine) mayTakeTurn(now time.Time, s *situation) (bool, time.Duration) {
	if !clusterRunning(&s.self, s.members) {
		return true, 0
	}
	if !m.prefetched(now, s) {
		m.readySince = time.Time{}
		return false, 0
	}
	if m.readySince.IsZero() {
		m.readySince = now
	}
	// Members that are ready at the same time must learn of each other first.
	if rest := m.timing.JoinDelay - now.Sub(m.readySince); rest > 0 {
		return false, rest
	}
	since := m.readySince
	if m.ringAdoptedAt.After(since) {
		since = m.ringAdoptedAt
	}
	if now.Sub(since) >= m.timing.JoinTurn || now.Sub(m.readySince) >= 6*m.timing.JoinTurn {
		return true, 0
	}
	return m.lastChangeComplete(s.members) && !slices.ContainsFunc(s.members, func(x membership.Member) bool {
		return x.Role == membership.RoleMember && x.State == membership.Joining && x.AwaitsTurn &&
			startedEarlier(&x, &s.self)
	}), 0
}

// prefetched reports whether this member has replicas of all keys that it will own, or has waited for them long
// enough.
func (m *machine) prefetched(now time.Time, s *situation) bool {
	return !m.handoff || s.status.progress.Prefetched || now.Sub(m.joinedAt) >= m.timing.PrefetchTimeout
}

// startedEarlier orders the members that wait for their turn.
func startedEarlier(a, b *membership.Member) bool {
	return cmp.Or(cmp.Compare(a.StartedAt, b.StartedAt), cmp.Compare(a.ID, b.ID)) < 0
}

// mayLeave reports whether this member, which is to leave, may leave now.
func (m *machine) mayLeave(now time.Time, s *situation) bool {
	onRing := s.self.Role == membership.RoleMember && s.self.State == membership.Active
	return !onRing || m.lastChangeComplete(s.members) || now.Sub(s.status.drainingSince) >= m.timing.LeaveTurn
}
