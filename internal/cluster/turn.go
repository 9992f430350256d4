package cluster

import (
	"cmp"
	"slices"
	"time"

	"github.com/keyward/keyward/internal/membership"
)

// Planned changes of the ring, joins and leaves, come one after the other: each waits until all members have taken over
// what the one before made theirs. That is for speed alone, for hand-over survives changes that overlap; so every wait
// has a bound, after which the change is made anyway.

// handoffStatus is what the caller says of its hand-over, see Options.Handoff.
type handoffStatus struct {
	prefetched    bool   // copies of what self is to own have come
	completeRing  uint64 // fingerprint of the last ring of which self has taken over all that is its own
	handedOff     bool   // self is leaving, and others have all it knew
	draining      bool   // self is to leave
	drainingSince time.Time
	streams       Streams
}

// clusterRunning says whether any other member counts already. Where nobody does there is nothing to take over: members that
// start together do not wait for each other.
func clusterRunning(self *membership.Member, members []membership.Member) bool {
	return slices.ContainsFunc(members, func(x membership.Member) bool {
		return x.Role == membership.RoleMember && x.State == membership.Active && x.Established && x.BootID != self.BootID
	})
}

// lastChangeComplete says whether the last change is over: members want no other ring, and all have what is theirs on this one.
func (m *machine) lastChangeComplete(members []membership.Member) bool {
	if m.ring == nil || !slices.Equal(wantedRing(members, m.capacity), m.ringMembers) {
		return false
	}
	fingerprint := m.ring.Fingerprint()
	return !slices.ContainsFunc(members, func(x membership.Member) bool {
		return x.Role == membership.RoleMember && x.State == membership.Active && x.SupportsHandoff() && (x.CompleteRing != fingerprint || x.Ring != fingerprint)
	})
}

// mayTakeTurn says whether self, which is fit to, may go onto the ring now; if not, when to look again at the latest.
func (m *machine) mayTakeTurn(now time.Time, s *observation, members []membership.Member) (bool, time.Duration) {
	if !clusterRunning(&s.self, members) {
		return true, 0
	}
	if !m.prefetched(now, s) {
		m.readySince = time.Time{}
		return false, 0
	}
	if m.readySince.IsZero() {
		m.readySince = now
	}
	// Others that are ready at the same moment must hear of each other first.
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
	return m.lastChangeComplete(members) && !slices.ContainsFunc(members, func(x membership.Member) bool {
		return x.Role == membership.RoleMember && x.State == membership.Joining && x.AwaitsTurn && startedEarlier(&x, &s.self)
	}), 0
}

// prefetched says whether self has copies of what it is to own, or has waited long enough for them.
func (m *machine) prefetched(now time.Time, s *observation) bool {
	return !m.handoff || s.status.prefetched || now.Sub(m.joinedAt) >= m.timing.PrefetchTimeout
}

// startedEarlier orders the members that wait for a place.
func startedEarlier(a, b *membership.Member) bool {
	return cmp.Or(cmp.Compare(a.StartedAt, b.StartedAt), cmp.Compare(a.ID, b.ID)) < 0
}

// mayLeave says whether self, which is told to, leaves now.
func (m *machine) mayLeave(now time.Time, t *handoffStatus, self *membership.Member, members []membership.Member) bool {
	return self.Role == membership.RoleObserver || self.State != membership.Active || m.lastChangeComplete(members) || now.Sub(t.drainingSince) >= m.timing.LeaveTurn
}

// flapGuard holds a member back that loses all others and meets them again, again and again: each time keys would move twice.
type flapGuard struct {
	alone bool      // all others were lost
	count int       // times in a row that they were met again
	last  time.Time // when that was
	until time.Time // self stays off the ring
}

// calm is how long after the last time flapping is forgotten.
const calm = 10 * time.Minute

// maxHold bounds the time off the ring.
const maxHold = time.Minute

// observe notes whether others are there again, and holds self back if they went on without it. Where no two of them share a
// ring nobody is held back, lest all wait for each other.
func (f *flapGuard) observe(now time.Time, self *membership.Member, members []membership.Member, hold time.Duration) {
	if !f.alone || !slices.ContainsFunc(members, func(x membership.Member) bool { return x.Role == membership.RoleMember && x.BootID != self.BootID }) {
		return
	}
	f.alone = false
	if !othersShareRing(self, members) {
		return
	}
	if now.Sub(f.last) > calm {
		f.count = 0
	}
	d := min(hold<<min(f.count, 16), maxHold)
	f.count, f.last = f.count+1, now
	f.until = now.Add(d*4/5 + time.Duration(self.BootID>>48)*d*2/5>>16) // instances are random, so this is jitter
}

// othersShareRing says whether two others go by one ring that self has no place on.
func othersShareRing(self *membership.Member, members []membership.Member) bool {
	seen := make(map[uint64]int)
	for i := range members {
		x := &members[i]
		if x.Role != membership.RoleMember || x.State != membership.Active || x.BootID == self.BootID || x.Ring == self.Ring {
			continue
		}
		if seen[x.Ring]++; seen[x.Ring] == 2 {
			return true
		}
	}
	return false
}
