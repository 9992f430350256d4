package cluster

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// Streams describes the streams between this member and the others.
type Streams struct {
	With    []ring.ID // members with streams in both directions, by ID
	Without string    // why there are none with the other members, for people
}

// streamCounts counts the other members. It leaves out a member that announces itself isolated and has no streams
// with this one.
type streamCounts struct {
	all, connected          int // members, and those with which this one has streams
	active, activeConnected int // those of them that are on the ring
	connectedSound          int // connected members that are not isolated
}

func (s *situation) countStreams() (c streamCounts) {
	for i := range s.members {
		x := &s.members[i]
		connected := slices.Contains(s.status.streams.With, x.ID)
		other := x.Role == membership.RoleMember && x.State != membership.Leaving && x.BootID != s.self.BootID
		if !other || x.Peer == "" || x.Isolated && !connected {
			continue
		}
		n := 0
		if connected {
			n = 1
		}
		if connected && !x.Isolated {
			c.connectedSound++
		}
		c.all, c.connected = c.all+1, c.connected+n
		if x.State == membership.Active {
			c.active, c.activeConnected = c.active+1, c.activeConnected+n
		}
	}
	return c
}

// enough reports whether this member has enough streams: with half of the members on the ring, because they are a
// running cluster, whatever other members there are. If only one is on the ring, which may be the one with a mistake,
// with that one or with most of all members. If none is, with half of all members.
func (c streamCounts) enough() bool {
	switch c.active {
	case 0:
		return 2*c.connected >= c.all
	case 1:
		return c.activeConnected == 1 || 2*(c.connected+1) > c.all+1
	}
	return 2*c.activeConnected >= c.active
}

// disconnected returns an offRingReason if this member lacks streams with too many other members, which could not
// forward requests to it. This remains so after all members of the ring are gone, because they will return, until the
// member has a stream with one that is not isolated. The duration is how long streams may still take to open.
func (m *machine) disconnected(now time.Time, s *situation) (off offRingReason, rest time.Duration) {
	if !m.streams {
		return offRingReason{}, 0
	}
	c := s.countStreams()
	m.hadStreams = m.hadStreams || c.connected > 0
	if c.enough() && (c.connectedSound > 0 || !m.isolated) {
		m.disconnectedSince, m.isolated = time.Time{}, false
		return offRingReason{}, 0
	}
	if m.disconnectedSince.IsZero() {
		m.disconnectedSince = now
	}
	rest = m.timing.Alone - now.Sub(m.disconnectedSince)
	m.isolated = m.isolated || c.active > 0 && c.activeConnected == 0 && rest <= 0
	text := fmt.Sprintf("has streams with %d of %d other members: %s; "+
		"compare --tls-ca, --tls-cert and --tls-peer-names, and check that --peer is reachable",
		c.connected, c.all, strings.TrimSpace(s.status.streams.Without))
	return offRingReason{membership.CauseStreams, text}, rest
}

// keepPlace returns the state of a member that is on the ring. It stays there, unless it started alone, has never had
// a stream and several other members are there now: then it is the one that cannot be reached.
func (m *machine) keepPlace(now time.Time, s *situation) (membership.MemberState, offRingReason) {
	if m.hadStreams {
		return membership.Active, offRingReason{}
	}
	off, rest := m.disconnected(now, s)
	if off.cause == "" || rest > 0 || m.hadStreams || len(s.members) < 3 {
		return membership.Active, offRingReason{}
	}
	return membership.Joining, off
}
