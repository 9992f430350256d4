package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/keyward/keyward/internal/membership"
)

// journalWait holds what a member observes of journals until it has joined. In a cold start, the counters of the last
// ring are in the journals of its members, and a member that decided before they are loaded would admit too much.
type journalWait struct {
	loadedAt time.Time           // since when this member is not loading; zero while it is
	last     membership.Journals // the newest ring that a live member announces, fixed when this member joins
	loaded   int                 // journals of that ring that live members have loaded
	loading  bool                // another live member is loading
	missing  int                 // see View.Missing
	followed bool                // this member has joined because another was active, before it knew of all journals
	stage    journalStage
}

// journalStage is how far a member's wait for journals is. It never goes back.
type journalStage uint8

const (
	journalsNotAwaited journalStage = iota
	journalsAwaited                 // this member joins as soon as they are loaded
	journalsGivenUp                 // this member has joined without them
)

// observe processes what live members announce, for as long as this member has not joined. A running cluster needs no
// journals, because its members have the counters.
func (j *journalWait) observe(now time.Time, s *situation) {
	if !s.self.Loading && j.loadedAt.IsZero() {
		j.loadedAt = now
	}
	j.last, j.loaded, j.missing, j.loading = membership.Journals{}, 0, 0, false
	if clusterRunning(&s.self, s.members) {
		return
	}
	for i := range s.members {
		x := &s.members[i]
		if x.Role != membership.RoleMember {
			continue
		}
		if x.Journals.Ring != 0 && compareJournals(&x.Journals, &j.last) > 0 {
			j.last = x.Journals
		}
		j.loading = j.loading || x.Loading && x.State != membership.Leaving && x.BootID != s.self.BootID
	}
	if j.last.Ring != 0 {
		j.loaded = loadedJournals(s.members, j.last.Ring)
		j.missing = max(0, j.last.Size-j.loaded)
	}
}

// compareJournals orders announcements by the time at which their rings were complete.
func compareJournals(a, b *membership.Journals) int {
	return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Ring, b.Ring), cmp.Compare(a.Size, b.Size))
}

// loadedJournals returns how many journals of the given ring the live members have loaded. It does not count those of
// members that are leaving, whose counters may leave with them.
func loadedJournals(members []membership.Member, ring uint64) int {
	n := 0
	for i := range members {
		x := &members[i]
		if x.Role == membership.RoleMember && x.State != membership.Leaving && x.Journals.Ring == ring {
			n += x.Journals.Loaded
		}
	}
	return n
}

// lower updates the number of missing journals after this member has joined. The number never rises: a member that
// restarts announces another ring.
func (j *journalWait) lower(members []membership.Member) {
	if j.missing > 0 {
		j.missing = min(j.missing, max(0, j.last.Size-loadedJournals(members, j.last.Ring)))
	}
}

// complete reports whether live members have loaded all journals of the last ring, and none is loading.
func (j *journalWait) complete() bool {
	return !j.loading && (j.last.Ring == 0 || j.loaded >= j.last.Size)
}

// giveUp ends the wait for journals.
func (j *journalWait) giveUp() {
	if !j.complete() {
		j.stage = journalsGivenUp
	}
}

// waitedForJournals reports whether a member that starts a cluster need not wait for journals any longer: all are
// loaded, or it has waited for Timing.ColdStart since it loaded its own. Observers have no counters.
func (m *machine) waitedForJournals(now time.Time, s *situation) bool {
	j := &m.journals
	if s.self.Role == membership.RoleObserver || j.complete() {
		return true
	}
	if min(m.searchTime(now), now.Sub(j.loadedAt)) >= m.timing.ColdStart {
		j.giveUp()
		return true
	}
	if j.last.Ring != 0 {
		j.stage = journalsAwaited
	}
	return false
}

// waitsForPlaces reports whether this member waits until its ring has all live members, although another member trusts
// its own ring already, or Timing.ColdStart has passed. Members without places may have loaded counters that this one
// lacks. They send them when they have their places.
func (m *machine) waitsForPlaces(now time.Time) bool {
	return m.data && m.startedCluster && now.Sub(m.joinedAt) < m.timing.Places
}

// mayTrustRing reports whether this member, which has joined, may trust its ring although it has met no running
// cluster: all live members have places on it, or this member has waited for them long enough. If it has joined because
// another member was active, it may not have met all members that have loaded journals. Then it must also use the same
// ring as a member that trusts its own.
func (m *machine) mayTrustRing(now time.Time, s *situation) bool {
	waits := m.waitsForPlaces(now)
	if !waits && m.searchTime(now) >= m.timing.ColdStart {
		return true
	}
	trusted := func(x membership.Member) bool {
		return x.IsActive() && x.Established && x.Ring == m.ring.Fingerprint() && x.BootID != s.self.BootID
	}
	return m.ringComplete(s.members) && (!waits || !m.journals.followed || slices.ContainsFunc(s.members, trusted))
}

// SetLoaded ends the state in which this member starts with Options.Loading, and announces the journals that it has
// loaded. It may be called again when this member has loaded more.
func (c *Cluster) SetLoaded(j membership.Journals) {
	j.Size, j.At, j.Loaded = max(0, j.Size), max(0, j.At), max(0, j.Loaded)
	c.table.update(func(self *membership.Member) { self.Loading, self.Journals = false, j })
}

// Searched reports whether the View includes the result of the first attempt to join every address in Options.Join.
// Before that, the View may lack live members. A standalone member has none to look for.
func (c *Cluster) Searched() bool { return c.searched.Load() }

// logJournals logs when this member begins to wait for journals, and when it joins without them.
func (c *Cluster) logJournals(j *journalWait) {
	if j.stage == c.journals {
		return
	}
	c.journals = j.stage
	attributes := []any{"ring", fmt.Sprintf("%016x", j.last.Ring), "journals", j.last.Size, "loaded", j.loaded}
	if j.stage == journalsGivenUp {
		c.log.Warn("joining without all journals of the last ring", attributes...)
		return
	}
	c.log.Info("waiting for the journals of the last ring", attributes...)
}
