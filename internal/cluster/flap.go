package cluster

import (
	"time"

	"github.com/keyward/keyward/internal/membership"
)

const (
	flapMemory = 10 * time.Minute // after which flapping is forgotten
	maxHold    = time.Minute      // off the ring
)

// flapGuard keeps a member off the ring for a while if it repeatedly loses all others and meets them again. Each
// time, keys would move twice.
type flapGuard struct {
	alone bool      // all others were lost
	count int       // how often in a row they were met again
	last  time.Time // when they were met last
	until time.Time // when the member may go onto the ring again
}

// observe records whether the others are back, and keeps this member off the ring if they have continued without it.
// If no two of them share a ring, it does not, because then all members would wait for each other.
func (f *flapGuard) observe(now time.Time, self *membership.Member, members []membership.Member, hold time.Duration) {
	if !f.alone || !hasCompany(self, members) {
		return
	}
	f.alone = false
	if !othersShareRing(self, members) {
		return
	}
	if now.Sub(f.last) > flapMemory {
		f.count = 0
	}
	d := min(hold<<min(f.count, 16), maxHold)
	f.count, f.last = f.count+1, now
	f.until = now.Add(d*4/5 + time.Duration(self.BootID>>48)*d*2/5>>16) // boot IDs are random, so this is jitter
}

// othersShareRing reports whether two other members use the same ring, and this member another one.
func othersShareRing(self *membership.Member, members []membership.Member) bool {
	seen := make(map[uint64]int)
	for i := range members {
		x := &members[i]
		if !x.IsActive() || x.BootID == self.BootID || x.Ring == self.Ring {
			continue
		}
		if seen[x.Ring]++; seen[x.Ring] == 2 {
			return true
		}
	}
	return false
}
