package cluster

import (
	"time"

	"github.com/keyward/keyward/internal/membership"
)

// nRefMemory remembers how large the ring has been: N_ref, by which a limit is divided when the owner of its key
// cannot be reached. N_ref must not fall just because other members are silent: they may be alive behind a partition,
// with shares of their own. It falls only by
//   - a graceful leave, at once: the leaver has given up its share;
//   - time: decay after the last death. However many members agree about a death, those behind a partition divide by the
//     old N_ref for as long as they cannot see the others: of five members divided into 3 and 2, three with the complete
//     limit and two with 2/5 of it would admit too much.
//
// A member announces only what it has observed itself, never what it has received, so that a number cannot be kept
// alive by echo.
type nRefMemory struct {
	decay     time.Duration
	peak      int
	lastDeath time.Time
}

// ringChanged records a new ring of the given size, which left members have left gracefully and died members have
// not.
func (r *nRefMemory) ringChanged(now time.Time, size, left, died int) {
	r.peak = max(r.peak-left, size)
	if died > 0 {
		r.lastDeath = now
	}
}

// expire lowers the peak to the ring's size if the last death was long enough ago.
func (r *nRefMemory) expire(now time.Time, size int) {
	if r.peak > size && now.Sub(r.lastDeath) >= r.decay {
		r.peak = size
	}
}

// computeNRef returns N_ref: the largest ring that this member or any live member on the same ring remembers. In a
// cold start, and without Options.Expect for as long as this member has met no other, it includes all members that
// may exist. It is at least Options.Expect until this member has met that many.
func (m *machine) computeNRef(now time.Time, s *situation, off offRingReason) int {
	n := max(1, m.nref.peak)
	for i := range s.members {
		// A member on another ring may not have seen a leave that this one has seen.
		x := &s.members[i]
		other := x.Role == membership.RoleMember && x.State != membership.Leaving && x.BootID != s.self.BootID
		if other && x.Ring == m.ring.Fingerprint() {
			n = max(n, x.NRef)
		}
	}
	switch {
	case s.lost.cause != "":
		n = max(n, m.expect, s.join.listed, 2) // there is at least one other, or there would be none to join
	case !m.established, m.expect == 0 && !m.hadCompany && !m.expectTimedOut(now):
		n = max(n, m.expect, s.join.listed)
	}
	if m.belowExpected(now) {
		n = max(n, m.expect)
	}
	if m.ring.Len() == 0 && s.self.State == membership.Leaving { // all are leaving, and each decides from its share until it ends
		m.leavers = max(m.leavers, countingMembers(s.members))
		n = max(n, m.leavers)
	}
	if off.cause != "" { // the members on the ring do not include this one, and each of those off the ring admits a share
		n = max(n, m.expect, m.ring.Len()+1, len(s.members))
	}
	return n
}

// countingMembers returns the number of live members that have counters, those that are leaving included.
func countingMembers(members []membership.Member) (n int) {
	for i := range members {
		if members[i].Role == membership.RoleMember {
			n++
		}
	}
	return n
}

// seesExpected reports whether as many members as expected are live, this one included, or one is active that had met
// as many as it expected. A member that joins a cluster which is being scaled then divides by no more than the
// others.
func (m *machine) seesExpected(self *membership.Member, members []membership.Member) bool {
	n := 0
	for i := range members {
		x := &members[i]
		if x.Role != membership.RoleMember {
			continue
		}
		n++
		if x.BootID != self.BootID && x.State == membership.Active && x.MetExpected {
			return true
		}
	}
	return n >= m.expect
}

// belowExpected reports whether this member divides limits by Options.Expect because it has not met that many
// members.
func (m *machine) belowExpected(now time.Time) bool {
	return !m.standalone && m.expect > 0 && !m.metExpected && !m.expectTimedOut(now)
}
