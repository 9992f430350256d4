package cluster

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/keyward/keyward/internal/membership"
)

// mayJoin reports whether this member, which is not misconfigured, may take part: it has loaded its journals, has met
// every cluster that it could meet, and in a cold start, all journals of the last ring are loaded. It waits for the
// second and third for a limited time.
func (m *machine) mayJoin(now time.Time, s *situation) bool {
	switch {
	case s.self.Loading:
		return false
	case m.standalone:
		m.journals.giveUp()
		return true
	}
	c := s.countMembers()
	switch {
	case !m.hasMetOthers(now, s, c):
		return false
	case c.active > 0:
		m.journals.followed = m.journals.last.Ring == 0 || !m.journals.complete()
		return true
	}
	return m.waitedForJournals(now, s)
}

// hasMetOthers reports whether this member has met every cluster that it could meet, or waited long enough (see
// Options.Expect).
func (m *machine) hasMetOthers(now time.Time, s *situation, c memberCounts) bool {
	searched, waited := s.join.rounds > 0, m.searchTime(now)
	switch {
	case c.live == 0 && !searched: // the first round may take longer than a cold start, when names are not resolved
		return false
	case waited >= m.timing.ColdStart:
		return true
	case s.self.Role == membership.RoleMember && m.expect > 0 && c.live+1 >= m.expect:
		return true
	}
	alone := m.expect == 0 && len(s.join.others) == 0 && waited >= m.timing.Alone
	first := c.mayStartCluster(s) && (!m.data || m.expect <= 1)
	return searched && (c.foundCluster(&s.join) || first || alone)
}

// memberCounts describes what the search for other members has found.
type memberCounts struct {
	live, active int // other members
	reached      int // addresses to join that belong to members
}

func (s *situation) countMembers() (c memberCounts) {
	known := make(map[string]bool, len(s.members))
	for i := range s.members {
		x := &s.members[i]
		known[x.Gossip] = true
		if x.Role != membership.RoleMember || x.BootID == s.self.BootID {
			continue
		}
		c.live++
		if x.State == membership.Active {
			c.active++
		}
	}
	for _, a := range s.join.others {
		if known[a] || len(s.others) > 0 && slices.Contains(s.join.reached, a) {
			c.reached++
		}
	}
	return c
}

// foundCluster reports whether a running cluster was found, or a member at every address to join.
func (c memberCounts) foundCluster(j *joinStatus) bool {
	return c.active > 0 || c.reached > 0 && c.reached == len(j.others)
}

// mayStartCluster reports whether this member is the first of a StatefulSet and no other member has answered. It may
// start a cluster then without waiting for the others.
func (c memberCounts) mayStartCluster(s *situation) bool {
	first := s.self.Role == membership.RoleMember && strings.HasSuffix(string(s.self.ID), "-0")
	return first && c.reached == 0 && !s.join.blind
}

// misconfigured returns why the addresses to join are probably wrong, or the zero offRingReason. This is so when this
// member has met no running cluster, and either has met no member and no name was ever found, or more of those that
// answer reject it than accept it. It would start a second cluster with limits of its own, so it waits for as long as
// this lasts, or until Options.ExpectTimeout. Addresses that do not answer are no sign of a mistake: their members
// may not have started yet.
func (m *machine) misconfigured(now time.Time, s *observation) offRingReason {
	met, running := 0, false
	for i := range s.others {
		if x := &s.others[i]; x.Role == membership.RoleMember {
			met++
			running = running || x.State == membership.Active
		}
	}
	j := &s.join
	switch {
	case m.standalone || running || m.expectTimedOut(now):
		return offRingReason{}
	case met == 0 && j.unresolved:
		return offRingReason{membership.CauseLookup, "met no other member: " + j.failure + "; compare --join"}
	case j.foreign > met:
		text := fmt.Sprintf("met %d other members; %d addresses reject this one: %s; compare --cluster and --gossip-key-file",
			met, j.foreign, j.failure)
		return offRingReason{membership.CauseGossip, text}
	}
	return offRingReason{}
}

// searchTime returns how long this member has searched for others without a sign of a misconfiguration.
func (m *machine) searchTime(now time.Time) time.Duration {
	if m.misconfiguredAt.After(m.start) && !m.expectTimedOut(now) {
		return now.Sub(m.misconfiguredAt)
	}
	return now.Sub(m.start)
}

// reportable returns lost once it can no longer be part of a normal start: a pod's own name, too, resolves a moment
// after its start.
func (m *machine) reportable(now time.Time, lost offRingReason, o *outcome) offRingReason {
	if rest := m.timing.Alone - now.Sub(m.start); lost.cause != "" && rest > 0 {
		o.wakeWithin(rest)
		return offRingReason{}
	}
	return lost
}

// expectTimedOut reports whether fewer members than expected are enough by now.
func (m *machine) expectTimedOut(now time.Time) bool {
	return m.expectTimeout > 0 && now.Sub(m.start) >= m.expectTimeout
}
