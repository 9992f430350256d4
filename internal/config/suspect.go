package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/keyward/keyward/internal/policy"
)

// Warning is something that loads and is probably not meant.
type Warning struct {
	File   string
	Line   int // 0 when unknown
	Column int // in characters, from 1; 0 when only the line is known
	Text   string
	Kind   string // one word for all of its sort: unreachable, no-effect, ...
}

func (s Warning) String() string { return fmt.Sprintf("%s:%d: %s", s.File, s.Line, s.Text) }

// Warnings looks for what files, loaded as rules, hide from their author: parts that are never loaded, keys that have
// no effect where they are, descriptors that nothing reaches, limits that refuse everything, owners that will be busy.
// Without rules, because the files have faults, it looks at the files alone.
func Warnings(files []File, rules *Rules) []Warning {
	var s suspect
	for _, f := range files {
		if line := secondDocument(f.Content); line > 0 {
			s.add("ignored-document", f.Name, line, 1, "only the first YAML document of a file is loaded; this one is ignored")
		}
		s.keys(f)
	}
	if rules == nil {
		return s.all
	}
	for _, d := range rules.order {
		s.level(d.name, &d.node)
	}
	names := map[string]bool{}
	for _, r := range rules.rules {
		names[r.Name] = true
	}
	for _, r := range rules.rules {
		s.rule(r, max(1, rules.members-1))
		for _, name := range r.Replaces {
			if !names[name] {
				s.of(r, "replaces-nothing", "'%s' replaces '%s', which no rule is named", r.FullKey, name)
			}
		}
	}
	return s.all
}

type suspect struct{ all []Warning }

func (s *suspect) add(kind, file string, line, column int, format string, args ...any) {
	s.all = append(s.all, Warning{file, line, column, fmt.Sprintf(format, args...), kind})
}

func (s *suspect) of(r *RuleSpec, kind, format string, args ...any) {
	s.add(kind, r.File, r.Line, r.Column, format, args...)
}

func (s *suspect) at(n *node, kind, format string, args ...any) {
	s.add(kind, n.file, n.line, n.column, format, args...)
}

// busy is the hits a second that one member should not be given by a single owner string without thought.
const busy = 1000

func (s *suspect) rule(r *RuleSpec, holders int) {
	if r.Unlimited {
		if r.Limit.Limit != 0 {
			s.of(r, "no-effect", "'%s' is unlimited; its requests_per_unit is ignored", r.FullKey)
		}
		return
	}
	if r.Limit.Limit == 0 {
		s.of(r, "refuses-all", "'%s' has requests_per_unit 0, or none: every request is over the limit", r.FullKey)
	}
	switch {
	case r.Limit.Window > 24*time.Hour:
		s.of(r, "long-window", "'%s' counts by the %s; counts are kept in memory and do not survive a restart of all members",
			r.FullKey, r.span())
	case r.Limit.Window < shortest:
		s.of(r, "short-window", "'%s' counts by the %s: clocks and the way between members make windows below %s inexact, and answers tell times in whole seconds",
			r.FullKey, r.span(), shortest)
	}
	if r.oneOwner() && float64(r.Limit.Limit)/r.Limit.Window.Seconds() >= busy {
		s.of(r, "one-owner", "'%s' has one owner for all its requests, up to %d a %s: one member counts them all",
			r.FullKey, r.Limit.Limit, r.span())
	}
	if r.Extension.Mechanism == policy.ByLease && r.lent(uint64(holders)) == 0 {
		s.of(r, "nothing-to-lend", "'%s' lets too little through to lend parts of it: its owner decides every question", r.FullKey)
	}
}

// shortest is the window below which skew and delay between members are a large part of it.
const shortest = 100 * time.Millisecond

// span names the window: the unit, or the duration in its place.
func (r *RuleSpec) span() string {
	if r.Limit.Window == r.Unit.Window() {
		return r.Unit.String()
	}
	return r.Limit.Window.String()
}

// most is the hits that the limit lets through in the time of one window: a bucket its depth on top of what flows in.
func (r *RuleSpec) most() uint64 {
	if r.Limit.Algorithm.Bucket() {
		return uint64(r.Limit.Limit) + uint64(r.Limit.Depth())
	}
	return uint64(r.Limit.Limit)
}

// oneOwner says that the owner string is the same for every request.
func (r *RuleSpec) oneOwner() bool {
	for _, i := range r.ownerAt {
		if l := r.Levels[i]; l.Variable && !l.Shared {
			return false
		}
	}
	return true
}

func (s *suspect) level(up string, parent *node) {
	for i, n := range parent.list {
		full := up + "." + n.glued
		if by := shadowing(parent.list, i); by != nil {
			s.at(n, "unreachable", "'%s' is never reached: '%s' takes all its values", full, by.glued)
		}
		if _, ours := n.metadata.GetFields()[metadataKey]; ours && (n.rule == nil || n.rule.Unlimited) {
			s.at(n, "no-effect", "'%s' has metadata.%s and no limit that it could act on", full, metadataKey)
		}
		if n.rule != nil && !n.rule.Unlimited {
			for _, reason := range n.rule.idle(n.metadata.GetFields()[metadataKey].GetStructValue().GetFields()) {
				s.at(n, "no-effect", "'%s' has %s", full, reason)
			}
		}
		s.metadata(full, n)
		s.level(full, n)
	}
}

// metadata looks for our own keys where nobody reads them.
func (s *suspect) metadata(full string, n *node) {
	for _, key := range slices.Sorted(maps.Keys(n.metadata.GetFields())) {
		switch {
		case key == metadataKey:
		case slices.Contains(knobKeys(), key) && n.rule != nil:
			s.at(n, "no-effect", "'%s' has metadata.%s, which nobody reads: Keyward's own keys stand under metadata.%s", full, key, metadataKey)
		case distance(strings.ToLower(key), metadataKey) <= 2:
			s.at(n, "no-effect", "'%s' has metadata.%s, which nobody reads: did you mean metadata.%s?", full, key, metadataKey)
		}
	}
}

// shadowing is the wildcard that leaves nothing for list[i]: an earlier one that covers a wildcard, or any that covers
// all values of a bare key. A text without a * is looked up before any wildcard and cannot be hidden.
func shadowing(list []*node, i int) *node {
	n := list[i]
	for j, other := range list {
		switch {
		case i == j || other.pattern == nil:
		case n.pattern != nil:
			if j < i && other.pattern.covers(n.glued) {
				return other
			}
		case n.level.Value == "":
			if other.pattern.covers(n.glued + "_*") {
				return other
			}
		}
	}
	return nil
}
