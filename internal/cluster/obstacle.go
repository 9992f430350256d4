package cluster

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// offRingReason is what keeps self off the ring; the zero value is nothing.
type offRingReason struct {
	cause membership.Cause
	text  string
}

// misconfigured reports whether self has met no running cluster, and what it was given to find one by is wrong, as far as one can tell: it has met nobody, and no name was
// ever found; or of those who answer more take it for no member than do. It would be a second cluster with limits of its own, so it waits for as long as that lasts, or
// until Options.ExpectTimeout. Addresses at which nobody answers are no sign of that: their members may not have started yet.
func (m *machine) misconfigured(now time.Time, s *observation) offRingReason {
	met, runs := 0, false
	for i := range s.others {
		if x := &s.others[i]; x.Role == membership.RoleMember {
			met++
			runs = runs || x.State == membership.Active
		}
	}
	c := &s.join
	switch {
	case m.standalone || runs || m.expectTimedOut(now):
		return offRingReason{}
	case met == 0 && c.unresolved:
		return offRingReason{membership.CauseLookup, "met no other member: " + c.failure + "; compare --join"}
	case c.foreign > met:
		return offRingReason{membership.CauseGossip, fmt.Sprintf("met %d other members, and %d addresses where others are: %s; compare --cluster and --gossip-key-file", met, c.foreign, c.failure)}
	}
	return offRingReason{}
}

// searchTime is how long self has looked for others without a sign of a mistake.
func (m *machine) searchTime(now time.Time) time.Duration {
	if m.misconfiguredAt.After(m.start) && !m.expectTimedOut(now) {
		return now.Sub(m.misconfiguredAt)
	}
	return now.Sub(m.start)
}

// reportable is lost, what astray found, once it is no longer what every start may look like: a pod's own name, too, is found a moment after it has started.
func (m *machine) reportable(now time.Time, lost offRingReason, o *outcome) offRingReason {
	if rest := m.timing.Alone - now.Sub(m.start); lost.cause != "" && rest > 0 {
		o.wakeWithin(rest)
		return offRingReason{}
	}
	return lost
}

// expectTimedOut reports whether fewer than the members expected are enough by now.
func (m *machine) expectTimedOut(now time.Time) bool {
	return m.expectTimeout > 0 && now.Sub(m.start) >= m.expectTimeout
}

// Streams is which members self and they can ask, each other.
type Streams struct {
	With    []ring.ID // by ID
	Without string    // why not with others, for people
}

// streamCounts are the other members that self counts to judge whether it can be asked: all, those apart that are odd by their own account and that it has no streams with.
type streamCounts struct {
	all, connected          int // members, and those with which it has streams
	active, activeConnected int // those of them that are on the ring
	connectedSound          int // of those with streams, the ones that are not odd
}

func (m *machine) countStreams(s *observation, members []membership.Member) (t streamCounts) {
	for i := range members {
		x := &members[i]
		linked := slices.Contains(s.status.streams.With, x.ID)
		if x.Role != membership.RoleMember || x.State == membership.Leaving || x.BootID == s.self.BootID || x.Peer == "" || x.Isolated && !linked {
			continue
		}
		n := 0
		if linked {
			n = 1
		}
		if linked && !x.Isolated {
			t.connectedSound++
		}
		t.all, t.connected = t.all+1, t.connected+n
		if x.State == membership.Active {
			t.active, t.activeConnected = t.active+1, t.activeConnected+n
		}
	}
	return t
}

// enough reports whether self can be asked by enough of them: by half of those on the ring, whoever else is there, for they are a running cluster; where only one is,
// which may be the one with a mistake, by most of all; and where none is, by half of all.
func (t streamCounts) enough() bool {
	switch t.active {
	case 0:
		return 2*t.connected >= t.all
	case 1:
		return t.activeConnected == 1 || 2*(t.connected+1) > t.all+1
	}
	return 2*t.activeConnected >= t.active
}

// disconnected says that self lacks streams with too many of the other members. Nobody could ask it about its keys then. It stays so when all go that were on the ring,
// until it has streams with somebody who is not odd: they will come again. rest is how long it may still take for streams to come.
func (m *machine) disconnected(now time.Time, s *observation, members []membership.Member) (o offRingReason, rest time.Duration) {
	if !m.streams {
		return offRingReason{}, 0
	}
	t := m.countStreams(s, members)
	m.hadStreams = m.hadStreams || t.connected > 0
	if t.enough() && (t.connectedSound > 0 || !m.isolated) {
		m.disconnectedSince, m.isolated = time.Time{}, false
		return offRingReason{}, 0
	}
	if m.disconnectedSince.IsZero() {
		m.disconnectedSince = now
	}
	rest = m.timing.Alone - now.Sub(m.disconnectedSince)
	m.isolated = m.isolated || t.active > 0 && t.activeConnected == 0 && rest <= 0
	text := fmt.Sprintf("has streams with %d of %d other members: %s; compare --tls-ca, --tls-cert and --tls-peer-names, and see that --peer can be reached",
		t.connected, t.all, strings.TrimSpace(s.status.streams.Without))
	return offRingReason{membership.CauseStreams, text}, rest
}

// keepPlace has self, which is on the ring, stay there, unless it began alone, has never had a stream with anybody, and several others are there now: it is the one
// that nobody can ask.
func (m *machine) keepPlace(now time.Time, s *observation, members []membership.Member) (membership.MemberState, offRingReason) {
	if m.hadStreams {
		return membership.Active, offRingReason{}
	}
	off, rest := m.disconnected(now, s, members)
	if off.cause == "" || rest > 0 || m.hadStreams || len(members) < 3 {
		return membership.Active, offRingReason{}
	}
	return membership.Joining, off
}
