package rulecheck

import (
	"fmt"
	"math"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
)

// inFlight is the time in which a request is answered. For this long traffic can exceed a limit after an owner resumes.
const inFlight = 12 * time.Millisecond

// eventTable writes the bounds of one rule.
type eventTable struct {
	*RuleBounds
	conditions Conditions
	most       uint64 // hits admitted in the time of one window: L, plus b for a bucket
	least      uint64 // the least that a member admits without the owner
	all        string // the symbol of most
}

func (w *eventTable) write() {
	if w.Spec.Extension.Mechanism == policy.Static {
		w.static()
		return
	}
	// An owner that no member confirms any more continues to decide for T_own.
	unconfirmed := w.conditions.Detection.OwnershipTTL()
	replaced := fmt.Sprintf("up to %s", seconds(2*w.conditions.Detection.Failover(w.conditions.Members)))
	w.add(Bound{Event: "nothing fails", OverFormula: "0", UnderFormula: "0"})
	w.add(w.moving("join, leave, rolling restart", nil, term{"0", 0}))
	if w.Lent > 0 {
		w.lease()
	}
	if w.Drift > 0 {
		w.add(sum("a member that counts locally restarts", term{"E/N", w.Drift / uint64(w.conditions.Members)}))
	}
	if w.conditions.Members > 1 {
		u := term{"U", w.Unacked}
		w.add(w.alone(w.moving("the owner crashes", nil, w.withoutOwner(u)...), replaced))
		w.add(w.alone(w.moving("the owner pauses, or a one-way partition", w.traffic(inFlight), w.withoutOwner(u)...), replaced))
		w.add(w.alone(w.moving("the owner's machine is migrated, its clocks stopped", w.traffic(unconfirmed), w.withoutOwner(u)...),
			replaced))
		w.addSeparate(w.partition())
		w.bothFail()
		w.add(w.alone(sum("an unresponsive owner, called by Envoy directly", w.withoutOwner()...),
			"until Envoy removes it"))
		w.add(w.degraded())
	}
	w.restart()
}

// static writes the bounds of a rule that gives each member its share of the limit.
func (w *eventTable) static() {
	n := uint64(w.conditions.Members)
	w.add(w.alone(Bound{Event: "nothing fails", OverFormula: "0", UnderFormula: "0"}, "if one member gets all requests"))
	// The share of the member that is gone, and one hit for each member that gets a part of the remainder now.
	one := term{w.all + "/N + N", min(w.most, limit.SaturatingAdd(mulDiv(w.most, 1, n), n))}
	w.add(w.alone(sum("one member joins, leaves or restarts", one), "if one member gets all requests"))
	if n > 1 {
		// Two boots of each member, while one member is missing.
		all := term{w.all + " x (N + 1)/(N - 1) + 2 N", limit.SaturatingAdd(mulDiv(w.most, n+1, n-1), 2*n)}
		if w.most == 0 {
			all.n = 0
		}
		w.add(sum("all members restart one after the other", all))
		w.add(sum("the cluster is partitioned for longer than --nref-decay", term{w.all, w.most}))
	}
	w.restart()
}

// seconds returns d in seconds, with at most one decimal: "6 s".
func seconds(d time.Duration) string {
	return fmt.Sprintf("%.3g s", d.Round(100*time.Millisecond).Seconds())
}

// add appends an event. The hits that members have not reported to the owner are added to it.
func (w *eventTable) add(b Bound) { w.addDrift(b, term{"E", w.Drift}) }

// addSeparate appends an event after which two counters exist independently. The unreported hits of both are added to
// it.
func (w *eventTable) addSeparate(b Bound) {
	w.addDrift(b, term{"2 E", limit.SaturatingAdd(w.Drift, w.Drift)})
}

func (w *eventTable) addDrift(b Bound, by term) {
	if w.Drift > 0 {
		all := sum("", term{b.OverFormula, b.Over}, by)
		b.Over, b.OverFormula = all.Over, all.OverFormula
	}
	w.Bounds = append(w.Bounds, b)
}

// lease adds the cost of lending. No hit is admitted above the limit unless the owner reclaims leases.
func (w *eventTable) lease() {
	until, over := "until the window ends", term{"0", 0}
	if w.Depth > 0 {
		until = "for 200 ms"
	} else if k := w.Spec.Extension.Lease; k != nil && k.Reclaim {
		until, over = "until ttl has passed", term{"lent", w.Lent}
	} else if k != nil && k.ReclaimCrash {
		until, over = "until the cluster declares the holder failed", term{"lent", w.Lent}
	}
	w.add(Bound{
		Event: "a key is leased (mechanism lease, or hot)", OverFormula: "0",
		Under: w.Lent, UnderFormula: "lent", UnderTime: "while its holders have it",
	})
	gone := sum("a holder of a leased key fails, or its owner changes", over)
	gone.Under, gone.UnderFormula, gone.UnderTime = w.Lent, "lent", until
	w.add(gone)
}

// term is one summand of a formula.
type term struct {
	symbol string
	n      uint64
}

// withoutOwner adds the hits that members admit without the owner to terms.
func (w *eventTable) withoutOwner(terms ...term) []term {
	terms = append(terms, term{"Phi", w.Phi})
	if w.Open > 0 {
		terms = append(terms, term{"open", w.Open})
	}
	return terms
}

// sum returns the bound of an event that is the sum of terms.
func sum(event string, terms ...term) Bound {
	b := Bound{Event: event, UnderFormula: "0"}
	for _, t := range terms {
		b.Over = limit.SaturatingAdd(b.Over, t.n)
		switch {
		case b.OverFormula == "" || b.OverFormula == "0":
			b.OverFormula = t.symbol
		default:
			b.OverFormula += " + " + t.symbol
		}
	}
	return b
}

// moving returns the bound of an event in which counters move between members whose clocks differ.
func (w *eventTable) moving(event string, traffic *Traffic, terms ...term) Bound {
	if w.Skew > 0 {
		terms = append(terms, term{"S", w.Skew})
	}
	b := sum(event, terms...)
	b.Traffic = traffic
	if traffic == nil {
		return b
	}
	b.OverFormula += fmt.Sprintf(" + rate x %v", traffic.Duration())
	if w.conditions.Rate > 0 {
		hits := min(float64(traffic.Most), math.Ceil(w.conditions.Rate*traffic.Seconds))
		b.Over, b.Traffic = limit.SaturatingAdd(b.Over, uint64(hits)), nil
	}
	return b
}

func (w *eventTable) traffic(t time.Duration) *Traffic {
	if w.most == 0 {
		return nil
	}
	return &Traffic{t.Seconds(), w.most}
}

// alone adds what is refused to a client whose requests all reach one member, which answers without the owner.
func (w *eventTable) alone(b Bound, during string) Bound {
	b.Under = w.most - min(w.most, w.least)
	switch {
	case b.Under == 0:
		return b
	case w.least == 0:
		b.UnderFormula = w.all
	case w.least < w.Share:
		b.UnderFormula = w.all + " - open/N"
	default:
		b.UnderFormula = w.all + " - share"
	}
	b.UnderTime = during
	return b
}

func (w *eventTable) partition() Bound {
	const until = "in the smaller part, until it heals"
	event := fmt.Sprintf("the cluster is partitioned (%s)", w.conditions.Partition)
	u := term{"U", w.Unacked}
	switch w.conditions.Partition {
	case policy.PartAvailable:
		return w.moving(event, nil, w.withoutOwner(term{w.all, w.most})...)
	case policy.PartQuorum:
		b := w.moving(event, w.traffic(w.conditions.Detection.OwnershipTTL()), w.withoutOwner(u)...)
		if b.Under = w.most; b.Under > 0 {
			b.UnderFormula, b.UnderTime = w.all, until
		}
		return b
	}
	missed := term{w.all + " x f/N", mulDiv(w.most, uint64(w.Tolerated), uint64(w.conditions.Members))}
	return w.alone(w.moving(event, w.traffic(w.conditions.Detection.OwnershipTTL()), w.withoutOwner(missed, u)...), until)
}

// bothFail adds the loss of an owner together with its successor, which only a third member can notice.
func (w *eventTable) bothFail() {
	if w.conditions.Members < 3 {
		return
	}
	const event = "owner and successor fail together"
	if w.Depth > 0 {
		b := w.moving(event, nil, w.withoutOwner()...) // the new bucket starts empty
		b.Under, b.UnderFormula, b.UnderTime = w.Depth, "b", "until the bucket has filled again"
		w.addSeparate(b)
		return
	}
	b := w.moving(event, nil, w.withoutOwner(term{"L x left/W", w.Limit})...)
	if b.Under = w.Limit; b.Under > 0 {
		b.UnderFormula, b.UnderTime = "L x gone/W", "until the window ends"
	}
	w.addSeparate(b)
}

// restart adds the events after which no member has the counts.
func (w *eventTable) restart() {
	w.lostAll()
	w.addSeparate(Bound{
		Event: "m separate clusters (here 2)", Over: w.most, OverFormula: "(m - 1) x " + w.all, UnderFormula: "0",
	})
}

// degraded returns the bound of each window in which the owner does not answer.
func (w *eventTable) degraded() Bound {
	event := fmt.Sprintf("each window without an owner (%s)", w.Degraded)
	if w.Open > 0 {
		return w.alone(sum(event, term{"open", w.Open}), "while there is none")
	}
	return w.alone(sum(event, term{"Phi", w.Phi}), "while there is none")
}
