package sim

import (
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner"
)

// addCharge notes what a decision may have put on a counter: hits that were refused are on it, too, unless only a part of the limit had no room
// for them.
func (x *span) addCharge(q *request, v *decision) {
	if q.req.Op == owner.Take && !(v.result.Over && v.result.Authority == owner.Part) {
		x.charged += q.req.Hits
	}
}

// addCarried notes a share that was admitted at the end of a window by a member that knew of hits in the next one, by another clock: it charges
// them there.
func (o *oracle) addCarried(a *account, x *span, q *request, v *decision) {
	if q.req.Op == owner.Take && v.result.Authority == owner.Share && x.end-v.latest <= int64(limit.ClockTolerance) {
		o.carried[carried{a, x.index + 1}] += q.req.Hits
	}
}

// carried is a window into which hits may have been carried.
type carried struct {
	account *account
	window  int64
}

// lateCrash is how long after a crash somebody may notice it: a member stops for ten seconds at most.
const lateCrash = 12 * time.Second

// checkRoom holds the count that a probe was told, after all faults, against what was ever charged (I10). More than that keeps
// callers out of room that nobody has used. Who is gone may have left an assumption in place of its count, and a lease
// is on it before it is spent; both are bounded elsewhere.
func (o *oracle) checkRoom(q *request, v *decision) {
	a := o.accounts[q.req.Key]
	if a == nil || a.rule.Algorithm != limit.FixedWindow || a.lends || v.result.Authority != owner.Full || o.w.o.MaxKeys > 0 {
		return
	}
	index := a.index(v)
	for _, x := range a.spans {
		if x.index != index {
			continue
		}
		o.w.stats.count("room looked at")
		if o.lastFault[0] > 0 && x.start-o.lastFault[0] < int64(lateCrash) {
			return // who was stopped notices the crash in x, and charges x for it
		}
		if x.allowance > 0 || x.copiers != nil || x.faults&(faultCrash|faultStep) != 0 {
			return
		}
		if x.faults != 0 {
			o.w.stats.count("room looked at after faults")
		}
		if most := x.charged + x.unknown + o.carried[carried{a, index}]; v.result.Before > most {
			o.w.fail("I10: %s says that %d hits are charged in window %d of %04x, of which there were %d: %s", v.by.name(), v.result.Before, index, a.key[0]>>48, most, x)
		}
		return
	}
}
