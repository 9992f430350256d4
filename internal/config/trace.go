package config

import (
	"fmt"
	"slices"
	"strings"
)

// Trace explains a result of [Rules.Match].
type Trace struct {
	Match Match
	Steps []TraceStep // one for each entry that was examined, in the descriptor's order
	Why   string      // one sentence: which rule limits the descriptor, or why none does
}

// TraceStep explains how one entry of the descriptor was matched.
type TraceStep struct {
	Entry  Entry
	Taken  *Candidate  // the descriptor in the file that matched; nil: none did, and the walk ended
	Passed []Candidate // its siblings that might have been meant, in the order of the files; at most maxPassed
	More   int         // further siblings
}

// Candidate is a descriptor of a file that was looked at.
type Candidate struct {
	Key, Value string // as configured; an empty Value matches any
	File       string
	Line       int    // 0 if unknown
	Why        string // why it matched or did not match
	Rule       bool   // it has a rate_limit
}

// String returns the descriptor as key=value, or the key alone.
func (t Candidate) String() string {
	if t.Value == "" {
		return t.Key
	}
	return t.Key + "=" + t.Value
}

// maxPassed limits the siblings listed for one level, which may have thousands.
const maxPassed = 12

// Trace matches a descriptor without an override, and explains the result. It is slower than Match.
func (r *Rules) Trace(domain string, entries []Entry) Trace {
	var t Trace
	r.Match(domain, entries, nil, &t.Match)
	d := r.domains[domain]
	if d == nil {
		t.Why = fmt.Sprintf("No rules are configured for the domain '%s', so nothing limits it. Configured domains: %s.",
			domain, r.someDomains())
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

// next returns the descriptor below n that matches e, as in find.
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
		case n.level.Key == e.Key,
			n.pattern != nil && (strings.Contains(n.level.Key, "*") || n.pattern.match(appendGlued(nil, e))):
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

// taking states why n matched e.
func (n *node) taking(e *Entry) string {
	switch n.foundBy(e) {
	case byText:
		return "it has this value"
	case byWildcard:
		return "its wildcard matches"
	default:
		return "it matches any value"
	}
}

// passing states why n did not match e. taken is the descriptor that did, or nil.
func (n *node) passing(taken *node, e *Entry) string {
	by := ""
	if taken != nil {
		by = "'" + taken.glued + "'"
	}
	switch {
	case n.pattern != nil && !n.pattern.match(appendGlued(nil, e)):
		return "its wildcard does not match"
	case n.pattern != nil && taken != nil && taken.foundBy(e) == byText:
		return "its wildcard matches, but " + by + " has exactly this value, which takes precedence"
	case n.pattern != nil:
		return "its wildcard matches, but " + by + " comes first"
	case n.level.Value != "":
		return "it has another value"
	default:
		return "it matches any value, but " + by + " takes precedence"
	}
}

// why returns the sentence about a walk that ended at n, which is nil if it ended before the last entry.
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
		return fmt.Sprintf("No descriptor under %s matches %s=%s, so nothing limits it. The match does not backtrack to "+
			"other descriptors.",
			under, e.Key, e.Value)
	}
	at := fmt.Sprintf("%s:%d", n.file, n.line)
	switch t.Match.Kind {
	case Unlimited:
		return fmt.Sprintf("The rule '%s' (%s) is unlimited.", t.Match.Rule.FullKey, at)
	case Limited:
		return fmt.Sprintf("The rule '%s' (%s) limits it: %s.", t.Match.Rule.FullKey, at, t.Match.Rule.Amount())
	default:
		return fmt.Sprintf("It ends at the descriptor '%s' (%s), which has no rate_limit. Only descriptors with more "+
			"entries are limited there.",
			n.glued, at)
	}
}

// Amount describes the limit: "10 hits per minute", "5 hits in 10s".
func (r *RuleSpec) Amount() string {
	if r.Limit.Window == r.Unit.Window() {
		return fmt.Sprintf("%d hits per %s", r.Limit.Limit, strings.ToLower(r.Unit.String()))
	}
	return fmt.Sprintf("%d hits in %s", r.Limit.Limit, r.Limit.Window)
}

// someDomains returns the names of the configured domains, at most maxPassed.
func (r *Rules) someDomains() string {
	names := r.Domains()
	slices.Sort(names)
	if len(names) == 0 {
		return "none"
	}
	if more := len(names) - maxPassed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxPassed], ", "), more)
	}
	return strings.Join(names, ", ")
}
