package cluster

import (
	"slices"
	"strings"
	"time"
)

// mayJoin says whether self, which is not astray, may take part: it has met every cluster that it could, or waited long enough (see Options.Expect).
func (m *machine) mayJoin(now time.Time, s *sight, members []Member) bool {
	if m.standalone {
		return true
	}
	live, active, reached := m.company(s, members)
	looked, waited := s.contact.rounds > 0, m.waited(now)
	all := len(s.contact.others)
	switch {
	case live == 0 && !looked: // nobody was looked for yet; a round may take longer than a cold start, when names are not answered
		return false
	case waited >= m.timing.ColdStart:
		return true
	case s.self.Role == Counter && m.expect > 0 && live+1 >= m.expect:
		return true
	case !looked:
		return false
	case active > 0, reached > 0 && reached == all:
		return true
	case reached == 0 && !s.contact.blind && s.self.Role == Counter && strings.HasSuffix(string(s.self.ID), "-0"):
		return true
	default:
		return m.expect == 0 && all == 0 && waited >= m.timing.Alone
	}
}

// company is how many other members are live, how many of them active, and how many of the addresses that self was given are members'.
func (m *machine) company(s *sight, members []Member) (live, active, reached int) {
	known := make(map[string]bool, len(members))
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
	for _, a := range s.contact.others {
		if known[a] || len(s.others) > 0 && slices.Contains(s.contact.reached, a) {
			reached++
		}
	}
	return live, active, reached
}
