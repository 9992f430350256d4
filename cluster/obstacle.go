package cluster

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/keyward/keyward/ring"
)

// Cause is why a member stays off the ring, in a word, as the metric keyward_off_ring has it.
type Cause string

// The causes.
const (
	CauseLookup  Cause = "lookup"  // no name of Options.Join has ever been found
	CauseGossip  Cause = "gossip"  // who answers there ends the exchange: of another cluster, or with another key
	CauseStreams Cause = "streams" // members cannot ask each other
	CauseRival   Cause = "rival"   // another live member has its name
	CauseFull    Cause = "full"    // the ring has no room
	CauseFlaps   Cause = "flaps"   // it lost all others again and again
)

var causes = []Cause{CauseLookup, CauseGossip, CauseStreams, CauseRival, CauseFull, CauseFlaps}

// obstacle is what keeps self off the ring; the zero value is nothing.
type obstacle struct {
	cause Cause
	text  string
}

// astray reports whether self has met no other member, and what it was given to find them by is wrong, as far as one can tell: no name was ever found, or
// somebody answers and does not take it for a member. Alone it would be a second cluster with limits of its own, so it waits for as long as that lasts, or until
// Options.ExpectTimeout. Addresses at which nobody answers are no sign of that: their members may not have started yet.
func (m *machine) astray(now time.Time, s *sight) obstacle {
	c := &s.contact
	switch {
	case m.standalone || len(s.others) > 0 || m.gaveUp(now):
		return obstacle{}
	case c.unresolved:
		return obstacle{CauseLookup, "met no other member: " + c.failure + "; compare --join"}
	case c.foreign:
		return obstacle{CauseGossip, "met no other member: " + c.failure + "; compare --cluster and --gossip-key-file"}
	}
	return obstacle{}
}

// stuck is astray, once it is no longer what every start may look like: a pod's own name, too, is found a moment after it has started.
func (m *machine) stuck(now time.Time, s *sight, o *outcome) obstacle {
	off := m.astray(now, s)
	if rest := m.timing.Alone - now.Sub(m.start); off.cause != "" && rest > 0 {
		o.later(rest)
		return obstacle{}
	}
	return off
}

// gaveUp reports whether fewer than the members expected are enough by now.
func (m *machine) gaveUp(now time.Time) bool {
	return m.expectTimeout > 0 && now.Sub(m.start) >= m.expectTimeout
}

// Streams is which members self and they can ask, each other.
type Streams struct {
	With    []ring.ID // by ID
	Without string    // why not with others, for people
}

// apart reports whether self lacks streams with most of the members that count, or, where none does yet, with most of those that are to. Nobody could ask it
// about its keys then. rest is how long it may still take for them to come.
func (m *machine) apart(now time.Time, s *sight, members []Member) (o obstacle, rest time.Duration) {
	if !m.streams {
		return obstacle{}, 0
	}
	all, with := m.counting(s, members, Active)
	if all == 0 {
		all, with = m.counting(s, members, Joining)
	}
	if 2*with >= all {
		m.linked = time.Time{}
		return obstacle{}, 0
	}
	if m.linked.IsZero() {
		m.linked = now
	}
	text := fmt.Sprintf("has streams with %d of %d members that count: %s; compare --tls-ca, --tls-cert and --tls-peer-names, and see that --peer can be reached",
		with, all, strings.TrimSpace(s.told.streams.Without))
	return obstacle{CauseStreams, text}, m.timing.Alone - now.Sub(m.linked)
}

// counting is how many other members are in state, and with how many of them self has streams.
func (m *machine) counting(s *sight, members []Member, state State) (all, with int) {
	for i := range members {
		x := &members[i]
		if x.Role != Counter || x.State != state || x.Inst == s.self.Inst || x.Peer == "" {
			continue
		}
		all++
		if slices.Contains(s.told.streams.With, x.ID) {
			with++
		}
	}
	return all, with
}
