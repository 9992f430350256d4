package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// machine turns what gossip and the join loop saw into Views. It is passive: it is given the time, performs nothing,
// and returns what self is to announce. One goroutine drives it.
type machine struct {
	capacity   int
	expect     int
	standalone bool
	handoff    bool // see Options
	streams    bool // see Options
	timing     Timing

	expectTimeout time.Duration // after which fewer than expect are enough; 0: never

	newRing func([]ring.Member) *ring.Ring // see Options
	start   time.Time

	misconfiguredAt   time.Time // when self was astray last
	disconnectedSince time.Time // since when self lacks streams; zero if it does not
	isolated          bool      // see Member.Isolated
	hadStreams        bool      // it has had streams with somebody
	hadCompany        bool      // it has met another counting member
	joined            bool      // may take a place on the ring
	joinedAt          time.Time // when it might for the first time, or again after it was held back
	established       bool      // and others count, or it has seen everyone take their places, so that it may trust its own
	metExpected       bool      // it has met as many members as it expects, see Member.MetExpected
	readySince        time.Time // since when self waits for its turn; zero if it does not
	flaps             flapGuard
	ring              *ring.Ring
	ringAdoptedAt     time.Time     // when ring was adopted
	ringMembers       []ring.Member // of ring, by ID
	joinWaitingSince  time.Time     // since when a mere join waits to be adopted; zero if none does
	nref              nRefMemory
	left              map[ring.ID]time.Time // who went having handed over, and when
	view              *membership.View
}

// observation is what is known at one moment.
type observation struct {
	self     membership.Member
	status   handoffStatus
	others   []membership.Member  // live boots of all members but self
	departed map[uint64]departure // who went since the last sight, by instance
	join     joinStatus
}

// departure is how a boot went, and from where.
type departure struct {
	id        ring.ID
	gossip    string
	graceful  bool
	handedOff bool // and others have all that it knew
}

// joinStatus is what the join loop knows of the addresses it was given.
type joinStatus struct {
	rounds  int      // how often it has tried all
	listed  int      // addresses resolved, self's own counted whether it is among them or not
	others  []string // addresses resolved that are not self's
	reached []string // of these, those that have answered
	blind   bool     // names could not be looked up, which is not to say that there is nobody

	unresolved bool   // no name has ever been found
	foreign    int    // addresses where somebody answers who takes self for no member
	failure    string // what failed in the last round, for people
}

// outcome is what follows from a sight. Of self, Member holds what the machine decides: State, Ring, NRef, Complete and
// the three flags.
type outcome struct {
	view         *membership.View
	viewChanged  bool               // view differs from the last one
	self         membership.Member  // as it is to be announced
	nameConflict *membership.Member // the boot that stands in self's place
	ringChanged  bool               // the ring is another
	ringChange   ringChange
	wake         time.Duration // when to look again although nothing happens; 0 if not needed
}

// wakeWithin asks for another look after d, if d is not 0.
func (o *outcome) wakeWithin(d time.Duration) {
	if d > 0 && (o.wake == 0 || d < o.wake) {
		o.wake = d
	}
}

// step looks at s.
func (m *machine) step(now time.Time, s observation) outcome {
	if m.ring != nil {
		m.describe(&s.self, &s.status)
	}
	members, rival := resolveNames(&s.self, s.others)
	var lost offRingReason
	if !m.joined || s.self.Role == membership.RoleObserver { // whoever has joined has met everyone that it was to meet, or gave up looking
		lost = m.misconfigured(now, &s)
	}
	switch {
	case m.joined:
	case lost.cause != "":
		m.misconfiguredAt = now
	case m.mayJoin(now, &s, members):
		m.joined, m.joinedAt = true, now
	}
	m.established = m.established || m.joined && clusterRunning(&s.self, members)
	m.metExpected = m.metExpected || m.expect > 0 && m.seesExpected(&s.self, members)
	m.hadCompany = m.hadCompany || slices.ContainsFunc(members, func(x membership.Member) bool { return x.Role == membership.RoleMember && x.BootID != s.self.BootID })
	m.flaps.observe(now, &s.self, members, m.timing.FlapHold)
	m.recordDepartures(now, s.departed)
	o := outcome{nameConflict: rival, self: s.self}
	self := &o.self
	var off offRingReason
	self.State, off = m.desiredState(now, &s, members, rival, lost, &o)
	if self.State != membership.Joining || off.cause != "" {
		m.readySince = time.Time{}
	}
	mine := slices.IndexFunc(members, func(x membership.Member) bool { return x.BootID == self.BootID })
	if mine >= 0 {
		members[mine].State = self.State
	}
	m.adoptRing(now, &o, members, s.departed)
	m.established = m.established || m.joined && (m.complete(members) || m.searchTime(now) >= m.timing.ColdStart)
	m.nref.expire(now, m.ring.Len())
	m.describe(self, &s.status)
	if mine >= 0 {
		members[mine] = *self
	}
	v := &membership.View{
		Self: self.ID, BootID: self.BootID, Members: members, Ring: m.ring, NRef: m.computeNRef(now, &s, members, lost, off), Joined: m.established && rival == nil,
		Standalone: m.standalone, Problem: off.text, Cause: off.cause, Left: slices.Sorted(maps.Keys(m.left)),
	}
	if o.viewChanged = !v.Equal(m.view); o.viewChanged {
		m.view = v
	}
	o.view = m.view
	return o
}

// describe fills in what self is to announce of the ring and of itself.
func (m *machine) describe(self *membership.Member, t *handoffStatus) {
	self.Ring, self.NRef, self.Established, self.AwaitsTurn = m.ring.Fingerprint(), m.nref.peak, m.established, !m.readySince.IsZero()
	self.CompleteRing, self.HandedOff, self.MetExpected, self.Isolated = t.completeRing, self.State == membership.Leaving && (t.handedOff || !m.handoff), m.metExpected, m.isolated
	if !m.handoff {
		self.CompleteRing = self.Ring
	}
}

// recordDepartures notes who went gracefully, for as long as others may still go by a ring with them on it.
func (m *machine) recordDepartures(now time.Time, gone map[uint64]departure) {
	maps.DeleteFunc(m.left, func(_ ring.ID, at time.Time) bool { return now.Sub(at) >= m.timing.LeftMemory })
	for _, f := range gone {
		if f.handedOff {
			m.left[f.id] = now
		} else {
			delete(m.left, f.id) // a later boot, which has not
		}
	}
}

// complete says whether all live members are on the ring. Members that start together go onto it one after the other; the
// first must not take itself for the owner of everything meanwhile.
func (m *machine) complete(members []membership.Member) bool {
	return !slices.ContainsFunc(members, func(x membership.Member) bool {
		return x.Role == membership.RoleMember && x.State != membership.Leaving && !x.Isolated && m.ring.Index(x.ID) < 0
	})
}

// desiredState returns the state that self should have, and what keeps it off the ring.
func (m *machine) desiredState(now time.Time, s *observation, members []membership.Member, rival *membership.Member, lost offRingReason, o *outcome) (membership.MemberState, offRingReason) {
	self := &s.self
	switch {
	case self.State == membership.Leaving:
		return membership.Leaving, offRingReason{}
	case s.status.draining && !m.standalone && m.mayLeave(now, &s.status, self, members):
		return membership.Leaving, offRingReason{}
	case rival != nil:
		return membership.Joining, offRingReason{membership.CauseNameConflict, fmt.Sprintf("another live member is called %q: %s, and this one is %s", self.ID, rival.Gossip, self.Gossip)}
	case self.Role == membership.RoleObserver:
		return membership.Active, m.reportable(now, lost, o)
	case !m.joined:
		return membership.Joining, m.reportable(now, lost, o)
	case now.Before(m.flaps.until):
		m.joinedAt = now // copies that came before are old
		o.wakeWithin(m.flaps.until.Sub(now))
		return membership.Joining, offRingReason{membership.CauseFlapping, "lost all others and met them again: off their ring for a moment"}
	case self.State == membership.Joining && !m.ringHasRoom(self, members), self.State == membership.Active && !hasPlace(self, members, m.capacity):
		return membership.Joining, offRingReason{membership.CauseFull, fmt.Sprintf("the ring is full: weights may sum up to %d; raise the ring capacity on all members", m.capacity-1)}
	case self.State == membership.Active:
		return m.keepPlace(now, s, members)
	}
	if off, rest := m.disconnected(now, s, members); off.cause != "" {
		if rest > 0 {
			o.wakeWithin(rest)
			m.readySince = time.Time{}
			return membership.Joining, offRingReason{}
		}
		return membership.Joining, off
	}
	goes, wait := m.mayTakeTurn(now, s, members)
	o.wakeWithin(wait)
	if goes {
		return membership.Active, offRingReason{}
	}
	return membership.Joining, offRingReason{}
}

// ringHasRoom says whether the ring has room for self.
func (m *machine) ringHasRoom(self *membership.Member, members []membership.Member) bool {
	sum := int(self.Weight)
	for i := range members {
		if x := &members[i]; x.Role == membership.RoleMember && x.State == membership.Active && x.ID != self.ID {
			sum += int(x.Weight)
		}
	}
	return sum <= m.capacity-1
}

// hasPlace says whether self, being active, is among those that fit.
func hasPlace(self *membership.Member, members []membership.Member, capacity int) bool {
	return slices.Contains(wantedRing(members, capacity), self.RingMember())
}

// adoptRing moves to the ring that members ask for. Losses count at once, for a key whose owner is gone has none; mere
// joins wait a little, so that members which start together make one new ring and not many.
func (m *machine) adoptRing(now time.Time, o *outcome, members []membership.Member, gone map[uint64]departure) {
	want := wantedRing(members, m.capacity)
	if m.ring != nil && slices.Equal(want, m.ringMembers) {
		m.joinWaitingSince = time.Time{}
		return
	}
	c := m.compareRings(want, members, gone)
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
	m.ringMembers, m.ring, m.ringAdoptedAt, o.ringChanged, o.ringChange = want, m.buildRing(want, members), now, true, c
	m.nref.ringChanged(now, len(want), len(c.left), len(c.died))
	for _, id := range c.died {
		delete(m.left, id)
	}
}

// buildRing makes the ring of want, with room for those who are waiting to come onto it.
func (m *machine) buildRing(want []ring.Member, members []membership.Member) *ring.Ring {
	if m.newRing != nil {
		return m.newRing(want)
	}
	var soon []ring.Member
	for i := range members {
		if x := &members[i]; x.Role == membership.RoleMember && x.State == membership.Joining {
			soon = append(soon, x.RingMember())
		}
	}
	return cmp.Or(m.ring, &ring.Ring{}).Next(want, soon)
}

// ringChange is what makes one ring of another.
type ringChange struct {
	joined, left, died []ring.ID
	replaced           []ring.ID // there as before, but as another boot or with another weight
	crashed            int       // boots that went without a farewell, those with a successor included
}

// onlyJoins says that the change brings members and takes none away.
func (c *ringChange) onlyJoins() bool { return len(c.left)+len(c.died)+len(c.replaced) == 0 }

// compareRings compares the ring with the one wanted. A boot that a newer one replaced has crashed if it said no farewell,
// but N_ref is about members, so one that is on the ring again has not died.
func (m *machine) compareRings(want []ring.Member, members []membership.Member, gone map[uint64]departure) (c ringChange) {
	wanted := make(map[ring.ID]ring.Member, len(want))
	for _, w := range want {
		wanted[w.ID] = w
	}
	live := make(map[uint64]bool, len(members))
	for i := range members {
		live[members[i].BootID] = members[i].Role == membership.RoleMember
	}
	for _, seat := range m.ringMembers {
		w, ok := wanted[seat.ID]
		delete(wanted, seat.ID)
		if ok && w == seat {
			continue
		}
		graceful := live[seat.BootID] || gone[seat.BootID].graceful // leaving, or off the ring by its own will
		if !graceful {
			c.crashed++
		}
		switch {
		case ok:
			c.replaced = append(c.replaced, seat.ID)
		case graceful:
			c.left = append(c.left, seat.ID)
		default:
			c.died = append(c.died, seat.ID)
		}
	}
	c.joined = slices.Sorted(maps.Keys(wanted))
	return c
}

// seesExpected reports whether as many members as expected are live, self included, or one is active that had met as many as it
// expected: a member that comes to a cluster which is scaled down, or being scaled up, does not divide by more than the others.
func (m *machine) seesExpected(self *membership.Member, members []membership.Member) bool {
	n := 0
	for i := range members {
		x := &members[i]
		if x.Role != membership.RoleMember {
			continue
		}
		n++
		if x.BootID != self.BootID && x.State == membership.Active && x.MetExpected {
			return true
		}
	}
	return n >= m.expect
}

// belowExpected reports whether self divides limits by expect because it has not met as many members.
func (m *machine) belowExpected(now time.Time) bool {
	return !m.standalone && m.expect > 0 && !m.metExpected && !m.expectTimedOut(now)
}

// computeNRef is N_ref: the largest ring that self or any live member remembers; in a cold start, and with no Expect for as long as self has met nobody, also all
// that may exist; and what self expects for as long as it has not met as many.
func (m *machine) computeNRef(now time.Time, s *observation, members []membership.Member, lost, off offRingReason) int {
	n := max(1, m.nref.peak)
	for i := range members {
		// Whoever goes by another ring may not have seen the leave that self has.
		if x := &members[i]; x.Role == membership.RoleMember && x.State != membership.Leaving && x.BootID != s.self.BootID && x.Ring == m.ring.Fingerprint() {
			n = max(n, x.NRef)
		}
	}
	switch {
	case lost.cause != "":
		n = max(n, m.expect, s.join.listed, 2) // there is one at least, or there would be nobody to join
	case !m.established, m.expect == 0 && !m.hadCompany && !m.expectTimedOut(now):
		n = max(n, m.expect, s.join.listed)
	}
	if m.belowExpected(now) {
		n = max(n, m.expect)
	}
	if off.cause != "" { // those on the ring do not divide by self, and of those off it each admits a share
		n = max(n, m.expect, m.ring.Len()+1, len(members))
	}
	return n
}
