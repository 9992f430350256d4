package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/keyward/keyward/ring"
)

// machine turns what gossip and the join loop saw into Views. It is passive: it is given the time, performs nothing,
// and returns what self is to announce. One goroutine drives it.
type machine struct {
	capacity   int
	expect     int
	standalone bool
	handOver   bool // see Options
	streams    bool // see Options
	timing     Timing

	expectTimeout time.Duration // after which fewer than expect are enough; 0: never

	newRing func([]ring.Member) *ring.Ring // see Options
	start   time.Time

	mistaken    time.Time // when self was astray last
	linked      time.Time // since when self lacks streams; zero if it does not
	odd         bool      // see Member.Odd
	asked       bool      // it has had streams with somebody
	accompanied bool      // it has met another counting member
	joined      bool      // may take a place on the ring
	met         time.Time // when it might for the first time, or again after it was held back
	settled     bool      // and others count, or it has seen everyone take their places, so that it may trust its own
	enough      bool      // it has met as many members as it expects, see Member.Met
	ready       time.Time // since when self waits for its turn; zero if it does not
	flaps       flaps
	ring        *ring.Ring
	reformed    time.Time     // when ring was adopted
	seats       []ring.Member // of ring, by ID
	waiting     time.Time     // since when a mere join waits to be adopted; zero if none does
	nref        reference
	left        map[ring.ID]time.Time // who went having handed over, and when
	view        *View
}

// sight is what is known at one moment.
type sight struct {
	self    Member
	told    told
	others  []Member            // live boots of all members but self
	gone    map[uint64]farewell // who went since the last sight, by instance
	contact contact
}

// farewell is how a boot went, and from where.
type farewell struct {
	id       ring.ID
	gossip   string
	graceful bool
	handed   bool // and others have all that it knew
}

// contact is what the join loop knows of the addresses it was given.
type contact struct {
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
	view   *View
	fresh  bool    // view differs from the last one
	self   Member  // as it is to be announced
	rival  *Member // the boot that stands in self's place
	reform bool    // the ring is another
	change change
	wake   time.Duration // when to look again although nothing happens; 0 if not needed
}

// later asks for another look after d, if d is not 0.
func (o *outcome) later(d time.Duration) {
	if d > 0 && (o.wake == 0 || d < o.wake) {
		o.wake = d
	}
}

// step looks at s.
func (m *machine) step(now time.Time, s sight) outcome {
	if m.ring != nil {
		m.describe(&s.self, &s.told)
	}
	members, rival := settle(&s.self, s.others)
	var lost obstacle
	if !m.joined || s.self.Role == Observer { // whoever has joined has met everyone that it was to meet, or gave up looking
		lost = m.astray(now, &s)
	}
	switch {
	case m.joined:
	case lost.cause != "":
		m.mistaken = now
	case m.mayJoin(now, &s, members):
		m.joined, m.met = true, now
	}
	m.settled = m.settled || m.joined && running(&s.self, members)
	m.enough = m.enough || m.expect > 0 && m.meets(&s.self, members)
	m.accompanied = m.accompanied || slices.ContainsFunc(members, func(x Member) bool { return x.Role == Counter && x.Inst != s.self.Inst })
	m.flaps.meet(now, &s.self, members, m.timing.Hold)
	m.remember(now, s.gone)
	o := outcome{rival: rival, self: s.self}
	self := &o.self
	var off obstacle
	self.State, off = m.stand(now, &s, members, rival, lost, &o)
	if self.State != Joining || off.cause != "" {
		m.ready = time.Time{}
	}
	mine := slices.IndexFunc(members, func(x Member) bool { return x.Inst == self.Inst })
	if mine >= 0 {
		members[mine].State = self.State
	}
	m.adopt(now, &o, members, s.gone)
	m.settled = m.settled || m.joined && (m.complete(members) || m.waited(now) >= m.timing.ColdStart)
	m.nref.settle(now, m.ring.Len())
	m.describe(self, &s.told)
	if mine >= 0 {
		members[mine] = *self
	}
	v := &View{
		Self: self.ID, Inst: self.Inst, Members: members, Ring: m.ring, NRef: m.reckon(now, &s, members, lost, off), Joined: m.settled && rival == nil,
		Standalone: m.standalone, Problem: off.text, Cause: off.cause, Left: slices.Sorted(maps.Keys(m.left)),
	}
	if o.fresh = !v.same(m.view); o.fresh {
		m.view = v
	}
	o.view = m.view
	return o
}

// describe fills in what self is to announce of the ring and of itself.
func (m *machine) describe(self *Member, t *told) {
	self.Ring, self.NRef, self.Settled, self.Waits = m.ring.Fingerprint(), m.nref.peak, m.settled, !m.ready.IsZero()
	self.Complete, self.Handed, self.Met, self.Odd = t.complete, self.State == Leaving && (t.handed || !m.handOver), m.enough, m.odd
	if !m.handOver {
		self.Complete = self.Ring
	}
}

// remember notes who went gracefully, for as long as others may still go by a ring with them on it.
func (m *machine) remember(now time.Time, gone map[uint64]farewell) {
	maps.DeleteFunc(m.left, func(_ ring.ID, at time.Time) bool { return now.Sub(at) >= m.timing.Left })
	for _, f := range gone {
		if f.handed {
			m.left[f.id] = now
		} else {
			delete(m.left, f.id) // a later boot, which has not
		}
	}
}

// complete says whether all live members are on the ring. Members that start together go onto it one after the other; the
// first must not take itself for the owner of everything meanwhile.
func (m *machine) complete(members []Member) bool {
	return !slices.ContainsFunc(members, func(x Member) bool {
		return x.Role == Counter && x.State != Leaving && !x.Odd && m.ring.Index(x.ID) < 0
	})
}

// stand returns the state that self should have, and what keeps it off the ring.
func (m *machine) stand(now time.Time, s *sight, members []Member, rival *Member, lost obstacle, o *outcome) (State, obstacle) {
	self := &s.self
	switch {
	case self.State == Leaving:
		return Leaving, obstacle{}
	case s.told.drain && !m.standalone && m.mayLeave(now, &s.told, self, members):
		return Leaving, obstacle{}
	case rival != nil:
		return Joining, obstacle{CauseRival, fmt.Sprintf("another live member is called %q: %s, and this one is %s", self.ID, rival.Gossip, self.Gossip)}
	case self.Role == Observer:
		return Active, m.stuck(now, lost, o)
	case !m.joined:
		return Joining, m.stuck(now, lost, o)
	case now.Before(m.flaps.until):
		m.met = now // copies that came before are old
		o.later(m.flaps.until.Sub(now))
		return Joining, obstacle{CauseFlaps, "lost all others and met them again: off their ring for a moment"}
	case self.State == Joining && !m.fits(self, members), self.State == Active && !seated(self, members, m.capacity):
		return Joining, obstacle{CauseFull, fmt.Sprintf("the ring is full: weights may sum up to %d; raise the ring capacity on all members", m.capacity-1)}
	case self.State == Active:
		return m.keep(now, s, members)
	}
	if off, rest := m.apart(now, s, members); off.cause != "" {
		if rest > 0 {
			o.later(rest)
			m.ready = time.Time{}
			return Joining, obstacle{}
		}
		return Joining, off
	}
	goes, wait := m.turn(now, s, members)
	o.later(wait)
	if goes {
		return Active, obstacle{}
	}
	return Joining, obstacle{}
}

// fits says whether the ring has room for self.
func (m *machine) fits(self *Member, members []Member) bool {
	sum := int(self.Weight)
	for i := range members {
		if x := &members[i]; x.Role == Counter && x.State == Active && x.ID != self.ID {
			sum += int(x.Weight)
		}
	}
	return sum <= m.capacity-1
}

// seated says whether self, being active, is among those that fit.
func seated(self *Member, members []Member, capacity int) bool {
	return slices.Contains(places(members, capacity), self.place())
}

// adopt moves to the ring that members ask for. Losses count at once, for a key whose owner is gone has none; mere
// joins wait a little, so that members which start together make one new ring and not many.
func (m *machine) adopt(now time.Time, o *outcome, members []Member, gone map[uint64]farewell) {
	want := places(members, m.capacity)
	if m.ring != nil && slices.Equal(want, m.seats) {
		m.waiting = time.Time{}
		return
	}
	c := m.compare(want, members, gone)
	if m.ring != nil && len(m.seats) > 0 && c.joins() {
		if m.waiting.IsZero() {
			m.waiting = now
		}
		if rest := m.timing.JoinDelay - now.Sub(m.waiting); rest > 0 {
			o.later(rest)
			return
		}
	}
	m.waiting = time.Time{}
	m.flaps.alone = m.flaps.alone || len(c.died) > 0 && len(want) == 1 && want[0].Inst == o.self.Inst
	m.seats, m.ring, m.reformed, o.reform, o.change = want, m.build(want, members), now, true, c
	m.nref.change(now, len(want), len(c.left), len(c.died))
	for _, id := range c.died {
		delete(m.left, id)
	}
}

// build makes the ring of want, with room for those who are waiting to come onto it.
func (m *machine) build(want []ring.Member, members []Member) *ring.Ring {
	if m.newRing != nil {
		return m.newRing(want)
	}
	var soon []ring.Member
	for i := range members {
		if x := &members[i]; x.Role == Counter && x.State == Joining {
			soon = append(soon, x.place())
		}
	}
	return cmp.Or(m.ring, &ring.Ring{}).Next(want, soon)
}

// change is what makes one ring of another.
type change struct {
	joined, left, died []ring.ID
	renewed            []ring.ID // there as before, but as another boot or with another weight
	crashed            int       // boots that went without a farewell, those with a successor included
}

// joins says that the change brings members and takes none away.
func (c *change) joins() bool { return len(c.left)+len(c.died)+len(c.renewed) == 0 }

// compare compares the ring with the one wanted. A boot that a newer one replaced has crashed if it said no farewell,
// but N_ref is about members, so one that is on the ring again has not died.
func (m *machine) compare(want []ring.Member, members []Member, gone map[uint64]farewell) (c change) {
	wanted := make(map[ring.ID]ring.Member, len(want))
	for _, w := range want {
		wanted[w.ID] = w
	}
	live := make(map[uint64]bool, len(members))
	for i := range members {
		live[members[i].Inst] = members[i].Role == Counter
	}
	for _, seat := range m.seats {
		w, ok := wanted[seat.ID]
		delete(wanted, seat.ID)
		if ok && w == seat {
			continue
		}
		graceful := live[seat.Inst] || gone[seat.Inst].graceful // leaving, or off the ring by its own will
		if !graceful {
			c.crashed++
		}
		switch {
		case ok:
			c.renewed = append(c.renewed, seat.ID)
		case graceful:
			c.left = append(c.left, seat.ID)
		default:
			c.died = append(c.died, seat.ID)
		}
	}
	c.joined = slices.Sorted(maps.Keys(wanted))
	return c
}

// meets reports whether as many members as expected are live, self included, or one is active that had met as many as it
// expected: a member that comes to a cluster which is scaled down, or being scaled up, does not divide by more than the others.
func (m *machine) meets(self *Member, members []Member) bool {
	n := 0
	for i := range members {
		x := &members[i]
		if x.Role != Counter {
			continue
		}
		n++
		if x.Inst != self.Inst && x.State == Active && x.Met {
			return true
		}
	}
	return n >= m.expect
}

// short reports whether self divides limits by expect because it has not met as many members.
func (m *machine) short(now time.Time) bool {
	return !m.standalone && m.expect > 0 && !m.enough && !m.gaveUp(now)
}

// reckon is N_ref: the largest ring that self or any live member remembers; in a cold start, and with no Expect for as long as self has met nobody, also all
// that may exist; and what self expects for as long as it has not met as many.
func (m *machine) reckon(now time.Time, s *sight, members []Member, lost, off obstacle) int {
	n := max(1, m.nref.peak)
	for i := range members {
		// Whoever goes by another ring may not have seen the leave that self has.
		if x := &members[i]; x.Role == Counter && x.State != Leaving && x.Inst != s.self.Inst && x.Ring == m.ring.Fingerprint() {
			n = max(n, x.NRef)
		}
	}
	switch {
	case lost.cause != "":
		n = max(n, m.expect, s.contact.listed, 2) // there is one at least, or there would be nobody to join
	case !m.settled, m.expect == 0 && !m.accompanied && !m.gaveUp(now):
		n = max(n, m.expect, s.contact.listed)
	}
	if m.short(now) {
		n = max(n, m.expect)
	}
	if off.cause != "" { // those on the ring do not divide by self, and of those off it each admits a share
		n = max(n, m.expect, m.ring.Len()+1, len(members))
	}
	return n
}
