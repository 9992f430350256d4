package sim

import (
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner"
)

// addCharge records what a decision may have charged. Refused hits are charged as well, except if only a part of the
// limit had no room for them, or if the rule divides its limit between tenants.
func (x *span) addCharge(q *request, v *decision) {
	if q.req.Op == owner.Take && !(v.result.Over && v.result.Authority == owner.Part) && !v.refusedUncharged(q) {
		x.charged += q.req.Hits
	}
}

// addCarried records a share that was admitted at the end of a window by a member that has, by another clock, already
// counted hits in the next one: it charges them there.
func (o *oracle) addCarried(a *account, x *span, q *request, v *decision) {
	if q.admits() && v.byShare() && x.end-v.latest <= int64(limit.ClockTolerance) {
		o.carried[carried{a, x.index + 1}] += q.req.Hits
	}
}

// carried is a window into which hits may have been carried.
type carried struct {
	account *account
	window  int64
}

// lateCrash is how long after a crash another member may notice it: a member pauses for at most ten seconds.
const lateCrash = 12 * time.Second

// checkRoom compares the count that a probe has returned after all faults with everything that was ever charged
// (I10). A higher count would refuse callers although there is room. A lost member may be represented by an assumed
// charge, and a lease is charged before it is spent; both are bounded elsewhere.
func (o *oracle) checkRoom(q *request, v *decision) {
	a := o.accounts[q.req.Key]
	if a == nil || a.rule.Algorithm != limit.FixedWindow || a.lends || v.result.Authority != owner.Full ||
		o.w.o.MaxKeys > 0 || o.w.o.Holds.On {
		return
	}
	index := a.index(v)
	for _, x := range a.spans {
		if x.index != index {
			continue
		}
		o.w.stats.count("room looked at")
		if o.lastFault[0] > 0 && x.start-o.lastFault[0] < int64(lateCrash) {
			return // a paused member notices the crash in x, and charges x for it
		}
		if x.allowance > 0 || x.copiers != nil || x.faults&(faultCrash|faultStep) != 0 {
			return
		}
		if x.faults != 0 {
			o.w.stats.count("room looked at after faults")
		}
		if most := x.charged + x.unknown + o.carried[carried{a, index}]; v.result.Before > most {
			o.w.fail("I10: %s reports %d charged hits in window %d of %04x, of which there were %d: %s", v.by.name(),
				v.result.Before, index, a.key[0]>>48, most, x)
		}
		return
	}
}

// netOf returns the sum of what all writers have charged and not refunded in window w of c.
func netOf(c *protocol.CounterRecord, w int64) (net uint64) {
	for _, s := range c.State.Slots {
		if s.At == w {
			net += s.Charged - min(s.Charged, s.Refunded)
		}
	}
	return net
}
