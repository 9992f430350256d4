package cluster

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/keyward/keyward/ring"
)

// machine turns what gossip and the join loop saw into Views. It is passive: it is given the time, performs nothing,
// and returns what self is to announce. One goroutine drives it.
type machine struct {
	capacity   int
	expect     int
	standalone bool
	timing     Timing
	start      time.Time

	joined  bool // may take a place on the ring
	settled bool // and has seen everyone take theirs, so that it may trust its own
	ring    *ring.Ring
	seats   []ring.Member // of ring, by ID
	waiting time.Time     // since when a mere join waits to be adopted; zero if none does
	nref    reference
	view    *View
}

// sight is what is known at one moment.
type sight struct {
	self    Member
	others  []Member             // live boots of all members but self
	gone    map[ring.ID]farewell // who went since the last sight
	contact contact
}

// farewell is how a member went, and from where.
type farewell struct {
	graceful bool
	gossip   string
}

// contact is what the join loop knows of the addresses it was given.
type contact struct {
	rounds  int      // how often it has tried all
	listed  int      // addresses resolved, self's own counted whether it is among them or not
	others  []string // addresses resolved that are not self's
	reached []string // of these, those that have answered
	blind   bool     // names could not be looked up, which is not to say that there is nobody
}

// outcome is what follows from a sight.
type outcome struct {
	view   *View
	fresh  bool          // view differs from the last one
	state  State         // self's new state
	rival  *Member       // the boot that stands in self's place
	reform bool          // the ring is another
	died   int           // members the ring lost without a farewell
	wake   time.Duration // when to look again although nothing happens; 0 if not needed
}

// step looks at s. The state it returns is self's; everything else of self is the caller's.
func (m *machine) step(now time.Time, s sight) outcome {
	members, rival := settle(&s.self, s.others)
	m.joined = m.joined || m.met(now, &s, members)
	o := outcome{rival: rival}
	var problem string
	o.state, problem = m.stand(&s.self, members, rival)
	if i := slices.IndexFunc(members, func(x Member) bool { return x.Inst == s.self.Inst }); i >= 0 {
		members[i].State = o.state
	}
	o.died = m.adopt(now, &o, members, s.gone)
	self := &s.self
	mine := slices.IndexFunc(members, func(x Member) bool { return x.Inst == self.Inst })
	if mine >= 0 {
		members[mine].Ring = m.ring.Fingerprint()
	}
	m.settled = m.settled || m.joined && (m.complete(members) || now.Sub(m.start) >= m.timing.ColdStart)
	m.nref.settle(now, m.ring.Len(), m.confirmed(members))
	if mine >= 0 {
		members[mine].NRef = m.nref.peak
	}
	v := &View{
		Self: self.ID, Inst: self.Inst, Members: members, Ring: m.ring, NRef: m.reckon(&s, members), Joined: m.settled,
		Standalone: m.standalone, Problem: problem,
	}
	if o.fresh = !v.same(m.view); o.fresh {
		m.view = v
	}
	o.view = m.view
	return o
}

// complete says whether all live members are on the ring. Members that start together go onto it one after the other; the
// first must not take itself for the owner of everything meanwhile.
func (m *machine) complete(members []Member) bool {
	return !slices.ContainsFunc(members, func(x Member) bool {
		return x.Role == Counter && x.State != Leaving && m.ring.Index(x.ID) < 0
	})
}

// confirmed is how many members on the ring go by it.
func (m *machine) confirmed(members []Member) int {
	n := 0
	for i := range members {
		x := &members[i]
		if x.Role == Counter && x.State == Active && x.Ring == m.ring.Fingerprint() && m.ring.Index(x.ID) >= 0 {
			n++
		}
	}
	return n
}

// stand says which state self should have, and what is wrong if it has to stay off the ring.
func (m *machine) stand(self *Member, members []Member, rival *Member) (State, string) {
	switch {
	case self.State == Leaving:
		return Leaving, ""
	case rival != nil:
		return Joining, fmt.Sprintf("another live member is called %q: %s, and this one is %s", self.ID, rival.Gossip, self.Gossip)
	case self.Role == Observer:
		return Active, ""
	case !m.joined:
		return Joining, ""
	case self.State == Joining && !m.fits(self, members), self.State == Active && !seated(self, members, m.capacity):
		return Joining, fmt.Sprintf("the ring is full: weights may sum up to %d; raise the ring capacity on all members", m.capacity-1)
	default:
		return Active, ""
	}
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

// met says whether self may take part: it has met every cluster that it could, or waited long enough (see Options.Expect).
func (m *machine) met(now time.Time, s *sight, members []Member) bool {
	if m.standalone || now.Sub(m.start) >= m.timing.ColdStart {
		return true
	}
	live, active, known := 0, 0, make(map[string]bool, len(members))
	for i := range members {
		x := &members[i]
		known[x.Gossip] = true
		if x.Role != Counter || x.Inst == s.self.Inst {
			continue
		}
		live++
		if x.State == Active {
			active++
		}
	}
	reached := 0
	for _, a := range s.contact.others {
		if known[a] || len(s.others) > 0 && slices.Contains(s.contact.reached, a) {
			reached++
		}
	}
	all := len(s.contact.others)
	switch {
	case s.self.Role == Counter && m.expect > 0 && live+1 >= m.expect:
		return true
	case s.contact.rounds == 0:
		return false
	case active > 0, reached > 0 && reached == all:
		return true
	case reached == 0 && !s.contact.blind && s.self.Role == Counter && strings.HasSuffix(string(s.self.ID), "-0"):
		return true
	default:
		return m.expect == 0 && all == 0 && now.Sub(m.start) >= m.timing.Alone
	}
}

// adopt moves to the ring that members ask for. Losses count at once, for a key whose owner is gone has none; mere
// joins wait a little, so that members which start together make one new ring and not many.
func (m *machine) adopt(now time.Time, o *outcome, members []Member, gone map[ring.ID]farewell) (died int) {
	want := places(members, m.capacity)
	if m.ring != nil && slices.Equal(want, m.seats) {
		m.waiting = time.Time{}
		return 0
	}
	left, died, restarted := m.losses(want, members, gone)
	if m.ring != nil && len(m.seats) > 0 && left+died+restarted == 0 {
		if m.waiting.IsZero() {
			m.waiting = now
		}
		if rest := m.timing.JoinDelay - now.Sub(m.waiting); rest > 0 {
			o.wake = rest
			return 0
		}
	}
	m.waiting = time.Time{}
	m.seats, m.ring, o.reform = want, ring.New(want), true
	m.nref.change(now, len(want), left, died)
	return died
}

// losses compares the ring with the one wanted: members that left gracefully, that are lost, and that are there with
// another boot or weight. A boot that a newer one replaced has crashed, but N_ref is about members, and that one lives.
func (m *machine) losses(want []ring.Member, members []Member, gone map[ring.ID]farewell) (left, died, changed int) {
	wanted := make(map[ring.ID]ring.Member, len(want))
	for _, w := range want {
		wanted[w.ID] = w
	}
	live := make(map[ring.ID]bool, len(members))
	for i := range members {
		live[members[i].ID] = live[members[i].ID] || members[i].Role == Counter
	}
	for _, seat := range m.seats {
		w, ok := wanted[seat.ID]
		switch {
		case ok && w == seat:
		case ok:
			changed++
		case gone[seat.ID].graceful, live[seat.ID]:
			left++ // leaving, or off the ring by its own will
		default:
			died++
		}
	}
	return left, died, changed
}

// reckon is N_ref: the largest ring that self or any live member remembers; in a cold start also all that may exist.
func (m *machine) reckon(s *sight, members []Member) int {
	n := max(1, m.nref.peak)
	for i := range members {
		if x := &members[i]; x.Role == Counter && x.State != Leaving && x.Inst != s.self.Inst {
			n = max(n, x.NRef)
		}
	}
	if !m.settled {
		n = max(n, m.expect, s.contact.listed)
	}
	return n
}
