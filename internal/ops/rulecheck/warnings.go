// Package rulecheck checks rules before they are deployed: what in them is probably unintended ([Warnings]), what a new
// version changes ([Changes]), and by how much an event can exceed a limit ([BoundsOf]).
package rulecheck

import (
	"fmt"
	"time"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/policy"
)

// Warnings returns what is probably unintended in files that load: the parts without effect that [config.Warnings]
// finds, then limits that refuse everything, windows that are very long or short, busy rules with one owner, and leases
// that expire before they are renewed. rules are the rules loaded from files, or nil if the files have faults; then only
// the files themselves are checked. dataWindow is the members' --data-window, or 0 if they have no --data.
func Warnings(files []config.File, rules *config.Rules, dataWindow time.Duration) []config.Diagnostic {
	w := linter{all: config.Warnings(files, rules), dataWindow: dataWindow}
	if rules == nil {
		return w.all
	}
	names := map[string]bool{}
	for _, r := range rules.Rules() {
		names[r.Name] = true
	}
	w.quotaNeighbors(rules)
	for _, r := range rules.Rules() {
		w.rule(r, max(1, rules.Members()-1))
		for _, name := range r.Replaces {
			if !names[name] {
				w.add(r, "replaces-nothing", "'%s' replaces '%s', but no rule has that name", r.FullKey, name)
			}
		}
	}
	return w.all
}

type linter struct {
	all        []config.Diagnostic
	dataWindow time.Duration // the members' --data-window; 0: they have no --data
}

func (w *linter) add(r *config.RuleSpec, kind, format string, args ...any) {
	w.advise(r, kind, "", format, args...)
}

// advise adds a warning with a hint.
func (w *linter) advise(r *config.RuleSpec, kind, hint, format string, args ...any) {
	w.all = append(w.all, config.Diagnostic{
		Kind: kind, File: r.File, Line: r.Line, Column: r.Column, Text: fmt.Sprintf(format, args...), Hint: hint,
	})
}

const (
	busy           = 1000                   // hits per second; a rule with one owner warns from here on
	shortestWindow = 100 * time.Millisecond // below it, clock skew and delay are a large part of the window
	longestWindow  = 24 * time.Hour         // above it, a restart of all members loses a lot
)

// rule checks one rule. holders is how many members may hold a lease of its keys.
func (w *linter) rule(r *config.RuleSpec, holders int) {
	if r.Unlimited {
		if r.Limit.Limit != 0 {
			w.add(r, "no-effect", "'%s' is unlimited; its requests_per_unit is ignored", r.FullKey)
		}
		return
	}
	if r.Limit.Limit == 0 {
		w.add(r, "refuses-all", "'%s' has requests_per_unit 0, or none: every request is over the limit", r.FullKey)
	}
	w.durability(r)
	if r.Limit.Window < shortestWindow {
		w.add(r, "short-window", "'%s' counts per %s: clock skew and delay between members make windows below %s inexact, "+
			"and responses give times in whole seconds", r.FullKey, windowName(r), shortestWindow)
	}
	if r.Extension.Mechanism != policy.Static && hasOneOwner(r) && float64(r.Limit.Limit)/r.Limit.Window.Seconds() >= busy {
		w.add(r, "one-owner", "'%s' has one owner for all its requests, up to %d per %s: one member counts them all",
			r.FullKey, r.Limit.Limit, windowName(r))
	}
	if r.Extension.Mechanism == policy.ByLease && lent(r, uint64(holders)) == 0 {
		w.add(r, "nothing-to-lend", "'%s' has too low a limit to lend parts of it: its owner decides every request",
			r.FullKey)
	}
	if r.Extension.Mechanism == policy.Static && uint64(r.Limit.Limit) <= uint64(holders) && r.Limit.Limit > 0 {
		w.add(r, "no-share", "'%s' has a limit of %d, less than the number of members: those without a share deny every request",
			r.FullKey, r.Limit.Limit)
	}
	w.shortLease(r)
	w.quota(r)
}

// durability warns about counts of a long window that a restart of all members loses, and about charges that wait for the
// disk.
func (w *linter) durability(r *config.RuleSpec) {
	x, why := &r.Extension, NotInJournal(r, w.dataWindow)
	switch long := r.Limit.Span() > longestWindow; {
	case w.dataWindow == 0 && long && !x.Volatile:
		hint := "set --data DIR on every member, or durability: memory to say that they may be lost"
		if why != "" { // its mechanism keeps it out of the journal
			hint = why + " is never in the journal (--data): use another one, or durability: memory to say that they may be lost"
		}
		w.advise(r, "long-window", hint, "'%s' counts per %s; counts are kept in memory and do not survive a restart of all members",
			r.FullKey, windowName(r))
	case w.dataWindow > 0 && long && why != "":
		w.advise(r, "not-in-journal", journalHint(r), "'%s' counts per %s, but the journal does not contain its counts (%s): they do not "+
			"survive a restart of all members", r.FullKey, windowName(r), why)
	case w.dataWindow > 0 && why == "" && x.Strict && !reservesAhead(r.Limit.Algorithm):
		w.advise(r, "strict-waits", "use algorithm: fixed_window or sliding_window, which wait for the first hit of a window and for bursts only",
			"'%s' has durability: strict with algorithm: %s: each charge waits for the disk", r.FullKey, r.Limit.Algorithm)
	}
}

// journalHint states how a rule gets into the journal of members that have one.
func journalHint(r *config.RuleSpec) string {
	switch x := &r.Extension; {
	case x.Mechanism == policy.Approximate, x.Mechanism == policy.Static:
		return "use mechanism: owner or lease"
	case x.Volatile:
		return "use durability: async"
	}
	return "lower the members' --data-window"
}

// shortLease warns about a ttl that leaves a holder only one renewal, or none, before its lease ends.
func (w *linter) shortLease(r *config.RuleSpec) {
	x := &r.Extension
	const least = 2 * lease.RenewalInterval
	if x.Lease == nil || x.Lease.TTL == 0 || x.Lease.TTL >= least || r.Limit.Algorithm.Bucket() ||
		lent(r, 1) == 0 {
		return
	}
	cost := "grants are small and renewed more often"
	if x.Lease.Reclaim {
		cost = "one late renewal ends the lease, and the owner lends the same hits again"
	}
	w.add(r, "short-ttl", "'%s' has a ttl of %s, less than two renewals (%s): %s; use %s to %s",
		r.FullKey, x.Lease.TTL, least, cost, least, 5*lease.RenewalInterval)
}

// windowName names the window of a rule: its unit, or the duration that replaces the unit.
func windowName(r *config.RuleSpec) string {
	if r.Limit.Window == r.Unit.Window() {
		return r.Unit.String()
	}
	return r.Limit.Window.String()
}

// most returns how many hits the limit admits within one window. A bucket also admits its depth.
func most(r *config.RuleSpec) uint64 {
	if r.Limit.Algorithm.Bucket() {
		return uint64(r.Limit.Limit) + uint64(r.Limit.Depth())
	}
	return uint64(r.Limit.Limit)
}

// hasOneOwner reports whether the owner string is the same for every request.
func hasOneOwner(r *config.RuleSpec) bool {
	for _, i := range r.OwnerLevels() {
		if l := r.Levels[i]; l.Variable && !l.Shared {
			return false
		}
	}
	return true
}
