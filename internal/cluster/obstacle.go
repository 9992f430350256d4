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

// astray reports whether self has met no running cluster, and what it was given to find one by is wrong, as far as one can tell: it has met nobody, and no name was
// ever found; or of those who answer more take it for no member than do. It would be a second cluster with limits of its own, so it waits for as long as that lasts, or
// until Options.ExpectTimeout. Addresses at which nobody answers are no sign of that: their members may not have started yet.
func (m *machine) astray(now time.Time, s *sight) obstacle {
	met, runs := 0, false
	for i := range s.others {
		if x := &s.others[i]; x.Role == Counter {
			met++
			runs = runs || x.State == Active
		}
	}
	c := &s.contact
	switch {
	case m.standalone || runs || m.gaveUp(now):
		return obstacle{}
	case met == 0 && c.unresolved:
		return obstacle{CauseLookup, "met no other member: " + c.failure + "; compare --join"}
	case c.foreign > met:
		return obstacle{CauseGossip, fmt.Sprintf("met %d other members, and %d addresses where others are: %s; compare --cluster and --gossip-key-file", met, c.foreign, c.failure)}
	}
	return obstacle{}
}

// waited is how long self has looked for others without a sign of a mistake.
func (m *machine) waited(now time.Time) time.Duration {
	if m.mistaken.After(m.start) && !m.gaveUp(now) {
		return now.Sub(m.mistaken)
	}
	return now.Sub(m.start)
}

// stuck is lost, what astray found, once it is no longer what every start may look like: a pod's own name, too, is found a moment after it has started.
func (m *machine) stuck(now time.Time, lost obstacle, o *outcome) obstacle {
	if rest := m.timing.Alone - now.Sub(m.start); lost.cause != "" && rest > 0 {
		o.later(rest)
		return obstacle{}
	}
	return lost
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

// ties are the other members that self counts to judge whether it can be asked: all, those apart that are odd by their own account and that it has no streams with.
type ties struct {
	all, with       int // members, and those with which it has streams
	active, running int // those of them that are on the ring
	sound           int // of those with streams, the ones that are not odd
}

func (m *machine) tied(s *sight, members []Member) (t ties) {
	for i := range members {
		x := &members[i]
		linked := slices.Contains(s.told.streams.With, x.ID)
		if x.Role != Counter || x.State == Leaving || x.Inst == s.self.Inst || x.Peer == "" || x.Odd && !linked {
			continue
		}
		n := 0
		if linked {
			n = 1
		}
		if linked && !x.Odd {
			t.sound++
		}
		t.all, t.with = t.all+1, t.with+n
		if x.State == Active {
			t.active, t.running = t.active+1, t.running+n
		}
	}
	return t
}

// enough reports whether self can be asked by enough of them: by half of those on the ring, whoever else is there, for they are a running cluster; where only one is,
// which may be the one with a mistake, by most of all; and where none is, by half of all.
func (t ties) enough() bool {
	switch t.active {
	case 0:
		return 2*t.with >= t.all
	case 1:
		return t.running == 1 || 2*(t.with+1) > t.all+1
	}
	return 2*t.running >= t.active
}

// apart says that self lacks streams with too many of the other members. Nobody could ask it about its keys then. It stays so when all go that were on the ring,
// until it has streams with somebody who is not odd: they will come again. rest is how long it may still take for streams to come.
func (m *machine) apart(now time.Time, s *sight, members []Member) (o obstacle, rest time.Duration) {
	if !m.streams {
		return obstacle{}, 0
	}
	t := m.tied(s, members)
	m.asked = m.asked || t.with > 0
	if t.enough() && (t.sound > 0 || !m.odd) {
		m.linked, m.odd = time.Time{}, false
		return obstacle{}, 0
	}
	if m.linked.IsZero() {
		m.linked = now
	}
	rest = m.timing.Alone - now.Sub(m.linked)
	m.odd = m.odd || t.active > 0 && t.running == 0 && rest <= 0
	text := fmt.Sprintf("has streams with %d of %d other members: %s; compare --tls-ca, --tls-cert and --tls-peer-names, and see that --peer can be reached",
		t.with, t.all, strings.TrimSpace(s.told.streams.Without))
	return obstacle{CauseStreams, text}, rest
}

// keep has self, which is on the ring, stay there, unless it began alone, has never had a stream with anybody, and several others are there now: it is the one
// that nobody can ask.
func (m *machine) keep(now time.Time, s *sight, members []Member) (State, obstacle) {
	if m.asked {
		return Active, obstacle{}
	}
	off, rest := m.apart(now, s, members)
	if off.cause == "" || rest > 0 || m.asked || len(members) < 3 {
		return Active, obstacle{}
	}
	return Joining, off
}
