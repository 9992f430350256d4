package sim

import (
	"math/rand/v2"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
)

// zoneBugs are the bugs that show when a zone fails.
var zoneBugs = map[string]bug{"lose zone replicas": bugDropZoneReplicas}

// expandZones returns the options of a seed whose members run in three zones, of which one fails as a whole. Nothing
// else fails, so that the members of the other zones must have all charges of its members except U.
func expandZones(seed uint64) options {
	o := expandBase(seed)
	r := rand.New(rand.NewPCG(seed, 0x20ef5))
	o.Zones, o.Members = 3, 6
	if r.IntN(3) == 0 {
		o.Members = 9
	}
	o.Slots, o.Keys, o.Length = o.Members, 6+r.IntN(10), 20*time.Second
	o.Crashes, o.Pauses, o.Cuts, o.OneWay, o.Partitions, o.Steps, o.Stills, o.Decay = 0, 0, 0, 0, 0, 0, 0, time.Minute
	o.Leaves, o.Joins, o.Rolls, o.Rules, o.OneOwner, o.Alike = 0, 0, 0, 0, false, false
	o.Loss, o.Reorder, o.Double, o.Breaks, o.Deaf = 0, 0, 0, 0, 0
	o.Skew, o.Drift, o.Policy, o.Full = 0, 0, policy.PartShare, false
	o.Requests *= 2
	return o
}

// zoneOf returns the zone of the members in slot i, of n zones.
func zoneOf(i, n int) string {
	if n == 0 {
		return ""
	}
	return "zone-" + letters[i%n:i%n+1]
}

// crashZone crashes all members of a zone at once. Half of the time, they start again later.
func (w *world) crashZone() {
	zone, again := w.rnd.IntN(w.o.Zones), w.rnd.IntN(2) == 0
	w.stats.count("fault: zone failed")
	w.oracle.zoneFails(zone)
	for i := range w.slots {
		if m := w.slots[i].now; m != nil && i%w.o.Zones == zone {
			w.crash(m)
			if again {
				w.after(4*time.Second+w.randomBelow(4*time.Second), nil, func() { w.boot(i, false) })
			}
		}
	}
}

// zoneFails records what the other zones have of the windows whose owner and successor are in that zone: all that was
// admitted, except U.
func (o *oracle) zoneFails(zone int) {
	o.current(func(a *account, x *span) {
		if x.last != nil && x.successor != nil && x.spare != nil &&
			x.last.slot%o.w.o.Zones == zone && x.successor.slot%o.w.o.Zones == zone && x.admitted > 0 {
			o.w.stats.count("fault: owner and successor failed with their zone")
			x.survives = x.byOwner - min(x.byOwner, a.slack(x.limit))
			for _, h := range a.holds {
				h.survives = h.x == x && h.byOwner
			}
		}
	})
}

// checkSurvived checks that an owner counts what survived the failure of a zone.
func (o *oracle) checkSurvived(a *account, x *span, q *request, v *decision) {
	if x.survives == 0 || !v.onCounter() || a.rule.Algorithm != limit.FixedWindow || x.refunds {
		return
	}
	o.w.stats.count("zone: decisions by its replicas")
	least := x.survives
	if o.w.o.Holds.On {
		least = o.heldSince(a, x, q)
	}
	if v.result.Before < least {
		o.w.fail("I12: request #%d on %04x: %s counts %d in window %d, and %d were admitted before the zone failed", q.id,
			a.key[0]>>48, v.by.name(), v.result.Before, x.index, least)
	}
}

// heldSince returns the hits that the next owner must count when it decides q, of what was admitted before the zone
// failed: without those that were given back since, or are q's own.
func (o *oracle) heldSince(a *account, x *span, q *request) (hits uint64) {
	for _, h := range a.holds {
		if h.x == x && h.survives && h != q.hold {
			hits += h.low
		}
	}
	return hits - min(hits, a.slack(x.limit)+x.holdSlack)
}

// zoneReplicaOf reports whether m holds the zone replica of the key at h, by its own ring.
func (w *world) zoneReplicaOf(m *member, h uint64) bool {
	r := m.view.Ring
	i := r.ZoneReplica(h)
	return i >= 0 && r.At(i).ID == slotID(m.slot)
}
