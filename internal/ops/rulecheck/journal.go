package rulecheck

import (
	"fmt"
	"time"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
)

// AllKilled is the Event of a Bound: a crash of all members that have journals.
const AllKilled = "all members are killed, their volumes are intact"

const (
	// journalDelay is how long a hit that is due is not on disk: a round of the journal, and the disk.
	journalDelay = 200 * time.Millisecond
	// journalWait is how long members use degraded policies at most while journals of the last ring are missing.
	journalWait = 35 * time.Second
)

// NotInJournal returns why the counters of a rule are not in the journal of members with that --data-window, or "" if
// they are.
func NotInJournal(r *config.RuleSpec, window time.Duration) string {
	x := &r.Extension
	switch {
	case x.Mechanism == policy.Approximate, x.Mechanism == policy.Static:
		return "mechanism: " + x.Mechanism.String()
	case x.Volatile:
		return "durability: memory"
	case r.Limit.Algorithm.Bucket() && r.Limit.Span() < window:
		return fmt.Sprintf("the bucket fills in %s", durationText(r.Limit.Span()))
	case !r.Limit.Algorithm.Bucket() && r.Limit.Window < window:
		return fmt.Sprintf("the window is %s", r.Limit.Window)
	}
	return ""
}

// durationText returns d in whole seconds if it is at least one.
func durationText(d time.Duration) string {
	if d >= time.Second {
		d = d.Round(time.Second)
	}
	return d.String()
}

// journaled reports whether the journals of the members have the counters.
func (w *eventTable) journaled() bool {
	return w.conditions.DataWindow > 0 && NotInJournal(w.Spec, w.conditions.DataWindow) == ""
}

// lostAll adds the events after which only journals have the counts, or nothing.
func (w *eventTable) lostAll() {
	if w.journaled() {
		w.journal()
		return
	}
	event := "all members restart"
	if d := w.conditions.DataWindow; d > 0 {
		event += fmt.Sprintf(" (not in the journal: %s)", NotInJournal(w.Spec, d))
	}
	w.addSeparate(w.forgotten(event))
}

// forgotten returns the bound of an event that makes counters start again.
func (w *eventTable) forgotten(event string) Bound {
	again := term{"L", w.Limit}
	if w.Depth > 0 {
		again = term{"b", w.Depth}
	}
	return Bound{Event: event, Over: again.n, OverFormula: again.symbol, UnderFormula: "0"}
}

// journal adds the bounds of the loss of all members that have journals.
func (w *eventTable) journal() {
	u := w.Spec.Limit.Unreplicated()
	w.Unwritten = u
	one, two := term{"U", u}, term{"2U", limit.SaturatingAdd(u, u)}
	killed, lost, traffic := []term{one}, []term{two}, w.traffic(journalDelay)
	if w.Strict {
		killed, lost, traffic = nil, []term{one}, nil
	}
	w.add(w.reserved(w.moving(AllKilled, traffic, w.loading(killed...)...)))
	if w.conditions.Members > 1 {
		loading := sum("the same, until all journals are loaded", w.withoutOwner()...)
		w.add(w.alone(loading, fmt.Sprintf("up to %.0f s", journalWait.Seconds())))
		// The successor's disk is not waited for, so that it also lacks the hits of a moment with durability: strict.
		w.add(w.reserved(w.moving("the same, and one volume is lost", w.traffic(journalDelay), w.loading(lost...)...)))
		w.add(w.forgotten("the same, and the volumes of owner and successor are lost"))
	} else {
		w.add(w.forgotten("the same, and the volume is lost"))
	}
	stopped := w.moving("all members are stopped (SIGTERM) and start again", nil, w.loading()...)
	if w.Lent > 0 {
		stopped.Under, stopped.UnderFormula, stopped.UnderTime = w.Lent, "lent", w.lentUntil()
	}
	w.add(stopped)
}

// loading adds the hits that members admit until they have loaded all journals to terms. A single member admits none.
func (w *eventTable) loading(terms ...term) []term {
	if w.conditions.Members > 1 {
		return w.withoutOwner(terms...)
	}
	return append([]term{{"0", 0}}, terms...)
}

// reserved adds to b what a crash of all members makes the count too high by: hits that are lent, and with
// durability: strict the hits that members had reserved ahead.
func (w *eventTable) reserved(b Bound) Bound {
	var terms []term
	if w.Strict && reservesAhead(w.Spec.Limit.Algorithm) {
		terms = append(terms, term{"U", w.Unwritten})
	}
	if w.Lent > 0 {
		terms = append(terms, term{"lent", w.Lent})
	}
	if len(terms) == 0 || w.most == 0 {
		return b
	}
	under := sum("", terms...)
	b.Under, b.UnderFormula, b.UnderTime = min(w.most, under.Over), under.OverFormula, w.lentUntil()
	return b
}

// reservesAhead reports whether records of a counter with durability: strict reserve hits ahead, so that not every
// charge waits for the disk. Buckets and logs reserve nothing.
func reservesAhead(a limit.Algorithm) bool { return a == limit.FixedWindow || a == limit.SlidingWindow }

// lentUntil names the time for which hits that were lent are missing.
func (w *eventTable) lentUntil() string {
	if w.Depth > 0 {
		return "for 200 ms"
	}
	return "until the window ends"
}
