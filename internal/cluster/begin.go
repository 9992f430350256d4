package cluster

import (
	"slices"
	"strings"
	"time"

	"github.com/keyward/keyward/internal/membership"
)

// mayJoin says whether self, which is not astray, may take part: it has met every cluster that it could, or waited long enough (see Options.Expect).
func (m *machine) mayJoin(now time.Time, s *observation, members []membership.Member) bool {
	if m.standalone {
		return true
	}
	live, active, reached := m.countMembers(s, members)
	looked, waited := s.join.rounds > 0, m.searchTime(now)
	all := len(s.join.others)
	switch {
	case live == 0 && !looked: // nobody was looked for yet; a round may take longer than a cold start, when names are not answered
		return false
	case waited >= m.timing.ColdStart:
		return true
	case s.self.Role == membership.RoleMember && m.expect > 0 && live+1 >= m.expect:
		return true
	case !looked:
		return false
	case active > 0, reached > 0 && reached == all:
		return true
	case reached == 0 && !s.join.blind && s.self.Role == membership.RoleMember && strings.HasSuffix(string(s.self.ID), "-0"):
		return true
	default:
		return m.expect == 0 && all == 0 && waited >= m.timing.Alone
	}
}

// countMembers is how many other members are live, how many of them active, and how many of the addresses that self was given are members'.
func (m *machine) countMembers(s *observation, members []membership.Member) (live, active, reached int) {
	known := make(map[string]bool, len(members))
	for i := range members {
		x := &members[i]
		known[x.Gossip] = true
		if x.Role != membership.RoleMember || x.BootID == s.self.BootID {
			continue
		}
		live++
		if x.State == membership.Active {
			active++
		}
	}
	for _, a := range s.join.others {
		if known[a] || len(s.others) > 0 && slices.Contains(s.join.reached, a) {
			reached++
		}
	}
	return live, active, reached
}
