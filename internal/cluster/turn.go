package cluster

import (
	"cmp"
	"slices"
	"time"
)

// Planned changes of the ring, joins and leaves, come one after the other: each waits until all members have taken over
// what the one before made theirs. That is for speed alone, for hand-over survives changes that overlap; so every wait
// has a bound, after which the change is made anyway.

// told is what the caller says of its hand-over, see Options.HandOver.
type told struct {
	warm     bool   // copies of what self is to own have come
	complete uint64 // fingerprint of the last ring of which self has taken over all that is its own
	handed   bool   // self is leaving, and others have all it knew
	drain    bool   // self is to leave
	since    time.Time
	streams  Streams
}

// running says whether any other member counts already. Where nobody does there is nothing to take over: members that
// start together do not wait for each other.
func running(self *Member, members []Member) bool {
	return slices.ContainsFunc(members, func(x Member) bool {
		return x.Role == Counter && x.State == Active && x.Settled && x.Inst != self.Inst
	})
}

// quiet says whether the last change is over: members want no other ring, and all have what is theirs on this one.
func (m *machine) quiet(members []Member) bool {
	if m.ring == nil || !slices.Equal(places(members, m.capacity), m.seats) {
		return false
	}
	fingerprint := m.ring.Fingerprint()
	return !slices.ContainsFunc(members, func(x Member) bool {
		return x.Role == Counter && x.State == Active && x.HandsOver() && (x.Complete != fingerprint || x.Ring != fingerprint)
	})
}

// turn says whether self, which is fit to, may go onto the ring now; if not, when to look again at the latest.
func (m *machine) turn(now time.Time, s *sight, members []Member) (bool, time.Duration) {
	if !running(&s.self, members) {
		return true, 0
	}
	if !m.warm(now, s) {
		m.ready = time.Time{}
		return false, 0
	}
	if m.ready.IsZero() {
		m.ready = now
	}
	// Others that are ready at the same moment must hear of each other first.
	if rest := m.timing.JoinDelay - now.Sub(m.ready); rest > 0 {
		return false, rest
	}
	since := m.ready
	if m.reformed.After(since) {
		since = m.reformed
	}
	if now.Sub(since) >= m.timing.Turn || now.Sub(m.ready) >= 6*m.timing.Turn {
		return true, 0
	}
	return m.quiet(members) && !slices.ContainsFunc(members, func(x Member) bool {
		return x.Role == Counter && x.State == Joining && x.Waits && earlier(&x, &s.self)
	}), 0
}

// warm says whether self has copies of what it is to own, or has waited long enough for them.
func (m *machine) warm(now time.Time, s *sight) bool {
	return !m.handOver || s.told.warm || now.Sub(m.met) >= m.timing.Warm
}

// earlier orders the members that wait for a place.
func earlier(a, b *Member) bool {
	return cmp.Or(cmp.Compare(a.Boot, b.Boot), cmp.Compare(a.ID, b.ID)) < 0
}

// mayLeave says whether self, which is told to, leaves now.
func (m *machine) mayLeave(now time.Time, t *told, self *Member, members []Member) bool {
	return self.Role == Observer || self.State != Active || m.quiet(members) || now.Sub(t.since) >= m.timing.Settle
}

// flaps holds a member back that loses all others and meets them again, again and again: each time keys would move twice.
type flaps struct {
	alone bool      // all others were lost
	count int       // times in a row that they were met again
	last  time.Time // when that was
	until time.Time // self stays off the ring
}

// calm is how long after the last time flapping is forgotten.
const calm = 10 * time.Minute

// maxHold bounds the time off the ring.
const maxHold = time.Minute

// meet notes whether others are there again, and holds self back if they went on without it. Where no two of them share a
// ring nobody is held back, lest all wait for each other.
func (f *flaps) meet(now time.Time, self *Member, members []Member, hold time.Duration) {
	if !f.alone || !slices.ContainsFunc(members, func(x Member) bool { return x.Role == Counter && x.Inst != self.Inst }) {
		return
	}
	f.alone = false
	if !crowd(self, members) {
		return
	}
	if now.Sub(f.last) > calm {
		f.count = 0
	}
	d := min(hold<<min(f.count, 16), maxHold)
	f.count, f.last = f.count+1, now
	f.until = now.Add(d*4/5 + time.Duration(self.Inst>>48)*d*2/5>>16) // instances are random, so this is jitter
}

// crowd says whether two others go by one ring that self has no place on.
func crowd(self *Member, members []Member) bool {
	seen := make(map[uint64]int)
	for i := range members {
		x := &members[i]
		if x.Role != Counter || x.State != Active || x.Inst == self.Inst || x.Ring == self.Ring {
			continue
		}
		if seen[x.Ring]++; seen[x.Ring] == 2 {
			return true
		}
	}
	return false
}
