package rulecheck

import (
	"fmt"
	"math"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
)

// FederationConditions are what bounds of rules with federation depend on in addition. Conditions.Members is the number
// of members of each region then.
type FederationConditions struct {
	Weights   []uint32      `json:"weights"`            // of the regions, in the layout's order
	Lag       time.Duration `json:"lag_ns"`             // of the replica to which the coordinator's store fails over
	RoundTrip time.Duration `json:"round_trip_time_ns"` // between regions and coordinator
}

// RegionBounds are the symbols of the bounds of a rule with federation.
type RegionBounds struct {
	Regions int    `json:"K"`
	Pool    uint64 `json:"pool"`
	Slice   uint64 `json:"slice"`  // of the region with the largest one
	Floor   uint64 `json:"floor"`  // of the region with the largest one
	Floors  uint64 `json:"floors"` // of all regions
	Lot     uint64 `json:"lot"`    // the most that an owner requests at once, unless one request has more hits
	Outage  string `json:"outage"`
}

// Hits that an owner requests at once are at most a part of the limit, but a few may always be.
const (
	lotParts = 20
	leastLot = 10
)

// regionBounds divides the limit of r between regions with these weights.
func regionBounds(r *config.RuleSpec, weights []uint32) *RegionBounds {
	t := r.Extension.Federation.Terms
	b := &RegionBounds{Regions: len(weights), Outage: t.Outage.String()}
	for i := range weights {
		d := federation.Divide(r.Limit.Limit, weights, t.Floor, i)
		b.Pool, b.Floors = uint64(d.Pool), b.Floors+uint64(d.Floor)
		b.Slice, b.Floor = max(b.Slice, uint64(d.Slice)), max(b.Floor, uint64(d.Floor))
	}
	b.Lot = min(b.Pool, max(uint64(r.Limit.Limit)/lotParts, leastLot))
	return b
}

// federated writes the bounds of a rule whose limit several regions share. The owner of a key spends its floor and its
// escrow; other members never decide from shares.
func (w *eventTable) federated() {
	f, n := w.Federation, uint64(w.conditions.Members)
	w.floorQuantities()
	if w.Open = 0; w.Spec.Extension.Federation.Terms.Outage == federation.FailOpen {
		w.Open = open(w.Spec, n)
	}
	idle := f.Floors - f.Floor
	w.add(w.under(sum("nothing fails", term{"0", 0}), term{"floors of others", idle}, "if only one region has demand"))
	w.add(w.under(w.skewed("join, leave, rolling restart"), term{"lot", f.Lot}, "until the escrow is returned"))
	w.add(w.under(w.skewed("the owner of a key crashes", w.unowned(term{"U", w.Unacked})...),
		term{"lot", f.Lot}, "until the window ends"))
	w.add(w.floorsLost())
	w.add(w.partitioned())
	if f.Pool > 0 {
		w.coordinator()
	}
	w.add(w.clocks())
}

// floorQuantities computes the symbols of rules within a cluster: what is counted there is the floor.
func (w *eventTable) floorQuantities() {
	floor := w.Spec.Limit
	floor.Limit = uint32(w.Federation.Floor)
	w.Share, w.Phi, w.Lent, w.Drift, w.Tolerated, w.Unacked, w.Skew = 0, 0, 0, 0, 0, 0, 0
	if floor.Limit == 0 {
		return
	}
	if w.conditions.Members > 1 && !w.Strict {
		w.Unacked = floor.Unreplicated()
	}
	if floor.Algorithm != limit.FixedWindow {
		w.Skew = uint64(math.Ceil(float64(floor.Limit) * float64(limit.ClockTolerance) / float64(floor.Window)))
		w.Skew = min(w.Skew, w.Federation.Floor)
	}
}

// under adds what is refused at most to b.
func (w *eventTable) under(b Bound, t term, during string) Bound {
	if t.n > 0 {
		b.Under, b.UnderFormula, b.UnderTime = min(t.n, w.most), t.symbol, during
	}
	return b
}

// skewed returns the bound of an event in which the counter of a floor may move between members whose clocks differ.
func (w *eventTable) skewed(event string, terms ...term) Bound {
	if len(terms) == 0 {
		terms = []term{{"0", 0}}
	}
	if w.Skew > 0 {
		terms = append(terms, term{"S", w.Skew})
	}
	return sum(event, terms...)
}

// unowned adds the hits that members admit while the owner of a key cannot be reached.
func (w *eventTable) unowned(terms ...term) []term {
	if w.Open > 0 {
		terms = append(terms, term{"open", w.Open})
	}
	return terms
}

// floorsLost returns the bound of the loss of all members of one region.
func (w *eventTable) floorsLost() Bound {
	f := w.Federation
	lost, event := term{"floor", f.Floor}, "all members of a region restart"
	b := sum(event, lost)
	if w.journaled() {
		u := w.Unacked
		if w.conditions.Members == 1 && !w.Strict {
			u = min(f.Floor, w.Spec.Limit.Unreplicated())
		}
		b = sum(event+", with their journals", term{"U", u})
		if !w.Strict {
			b = w.withTraffic(b, journalDelay, f.Floor)
		}
	}
	return w.under(b, term{"lot", f.Lot}, "until the window ends")
}

// withTraffic adds the hits of a time, at most that many, to b.
func (w *eventTable) withTraffic(b Bound, during time.Duration, most uint64) Bound {
	formula := fmt.Sprintf("rate x %v", during)
	if b.OverFormula != "0" {
		formula = b.OverFormula + " + " + formula
	}
	b.OverFormula = formula
	if w.conditions.Rate > 0 {
		b.Over = limit.SaturatingAdd(b.Over, uint64(min(float64(most), math.Ceil(w.conditions.Rate*during.Seconds()))))
	} else {
		b.Traffic = &Traffic{during.Seconds(), most}
	}
	return b
}

// partitioned returns the bound of a partition between the members of one region. Only members with full ownership spend
// a floor, so just one part does, unless the policy lets every part have it.
func (w *eventTable) partitioned() Bound {
	f := w.Federation
	event := fmt.Sprintf("the members of a region are partitioned (%s)", w.conditions.Partition)
	terms := []term{{"U", w.Unacked}}
	if w.conditions.Partition == policy.PartAvailable {
		terms = []term{{"floor x (parts - 1), here 2 parts", f.Floor}}
	}
	return w.under(w.skewed(event, w.unowned(terms...)...), term{w.all, w.most}, "in the other part, until it heals")
}

// coordinator adds the events that concern the coordinator and the way to it.
func (w *eventTable) coordinator() {
	f := w.Federation
	o := w.Spec.Extension.Federation.Terms.Outage
	one, each := outageOver(o, w.RuleBounds, f.Slice, f.Floor, 1), outageOver(o, w.RuleBounds, w.Limit, f.Floors, uint64(f.Regions))
	kept := term{w.all + " - floor", w.most - f.Floor}
	switch o {
	case federation.FailOpen:
		least := f.Floor + w.Open/uint64(w.conditions.Members)
		kept = term{w.all + " - floor - open/N", w.most - min(w.most, least)}
	case federation.RegionalOnly:
		kept = term{w.all + " - slice", w.most - f.Slice}
	}
	const during = "in a region that is cut off, while it is"
	w.add(sum("messages between regions and coordinator are slow, lost or repeated", term{"0", 0}))
	w.add(w.under(sum(fmt.Sprintf("a region is cut off (%s)", f.Outage), one), kept, during))
	w.add(w.under(sum(fmt.Sprintf("the coordinator is away (%s)", f.Outage), each), kept, during))
	w.add(sum("the coordinator's store is emptied, or its memory lost", term{"pool x left/W", f.Pool}))
	w.add(sum("all members of the region that is the coordinator restart", term{"pool", f.Pool}))
	w.add(sum("the layout changes; all processes read it in time", term{"0", 0}))
	w.add(sum("the layout moves the coordinator, and a member of the former one reads it too late", term{"pool", f.Pool}))
	w.add(w.failover())
}

// outageOver returns the hits above the limit in one window in which regions do not reach the coordinator. slice and floor
// are the sums of those of the regions.
func outageOver(o federation.Outage, b *RuleBounds, slice, floor, regions uint64) term {
	of := ""
	if regions > 1 {
		of = " of all regions"
	}
	switch o {
	case federation.RegionalOnly:
		return term{"slice - floor" + of, slice - floor}
	case federation.Snapshot:
		return term{"slice" + of, slice}
	case federation.FailOpen:
		return term{"open" + of, mulDiv(b.Open, regions, 1)}
	}
	return term{"0", 0}
}

// failover returns the bound of the loss of the newest writes of the coordinator's store. In each round trip that the
// replica lags behind, each region may have been lent a lot.
func (w *eventTable) failover() Bound {
	f, c := w.Federation, w.conditions.Regions
	trips := uint64(1)
	if c.RoundTrip > 0 {
		trips = max(1, uint64((c.Lag+c.RoundTrip-1)/c.RoundTrip))
	}
	lost := mulDiv(f.Lot, mulDiv(trips, uint64(f.Regions), 1), 1)
	event := fmt.Sprintf("the store fails over to a replica that is %v behind", c.Lag)
	return sum(event, term{"min(pool, K x ceil(lag/RTT) x lot)", min(f.Pool, lost)})
}

// clocks returns the bound of clocks that differ by as much as is tolerated.
func (w *eventTable) clocks() Bound {
	const event = "clocks differ by 250ms: by wall clock; by the coordinator's 0"
	return w.withTraffic(sum(event, term{"0", 0}), limit.ClockTolerance, w.most)
}

// federatedOutage returns the cost of an outage in which no region reaches the coordinator.
func federatedOutage(r *config.RuleSpec, c Conditions, f *RegionBounds) *OutageCost {
	o := &OutageCost{Seconds: c.Outage.Seconds(), Windows: uint64((c.Outage-1)/r.Limit.Window) + 1}
	for _, outage := range []federation.Outage{federation.FailClosed, federation.RegionalOnly, federation.Snapshot, federation.FailOpen} {
		terms := *r.Extension.Federation.Terms
		terms.Outage = outage
		p := PolicyCost{Policy: outage.String(), Current: outage == r.Extension.Federation.Terms.Outage, UnderAfter: "once the escrow is spent"}
		b := RuleBounds{Open: open(r, uint64(c.Members))}
		over := outageOver(outage, &b, uint64(r.Limit.Limit), f.Floors, uint64(f.Regions))
		if outage == federation.Snapshot { // only in the window in which the snapshot was taken
			p.once = []term{over}
		} else {
			p.perWindow = over
		}
		p.Under, p.UnderFormula = uint64(r.Limit.Limit)-f.Floor, "L - floor"
		switch least := f.Floor + b.Open/uint64(c.Members); outage {
		case federation.RegionalOnly:
			p.Under, p.UnderFormula = uint64(r.Limit.Limit)-f.Slice, "L - slice"
		case federation.FailOpen:
			p.Under, p.UnderFormula = uint64(r.Limit.Limit)-min(uint64(r.Limit.Limit), least), "L - floor - open/N"
		}
		if p.Under == 0 {
			p.UnderFormula, p.UnderAfter = "0", ""
		}
		p.sum(r.Limit, c.Outage, o.Windows)
		o.Policies = append(o.Policies, p)
	}
	return o
}
