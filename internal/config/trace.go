package config

import (
	"fmt"
	"slices"
	"strings"
)

// Trace tells how [Rules.Match] came to what it found.
type Trace struct {
	Match Match
	Steps []TraceStep // one for each entry that was looked at, in the descriptor's order
	Why   string      // one sentence: which rule limits the descriptor, or why none does
}

// TraceStep is what became of one entry of the descriptor.
type TraceStep struct {
	Entry  Entry
	Taken  *Candidate  // the descriptor of the file that took it; nil: none did, and the walk ended
	Passed []Candidate // those beside it that might have been meant, in the files' order; at most maxPassed
	More   int         // others beside it
}

// Candidate is a descriptor of a file that was looked at.
type Candidate struct {
	Key, Value string // as configured; Value is empty for any
	File       string
	Line       int    // 0 when unknown
	Why        string // why it was taken, or was not
	Rule       bool   // it has a rate_limit
}

// String is the descriptor as people write it.
func (t Candidate) String() string {
	if t.Value == "" {
		return t.Key
	}
	return t.Key + "=" + t.Value
}

// maxPassed bounds what is said of one level: there may be thousands of values in it.
const maxPassed = 12

// Trace matches a descriptor, without an override, and says how. It is for people: Match is the one that is fast.
func (r *Rules) Trace(domain string, entries []Entry) Trace {
	var t Trace
	r.Match(domain, entries, nil, &t.Match)
	d := r.domains[domain]
	if d == nil {
		t.Why = fmt.Sprintf("No rules are configured for the domain '%s', so nothing limits it; there are rules for: %s.", domain, r.someDomains())
		return t
	}
	n := &d.node
	for i := range entries {
		next := n.next(&entries[i])
		t.Steps = append(t.Steps, step(n, next, &entries[i]))
		if n = next; n == nil {
			break
		}
	}
	t.Why = t.why(n)
	return t
}

// next is the descriptor below n that takes e, as find walks.
func (n *node) next(e *Entry) *node {
	glued := appendGlued(nil, e)
	if next := n.children[string(glued)]; next != nil {
		return next
	}
	if next := n.wild.find(glued); next != nil {
		return next
	}
	return n.children[e.Key]
}

func step(parent, taken *node, e *Entry) TraceStep {
	s := TraceStep{Entry: *e}
	for _, n := range parent.list {
		t := Candidate{Key: n.level.Key, Value: n.level.Value, File: n.file, Line: n.line, Rule: n.rule != nil}
		switch {
		case n == taken:
			t.Why = n.taking(e)
			s.Taken = &t
		case n.level.Key == e.Key || n.pattern != nil && (strings.Contains(n.level.Key, "*") || n.pattern.match(appendGlued(nil, e))):
			if t.Why = n.passing(taken, e); len(s.Passed) < maxPassed {
				s.Passed = append(s.Passed, t)
				break
			}
			fallthrough
		default:
			s.More++
		}
	}
	return s
}

// taking says why n took e.
func (n *node) taking(e *Entry) string {
	switch n.foundBy(e) {
	case byText:
		return "it has this value"
	case byWildcard:
		return "its wildcard matches"
	default:
		return "it takes any value"
	}
}

// passing says why n did not take e, which another one, or nil, did.
func (n *node) passing(taken *node, e *Entry) string {
	by := ""
	if taken != nil {
		by = "'" + taken.glued + "'"
	}
	switch {
	case n.pattern != nil && !n.pattern.match(appendGlued(nil, e)):
		return "its wildcard does not match"
	case n.pattern != nil && taken != nil && taken.foundBy(e) == byText:
		return "its wildcard matches, but " + by + " has the very value, which is looked for first"
	case n.pattern != nil:
		return "its wildcard matches, but " + by + " stands before it"
	case n.level.Value != "":
		return "it has another value"
	default:
		return "it would take any value, but " + by + " is looked for first"
	}
}

// why is the sentence about the walk that ended at n; nil when it ended before the last entry.
func (t *Trace) why(n *node) string {
	i := len(t.Steps) - 1
	if i < 0 {
		return "The descriptor is empty, so nothing limits it."
	}
	if n == nil {
		e, under := t.Steps[i].Entry, "the domain"
		if i > 0 {
			up := t.Steps[i-1].Taken
			under = fmt.Sprintf("'%s' (%s:%d)", up, up.File, up.Line)
		}
		return fmt.Sprintf("No descriptor under %s takes %s=%s, so nothing limits it; what was taken before is never taken back.", under, e.Key, e.Value)
	}
	at := fmt.Sprintf("%s:%d", n.file, n.line)
	switch t.Match.Kind {
	case Unlimited:
		return fmt.Sprintf("The rule '%s' (%s) says that it is unlimited.", t.Match.Rule.FullKey, at)
	case Limited:
		return fmt.Sprintf("The rule '%s' (%s) limits it: %s.", t.Match.Rule.FullKey, at, t.Match.Rule.Amount())
	default:
		return fmt.Sprintf("It ends at the descriptor '%s' (%s), which has no rate_limit of its own: only a descriptor with more entries is limited there.", n.glued, at)
	}
}

// Amount describes the limit: "10 hits per minute", "5 hits in 10s".
func (r *RuleSpec) Amount() string {
	if r.Limit.Window == r.Unit.Window() {
		return fmt.Sprintf("%d hits per %s", r.Limit.Limit, strings.ToLower(r.Unit.String()))
	}
	return fmt.Sprintf("%d hits in %s", r.Limit.Limit, r.Limit.Window)
}

// someDomains names the configured domains, not too many of them.
func (r *Rules) someDomains() string {
	names := r.Domains()
	slices.Sort(names)
	if len(names) == 0 {
		return "none at all"
	}
	if more := len(names) - maxPassed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxPassed], ", "), more)
	}
	return strings.Join(names, ", ")
}
