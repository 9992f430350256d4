package cluster

import (
	"maps"
	"slices"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// machine turns what gossip and the join loop have observed into Views. It is passive: the time is a parameter, it
// performs no effects, and it returns what this member is to announce. One goroutine drives it.
type machine struct {
	capacity   int
	expect     int
	standalone bool
	handoff    bool // see Options
	streams    bool // see Options
	data       bool // see Options
	timing     Timing

	expectTimeout time.Duration // after which fewer members than expect are enough; 0: never

	newRing func([]ring.Member) *ring.Ring // see Options
	start   time.Time

	misconfiguredAt   time.Time // when this member was misconfigured last
	disconnectedSince time.Time // since when it lacks streams; zero if it does not
	isolated          bool      // see Member.Isolated
	hadStreams        bool      // it has had streams with another member
	hadCompany        bool      // it has met another counting member
	joined            bool      // it may take a place on the ring
	joinedAt          time.Time // when it was first allowed to, or allowed again after flapping
	startedCluster    bool      // no other member was established when it joined
	established       bool      // joined, and the cluster is running or complete, so that it may trust its own ring
	metExpected       bool      // it has met as many members as it expects; see Member.MetExpected
	readySince        time.Time // since when it waits for its turn; zero if it does not
	flaps             flapGuard
	ring              *ring.Ring
	ringAdoptedAt     time.Time     // when ring was adopted
	ringMembers       []ring.Member // of ring, by ID
	joinWaitingSince  time.Time     // since when a change that only adds members waits to be adopted; zero if none does
	nref              nRefMemory
	journals          journalWait
	leavers           int                   // the most live members while all of them were leaving
	left              map[ring.ID]time.Time // members that left after a complete handoff, and when
	view              *membership.View
}

// observation is everything that is known at one time.
type observation struct {
	self     membership.Member
	status   handoffStatus
	others   []membership.Member  // live boots of all other members
	departed map[uint64]departure // boots that have left or died since the last observation, by boot ID
	join     joinStatus
}

// departure describes how a boot has left or died, and where it was.
type departure struct {
	id        ring.ID
	gossip    string
	graceful  bool
	handedOff bool // graceful, and other members hold everything that it held
}

// joinStatus is the result of the join loop's last round.
type joinStatus struct {
	rounds  int      // rounds so far
	listed  int      // addresses resolved, plus one for this member
	others  []string // addresses resolved that are not this member's
	reached []string // those of them that have answered
	blind   bool     // a name could not be resolved, so there may be members that are not in others

	unresolved bool   // no name has ever been resolved
	foreign    int    // addresses that answer and do not accept this member
	failure    string // what failed in the last round, for people
}

// situation is an observation with what follows from it directly.
type situation struct {
	*observation
	members  []membership.Member // one boot for each name, this member included; see resolveNames
	conflict *membership.Member  // the boot that has this member's name and takes precedence; nil if there is none
	lost     offRingReason       // see misconfigured
}

// outcome is the result of an observation. The machine sets these fields of self: State, Ring, NRef, CompleteRing
// and the flags.
type outcome struct {
	view         *membership.View
	viewChanged  bool               // view differs from the last one
	self         membership.Member  // as it is to be announced
	nameConflict *membership.Member // the boot that has this member's name and takes precedence
	ringChanged  bool
	ringChange   ringChange
	wake         time.Duration // when to step again although nothing happens; 0 if not needed
}

// wakeWithin requests another step after d, unless d is 0 or less.
func (o *outcome) wakeWithin(d time.Duration) {
	if d > 0 && (o.wake == 0 || d < o.wake) {
		o.wake = d
	}
}

// step processes an observation.
func (m *machine) step(now time.Time, obs observation) outcome {
	if m.ring != nil {
		m.describe(&obs.self, &obs.status)
	}
	s := situation{observation: &obs}
	s.members, s.conflict = resolveNames(&s.self, s.others)
	if m.joined {
		m.journals.lower(s.members)
	} else {
		m.journals.observe(now, &s)
	}
	m.updateJoined(now, &s)
	m.flaps.observe(now, &s.self, s.members, m.timing.FlapHold)
	m.recordDepartures(now, s.departed)
	o := outcome{nameConflict: s.conflict, self: s.self}
	self := &o.self
	var off offRingReason
	self.State, off = m.desiredState(now, &s, &o)
	if self.State != membership.Joining || off.cause != "" {
		m.readySince = time.Time{}
	}
	own := slices.IndexFunc(s.members, func(x membership.Member) bool { return x.BootID == self.BootID })
	if own >= 0 {
		s.members[own].State = self.State
	}
	m.adoptRing(now, &s, &o)
	m.established = m.established || m.joined && m.mayTrustRing(now, &s)
	m.nref.expire(now, m.ring.Len())
	m.describe(self, &s.status)
	if own >= 0 {
		s.members[own] = *self
	}
	v := &membership.View{
		Self: self.ID, BootID: self.BootID, Members: s.members, Ring: m.ring, NRef: m.computeNRef(now, &s, off),
		Joined: m.established && s.conflict == nil, Standalone: m.standalone, Problem: off.text, Cause: off.cause,
		Left: slices.Sorted(maps.Keys(m.left)), Missing: m.journals.missing,
	}
	if o.viewChanged = !v.Equal(m.view); o.viewChanged {
		m.view = v
	}
	o.view = m.view
	return o
}

// updateJoined updates what this member has met so far. A member that has joined has met everything it was to meet,
// or given up.
func (m *machine) updateJoined(now time.Time, s *situation) {
	if !m.joined || s.self.Role == membership.RoleObserver {
		s.lost = m.misconfigured(now, s.observation)
	}
	running := clusterRunning(&s.self, s.members)
	switch {
	case m.joined:
	case s.lost.cause != "":
		m.misconfiguredAt = now
	case m.mayJoin(now, s):
		m.joined, m.joinedAt, m.startedCluster = true, now, !running
	}
	m.established = m.established || m.joined && running && !m.waitsForPlaces(now)
	m.metExpected = m.metExpected || m.expect > 0 && m.seesExpected(&s.self, s.members)
	m.hadCompany = m.hadCompany || hasCompany(&s.self, s.members)
}

// hasCompany reports whether there is another counting member.
func hasCompany(self *membership.Member, members []membership.Member) bool {
	return slices.ContainsFunc(members, func(x membership.Member) bool {
		return x.Role == membership.RoleMember && x.BootID != self.BootID
	})
}

// describe sets what this member announces of its ring and its state.
func (m *machine) describe(self *membership.Member, t *handoffStatus) {
	self.Ring, self.CompleteRing, self.NRef = m.ring.Fingerprint(), t.progress.CompleteRing, m.nref.peak
	self.Established, self.MetExpected, self.Isolated = m.established, m.metExpected, m.isolated
	self.AwaitsTurn = !m.readySince.IsZero()
	self.HandedOff = self.State == membership.Leaving && (t.progress.HandedOff || !m.handoff)
	if !m.handoff {
		self.CompleteRing = self.Ring
	}
}

// recordDepartures records the members that have left gracefully, for as long as others may still use a ring that has
// them.
func (m *machine) recordDepartures(now time.Time, departed map[uint64]departure) {
	maps.DeleteFunc(m.left, func(_ ring.ID, at time.Time) bool { return now.Sub(at) >= m.timing.LeftMemory })
	for _, d := range departed {
		if d.handedOff {
			m.left[d.id] = now
		} else {
			delete(m.left, d.id) // a later boot, which has not left gracefully
		}
	}
}

// ringComplete reports whether all live members are on the ring. Members that start together go onto it one after the
// other, and the first must not consider itself the owner of all keys meanwhile.
func (m *machine) ringComplete(members []membership.Member) bool {
	return !slices.ContainsFunc(members, func(x membership.Member) bool {
		return x.Role == membership.RoleMember && x.State != membership.Leaving && !x.Isolated &&
			m.ring.Index(x.ID) < 0
	})
}
